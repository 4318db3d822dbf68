"""Encodes Arrow batches as messages in the layout of a SEND_BATCH_MESSAGE body, vectorised, and rejects rows that
cannot be sent.

The few rows that must be sent alone, because they are delayed or have a compressed body, are encoded in the same layout
and decoded when they are sent.

A row gets the same message id each time it is sent. An id (UNIQ_KEY) has 32 hex digits in the layout that RocketMQ's
clients use: ten bytes of a hash of the task and of the row's number without its low 16 bits, four zero bytes where
clients store a time, and the low 16 bits.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.limits import MAX_PROPERTIES_BYTES, MAX_SPARK_BATCH_BODY_BYTES, MAX_TTL_MS
from cometmq.message.batch import PIECE_OVERHEAD_BYTES
from cometmq.message.layout import BATCH_HEAD
from cometmq.message.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PRIORITY,
    PROPERTY_SEPARATOR,
    RESERVED_NAMES,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TTL_MS,
    UNIQ_KEY,
    property_mark,
)
from cometmq.message.record_arrays import dtype_of
from cometmq.spark.errors import SinkError
from cometmq.spark.records.slices import constant
from cometmq.spark.sink.options import DELAY_COLUMNS, PRIORITY_COLUMN, TTL_COLUMN, SinkOptions

if TYPE_CHECKING:
    import numpy.typing as npt

_HEAD: Final = BATCH_HEAD.struct()
_HEADS: Final = dtype_of(BATCH_HEAD)
_SHORT: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The rows of one Arrow batch, encoded as messages."""

    batch: pa.RecordBatch
    where: RowPlace
    pieces: pa.BinaryArray
    alone: npt.NDArray[np.bool_]
    """For each row, True if the row must be sent alone."""


class MessageParts(NamedTuple):
    """One message, decoded from its bytes."""

    flag: int
    body: bytes
    properties: str


def parts_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a Spark batch that is too large to be encoded in one step."""
    if batch.nbytes <= MAX_SPARK_BATCH_BODY_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (range(half), range(half, batch.num_rows)):
        yield from parts_of(batch.take(pa.array(part, pa.int64())))


def encode_rows(batch: pa.RecordBatch, first_row: int, identity: TaskIdentity, options: SinkOptions) -> EncodedRows:
    """Encode the rows of an Arrow batch.

    :raises SinkError: a row cannot be sent; the error names the first such row and the reason.
    """
    where = RowPlace(identity.partition, first_row)
    count = batch.num_rows
    body = _body(batch, where, options)
    alone = _delayed(batch, where) | _with_priority(batch, where)
    properties = encode_properties_of(batch, identity.message_ids(first_row, count), where)
    body_lengths, property_lengths = _lengths(body), _lengths(properties)
    heads = np.zeros(count, _HEADS)
    heads["size"] = body_lengths + property_lengths + PIECE_OVERHEAD_BYTES
    if "flag" in batch.schema.names:
        heads["flag"] = np.asarray(batch.column("flag").fill_null(0))
    heads["body_length"] = body_lengths
    pieces = pc.binary_join_element_wise(
        _fixed(heads, _HEAD.size, count),
        body,
        _fixed(property_lengths.astype(">i2"), _SHORT.size, count),
        properties,
        _EMPTY,
    )
    if options.compression is not None:
        alone = alone | (body_lengths > options.compress_over)
    return EncodedRows(batch, where, pieces, alone)


def decode_piece(piece: bytes) -> MessageParts:
    """Decode one message from its bytes."""
    _, _, _, flag, length = _HEAD.unpack_from(piece)
    body_end = _HEAD.size + length
    return MessageParts(flag, piece[_HEAD.size : body_end], piece[body_end + _SHORT.size :].decode())


def _lengths(texts: Any) -> npt.NDArray[np.int32]:
    """Return the lengths of texts without nulls. ``to_numpy`` would import Pandas, which takes half a second."""
    if not len(texts):
        return np.empty(0, np.int32)
    lengths = pc.binary_length(texts)
    return np.frombuffer(lengths.buffers()[1], np.int32)[lengths.offset :][: len(lengths)]


def _fixed(values: npt.NDArray[Any], width: int, count: int) -> Any:
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(values)])
    return array.cast(pa.binary())


def _body(batch: pa.RecordBatch, where: RowPlace, options: SinkOptions) -> Any:
    name = "body" if "body" in batch.schema.names else "value"
    body = batch.column(name).cast(pa.binary())
    if body.null_count:
        refuse_first(
            batch, pc.is_null(body), where, f"{name} is null", f"filter out such rows with .where('{name} is not null')"
        )
    lengths = pc.binary_length(body)
    bounds = pc.min_max(lengths)
    if len(body) and bounds["min"].as_py() == 0:
        refuse_first(
            batch,
            pc.equal(lengths, 0),
            where,
            f"{name} is empty",
            f"filter out such rows with .where(length({name}) > 0)",
        )
    if len(body) and bounds["max"].as_py() > options.max_message_size:
        largest = bounds["max"].as_py()
        refuse_first(
            batch,
            pc.greater(lengths, options.max_message_size),
            where,
            f"{name} has more than {options.max_message_size} bytes (the largest of this batch has {largest})",
            "split it, or raise maxMessageSize at the brokers and option maxMessageSize here",
        )
    return body


def _delayed(batch: pa.RecordBatch, where: RowPlace) -> npt.NDArray[np.bool_]:
    """Mark the rows with a delay, and check that each row has at most one delay."""
    kinds = np.zeros(batch.num_rows, np.int8)
    for name in DELAY_COLUMNS:
        if name in batch.schema.names:
            column = batch.column(name)
            given = np.asarray(pc.is_valid(column))
            if name != "deliverAt":
                values = np.asarray(column.fill_null(0))
                refuse_first(batch, values < 0, where, f"{name} is negative", "leave it null for no delay")
                given = values > 0
            kinds += given
    refuse_first(
        batch, kinds > 1, where, f"more than one of {', '.join(DELAY_COLUMNS)} is given", "leave the others null"
    )
    return kinds > 0


def _with_priority(batch: pa.RecordBatch, where: RowPlace) -> npt.NDArray[np.bool_]:
    """Mark the rows with a priority, which must not share a batch, since each goes to the queue of its priority."""
    if PRIORITY_COLUMN not in batch.schema.names:
        return np.zeros(batch.num_rows, np.bool_)
    column = batch.column(PRIORITY_COLUMN)
    values = np.asarray(column.fill_null(0))
    refuse_first(batch, values < 0, where, f"{PRIORITY_COLUMN} is negative", "leave it null for no priority")
    return np.asarray(pc.is_valid(column))


_NOT_THE_USERS: Final = RESERVED_NAMES | {SHARDING_KEY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS}
_SEPARATORS: Final = (NAME_VALUE_SEPARATOR + PROPERTY_SEPARATOR).encode()


def _scalar(text: str) -> Any:
    """Return a text as a binary scalar. ``pa.scalar`` would import Pandas, which takes half a second."""
    return constant(text, 1).cast(pa.binary())[0]


_EMPTY: Final = _scalar("")
_NULL: Final = pa.nulls(1, pa.binary())[0]


def encode_properties_of(batch: pa.RecordBatch, ids: npt.NDArray[np.uint8], where: RowPlace) -> pa.BinaryArray:
    """Encode each row's properties.

    :param ids: the message ids as ASCII, shape ``(rows, 32)``.
    :raises SinkError: a row has a reserved name, a separator inside a value, or more than 32,767 bytes.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    pieces: list[Any] = []
    count = 0  # the number of separators of each kind, if no value contains any
    for name, column in (
        (TAGS, columns.get("tags")),
        (KEYS, _keys(batch, columns["keys"], where) if "keys" in columns else None),
        (SHARDING_KEY, columns.get("shardingKey")),
        (DELAY, _positive(columns["delayLevel"]) if "delayLevel" in columns else None),
        (TIMER_DELAY_MS, columns.get("delayMs")),
        (TIMER_DELIVER_MS, _milliseconds(columns["deliverAt"]) if "deliverAt" in columns else None),
        (PRIORITY, columns.get(PRIORITY_COLUMN)),
        (TTL_MS, _life_times(batch, columns[TTL_COLUMN], where) if TTL_COLUMN in columns else None),
    ):
        if column is not None:
            piece, filled = _piece(name, column)
            pieces += piece
            count += filled
    if "properties" in columns:
        reserved = _NOT_THE_USERS | ({TTL_MS} if TTL_COLUMN in columns else set())
        own, filled = _own(batch, columns["properties"], reserved, where)
        pieces.append(own)
        count += filled
    rows = batch.num_rows
    unique = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ids.shape[1]), rows, [None, pa.py_buffer(ids)])
    pieces += [_scalar(property_mark(UNIQ_KEY)), unique.cast(pa.binary()), _scalar(PROPERTY_SEPARATOR)]
    texts = pc.binary_join_element_wise(*pieces, _EMPTY)
    _check_separators(batch, texts, count + rows, where)
    refuse_first(
        batch,
        _lengths(texts) > MAX_PROPERTIES_BYTES,
        where,
        f"its properties have more than the {MAX_PROPERTIES_BYTES} bytes that can be stored",
        "put large values into the body",
    )
    return texts


def _piece(name: str, column: Any) -> tuple[list[Any], int]:
    """Return the text parts of one property, which are later joined, and the number of rows with the property. Null and
    empty values are left out.
    """
    values = _bytes(column)
    if len(values) and pc.min(pc.binary_length(values)).as_py() == 0:
        values = pc.if_else(pc.equal(pc.binary_length(values), 0), _NULL, values)
    head, tail = _scalar(property_mark(name)), _scalar(PROPERTY_SEPARATOR)
    if not values.null_count:
        return [head, values, tail], len(values)
    joined = pc.binary_join_element_wise(head, values, tail, _EMPTY)
    return [pc.coalesce(joined, _EMPTY)], len(values) - values.null_count


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
        "remove nulls, for example with array_compact(keys)",
    )
    return joined


def _joined(column: Any) -> Any:
    """Join arrays of keys into text. Arrow can only join lists whose elements may be null."""
    return pc.binary_join(column.cast(pa.list_(pa.string())), KEY_SEPARATOR)


def _life_times(batch: pa.RecordBatch, column: Any, where: RowPlace) -> Any:
    """Check the life times; rows without one have none."""
    values = np.asarray(column.fill_null(1))
    wrong = (values < 1) | (values > MAX_TTL_MS)
    fault, next_step = f"{TTL_COLUMN} is not 1 to {MAX_TTL_MS} (ten years)", "leave it null for no life time"
    refuse_first(batch, wrong, where, fault, next_step)
    return column


def _own(batch: pa.RecordBatch, column: Any, reserved_names: Set[str], where: RowPlace) -> tuple[Any, int]:
    """Encode each row's application properties. Return them and their number."""
    if column.offset:
        column = pa.concat_arrays([column])
    offsets = column.offsets
    names, values = column.keys.cast(pa.binary()), column.items.cast(pa.binary())
    reserved = pc.is_in(names, value_set=pa.array([name.encode() for name in sorted(reserved_names)], pa.binary()))
    _refuse_entry(
        batch,
        offsets,
        reserved,
        where,
        "its properties have a name that is reserved for RocketMQ",
        "use the sink's columns (tags, keys, delayLevel, ttlMs …), or remove it with map_filter",
    )
    absent = pc.or_kleene(
        pc.is_null(values), pc.or_(pc.equal(pc.binary_length(names), 0), pc.equal(pc.binary_length(values), 0))
    )
    ends = _scalar(NAME_VALUE_SEPARATOR), _scalar(PROPERTY_SEPARATOR)
    joined = pc.binary_join_element_wise(names, ends[0], values, ends[1], _EMPTY)
    entries = pc.if_else(absent, _EMPTY, joined)
    lists = pa.ListArray.from_arrays(offsets, entries)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return pc.binary_join(lists, b""), (last - first) - int(pc.sum(absent[first:last]).as_py() or 0)


def _refuse_entry(batch: pa.RecordBatch, offsets: Any, bad: Any, where: RowPlace, fault: str, next_step: str) -> None:
    """Reject the row that contains the first marked map entry."""
    marked = np.flatnonzero(np.asarray(bad.fill_null(False)))
    if len(marked):
        rows = np.zeros(batch.num_rows, bool)
        rows[np.searchsorted(np.asarray(offsets), marked, side="right") - 1] = True
        refuse_first(batch, rows, where, fault, next_step)


def _check_separators(batch: pa.RecordBatch, texts: pa.BinaryArray, expected: int, where: RowPlace) -> None:
    """Count the separators. If there are more than the sink wrote, a value contains a separator and could not be read
    back.
    """
    data = np.frombuffer(texts.buffers()[2], np.uint8)[: pc.sum(pc.binary_length(texts)).as_py()]
    if all(np.count_nonzero(data == separator) == expected for separator in _SEPARATORS):
        return
    fault, next_step = "{} hold one of the separators 0x01 and 0x02", "remove them with translate(...)"
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
    return pc.match_substring_regex(texts, f"[{NAME_VALUE_SEPARATOR}{PROPERTY_SEPARATOR}]").fill_null(False)


class RowPlace(NamedTuple):
    """The partition number and row number of a batch's first row, for error texts."""

    partition: int
    first_row: int


_TELLING: Final = ("topic", "keys", "tags", "shardingKey")
_SHOWN_CHARS: Final = 80


def refuse_first(batch: pa.RecordBatch, bad: Any, where: RowPlace, fault: str, next_step: str) -> None:
    """Reject the first marked row in a batch.

    :param bad: a boolean for each row, as an Arrow or numpy array without nulls.
    :raises SinkError: a row is marked.
    """
    marked: npt.NDArray[np.bool_] = np.asarray(bad)
    if marked.any():
        refuse_row(batch, int(marked.argmax()), where, fault, next_step)


def refuse_row(batch: pa.RecordBatch, index: int, where: RowPlace, fault: str, next_step: str) -> None:
    """Reject one row.

    :raises SinkError: always.
    """
    values = [
        f"{name} {str(value)[:_SHOWN_CHARS]!r}"
        for name in _TELLING
        if name in batch.schema.names and (value := batch.column(name)[index].as_py()) is not None
    ]
    context = f" ({', '.join(values)})" if values else ""
    raise SinkError(
        f"row {where.first_row + index} of partition {where.partition}{context}: {fault}", next_step=next_step
    )


ID_CHARS: Final = 32
_PREFIX_BYTES: Final = 10
_BLOCK_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """A task's identity, which is the same in every attempt."""

    producer: str
    """Id of a stream's query, or of one batch write."""
    batch: int
    """Number of the micro-batch in a stream, or 0 for a batch write."""
    partition: int

    def message_id(self, row: int) -> str:
        """Return the message id of one row."""
        return f"{self._prefix(row >> _BLOCK_BITS)}{row & 0xFFFF:04X}"

    def message_ids(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Return the message ids of ``count`` rows starting at ``first``, as ASCII with shape ``(count, 32)``."""
        ids = np.empty((count, ID_CHARS), np.uint8)
        done = 0
        while done < count:
            row = first + done
            part = min(count - done, (1 << _BLOCK_BITS) - (row & 0xFFFF))
            ids[done : done + part, :-4] = np.frombuffer(self._prefix(row >> _BLOCK_BITS).encode(), np.uint8)
            ids[done : done + part, -4:] = _low_digits()[row & 0xFFFF : (row & 0xFFFF) + part]
            done += part
        return ids

    def _prefix(self, block: int) -> str:
        text = f"{self.producer}\n{self.batch}\n{self.partition}\n{block}"
        return hashlib.blake2b(text.encode(), digest_size=_PREFIX_BYTES).hexdigest().upper() + "00000000"


@cache
def _low_digits() -> npt.NDArray[np.uint8]:
    """Return ``0000`` to ``FFFF`` as ASCII with shape ``(65536, 4)``."""
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    numbers = np.arange(1 << _BLOCK_BITS)
    return digits[np.stack([numbers >> shift & 15 for shift in (12, 8, 4, 0)], axis=1)]


def task_attempt() -> int:
    """Return the number of the attempt that this process is running, starting at 0. Call this function only inside a
    Spark task.
    """
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return int(context.attemptNumber())


def task_identity(producer: str | None, *, streaming: bool) -> TaskIdentity:
    """Return the identity of the task that this process is running. Call this function only inside a Spark task.

    :param producer: id of a batch, or option ``producerId`` of a stream; by default the id of the stream's query.
    """
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    if not streaming:
        return TaskIdentity(producer or "", 0, context.partitionId())
    query = producer or context.getLocalProperty("sql.streaming.queryId")
    batch = int(context.getLocalProperty("streaming.sql.batchId"))
    return TaskIdentity(query, batch, context.partitionId())
