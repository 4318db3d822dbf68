"""The properties of a batch of rows as RocketMQ's text, ``name 0x01 value 0x02 …``, vectorised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    RESERVED_NAMES,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
)
from cometmq.spark.sink.rows import RowPlace, refuse_first

if TYPE_CHECKING:
    import numpy.typing as npt

_NOT_THE_USERS: Final = RESERVED_NAMES | {SHARDING_KEY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS}
_EMPTY: Final = pa.scalar(b"", pa.binary())


def encode_properties_of(batch: pa.RecordBatch, ids: npt.NDArray[np.uint8], where: RowPlace) -> pa.BinaryArray:
    """The properties of each row.

    :param ids: the message ids as ASCII, shape ``(rows, 32)``.
    :raises SinkError: a row has a reserved name, a separator inside a value, or more than 32,767 bytes.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    pieces: list[Any] = []
    count = 0  # of separators of each kind, if nobody put any into a value
    for name, column in (
        (TAGS, columns.get("tags")),
        (KEYS, _keys(batch, columns["keys"], where) if "keys" in columns else None),
        (SHARDING_KEY, columns.get("shardingKey")),
        (DELAY, _positive(columns["delayLevel"]) if "delayLevel" in columns else None),
        (TIMER_DELAY_MS, columns.get("delayMs")),
        (TIMER_DELIVER_MS, _milliseconds(columns["deliverAt"]) if "deliverAt" in columns else None),
    ):
        if column is not None:
            piece, filled = _piece(name, column)
            pieces += piece
            count += filled
    if "properties" in columns:
        own, filled = _own(batch, columns["properties"], where)
        pieces.append(own)
        count += filled
    rows = batch.num_rows
    unique = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ids.shape[1]), rows, [None, pa.py_buffer(ids)])
    pieces += [_scalar(f"{UNIQ_KEY}\x01"), unique.cast(pa.binary()), _scalar("\x02")]
    texts = pc.binary_join_element_wise(*pieces, _EMPTY)
    _check_separators(batch, texts, count + rows, where)
    refuse_first(
        batch,
        pc.greater(pc.binary_length(texts), MAX_PROPERTIES_BYTES),
        where,
        f"its properties have more than the {MAX_PROPERTIES_BYTES} bytes that can be stored",
        "put large values into the body",
    )
    return texts


def _scalar(text: str) -> Any:
    return pa.scalar(text.encode(), pa.binary())


def _piece(name: str, column: Any) -> tuple[list[Any], int]:
    """What is joined for one property, and how many rows have it; null and empty values are left out."""
    values = _bytes(column)
    empty = pc.equal(pc.binary_length(values), 0)
    if pc.any(empty).as_py():
        values = pc.if_else(empty, pa.scalar(None, pa.binary()), values)
    head, tail = _scalar(f"{name}\x01"), _scalar("\x02")
    if not values.null_count:
        return [head, values, tail], len(values)
    joined = pc.binary_join_element_wise(head, values, tail, _EMPTY)
    return [pc.fill_null(joined, b"")], len(values) - values.null_count


def _bytes(column: Any) -> Any:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def _positive(levels: Any) -> Any:
    return pc.if_else(pc.greater(levels, 0), levels, pa.scalar(None, levels.type))


def _milliseconds(times: Any) -> Any:
    return pc.divide(times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()), 1000)


def _keys(batch: pa.RecordBatch, column: Any, where: RowPlace) -> Any:
    if not pa.types.is_list(column.type):
        return column
    joined = _joined(column)
    refuse_first(
        batch,
        pc.and_(pc.is_null(joined), pc.is_valid(column)),
        where,
        "one of its keys is null",
        "leave nulls out, as in array_compact(keys)",
    )
    return joined


def _joined(column: Any) -> Any:
    """Arrays of keys as text; Arrow joins only lists whose elements may be null."""
    return pc.binary_join(column.cast(pa.list_(pa.string())), KEY_SEPARATOR)


def _own(batch: pa.RecordBatch, column: Any, where: RowPlace) -> tuple[Any, int]:
    """The application's properties of each row, and how many there are."""
    if column.offset:
        column = pa.concat_arrays([column])
    offsets = column.offsets
    names, values = column.keys.cast(pa.binary()), column.items.cast(pa.binary())
    reserved = pc.is_in(names, value_set=pa.array([name.encode() for name in sorted(_NOT_THE_USERS)], pa.binary()))
    _refuse_entry(
        batch,
        offsets,
        reserved,
        where,
        "its properties have a name that is reserved for RocketMQ",
        "use the sink's columns (tags, keys, delayLevel …), or take it out with map_filter",
    )
    absent = pc.or_kleene(
        pc.is_null(values), pc.or_(pc.equal(pc.binary_length(names), 0), pc.equal(pc.binary_length(values), 0))
    )
    joined = pc.binary_join_element_wise(names, _scalar("\x01"), values, _scalar("\x02"), _EMPTY)
    entries = pc.if_else(absent, _EMPTY, joined)
    lists = pa.ListArray.from_arrays(offsets, entries)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return pc.binary_join(lists, b""), (last - first) - int(pc.sum(absent[first:last]).as_py() or 0)


def _refuse_entry(batch: pa.RecordBatch, offsets: Any, bad: Any, where: RowPlace, fault: str, next_step: str) -> None:
    """Refuse the row of the first map entry that is marked."""
    marked = np.flatnonzero(np.asarray(bad.fill_null(False)))
    if len(marked):
        rows = np.zeros(batch.num_rows, bool)
        rows[np.searchsorted(np.asarray(offsets), marked, side="right") - 1] = True
        refuse_first(batch, rows, where, fault, next_step)


def _check_separators(batch: pa.RecordBatch, texts: pa.BinaryArray, expected: int, where: RowPlace) -> None:
    """Count the separators: more than the sink wrote means that a value holds one and could not be read back."""
    data = np.frombuffer(texts.buffers()[2], np.uint8)[: pc.sum(pc.binary_length(texts)).as_py()]
    if all(np.count_nonzero(data == separator) == expected for separator in (1, 2)):
        return
    fault, next_step = "{} hold one of the separators 0x01 and 0x02", "take them out with translate(...)"
    for name in ("tags", "keys", "shardingKey"):
        if name in batch.schema.names:
            column = batch.column(name)
            joined = _joined(column) if pa.types.is_list(column.type) else column
            refuse_first(batch, _has_separator(joined), where, fault.format(name), next_step)
    properties = batch.column("properties")
    for entries in (properties.keys, properties.items):
        bad = _has_separator(entries)
        _refuse_entry(batch, properties.offsets, bad, where, fault.format("properties"), next_step)


def _has_separator(texts: Any) -> Any:
    return pc.match_substring_regex(texts, "[\x01\x02]").fill_null(False)
