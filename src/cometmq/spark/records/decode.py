"""Decodes stored records into columns: Arrow arrays for many records at a time, and only the requested columns.

The bytes are consecutive records, as in a pull response or a commit log; :mod:`cometmq.message.record` documents their
layout. The compiled core decodes most columns in one pass (:mod:`cometmq.spark.records.one_pass`). In Python, only the
sizes are read one by one. All other fields are gathered for all records at once (:mod:`cometmq.spark.records.slices`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.core import CORE
from cometmq.limits import MAX_DECOMPRESSED_BYTES, MAX_SPARK_BATCH_BODY_BYTES
from cometmq.message import properties as props
from cometmq.message.compression import DecompressionError, decompress
from cometmq.message.ids import offset_msg_id
from cometmq.message.layout import (
    BODY_AT,
    HOSTS_V6,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    TOPIC_LENGTH_BYTES,
    record_offsets,
)
from cometmq.message.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, RecordError, decode_record
from cometmq.message.record_arrays import dtype_of, offsets_of
from cometmq.message.sysflag import COMPRESSED
from cometmq.spark.errors import BadBodyError
from cometmq.spark.records.hosts import host_text, host_texts
from cometmq.spark.records.one_pass import PROPERTY_COLUMNS, columns_in_one_pass
from cometmq.spark.records.property_columns import PropertyTexts
from cometmq.spark.records.queues import Queue
from cometmq.spark.records.slices import Bytes, Positions, constant, fixed, slices, text, windows

_SIZE: Final = RECORD.struct("size")
_MAX_MS: Final = (1 << 63) // 1000 - 1
"""Largest timestamp that can be stored in microseconds. Producers may send any value."""
_HEAD: Final = dtype_of(RECORD)
"""Layout of the fields before the body if both hosts are IPv4. Every record is longer than these fields."""
_BEHIND: Final = {"born_host": "store_timestamp", "store_host": "reconsume_times"}
"""The name of the field after each host."""
_BEHIND_HOSTS: Final = ("store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_length")
_HEX: Final = np.frombuffer(bytes.hex(bytes(range(256))).upper().encode(), "V2")


def record_starts(buffer: bytes | memoryview) -> Positions:
    """Return the position of each record in ``buffer``.

    :raises RecordError: the sizes do not add up to the buffer's length.
    """
    starts = []
    at, end, size_at = 0, len(buffer), _SIZE.unpack_from
    try:
        while at < end:
            starts.append(at)
            (size,) = size_at(buffer, at)
            if size < MIN_RECORD_BYTES:
                raise RecordError(f"the record at byte {at} has an invalid size of {size} bytes")
            at += size
    except struct.error:
        at = -1
    if at != end:
        raise RecordError(f"the record at byte {starts[-1]} extends beyond the end of the {end} bytes")
    return np.array(starts, np.int64)


class Records:
    """Records in one buffer; columns are decoded when requested.

    A selection of records (:meth:`rows`) keeps the fields that were already read, because records are far apart in
    memory and reading a field again takes longer than processing it.
    """

    def __init__(self, buffer: bytes | memoryview, starts: Positions | None = None) -> None:
        """Use all records in ``buffer``, or the records at ``starts``. Only :meth:`check` validates ``starts``.

        :raises RecordError: the bytes are not complete records.
        """
        self.source = buffer
        self._bytes: Bytes = np.frombuffer(buffer, np.uint8)
        self._known: dict[str, Any] = {}
        """Columns that the compiled core has decoded, by name."""
        self._has_all = starts is None
        if starts is not None:
            self.starts = starts
        elif CORE is not None and (found := CORE.record_starts(buffer)) is not None:
            self.starts = np.frombuffer(found, np.int64)
        else:
            self.starts = record_starts(buffer)
            self.check()

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, which: slice | npt.NDArray[np.bool_] | Positions) -> Records:
        """Return the selected records from the same buffer."""
        chosen, known = Records(self.source, self.starts[which]), vars(self)
        if "_raw_heads" in known:
            chosen._raw_heads = self._raw_heads[which]
        if "_layout" in known:
            chosen._layout = self._layout[:, which]
        if "topic_codes" in known:
            names, codes = self.topic_codes
            chosen.topic_codes = names, codes[which]
        if isinstance(which, slice):
            chosen._known = {name: column[which] for name, column in self._known.items()}
        return chosen

    def between(self, first: int, end: int) -> Records:
        """Return the records with ``first <= queue offset < end``."""
        offsets = self.queue_offsets
        inside = (offsets >= first) & (offsets < end)
        return self if inside.all() else self.rows(inside)

    def tagged(self, tags: frozenset[str]) -> Records:
        """Return the records with one of the given tags. Brokers compare only hashes, which may collide."""
        wanted = pc.is_in(self.properties.values_of(props.TAGS), pa.array(sorted(tags), pa.string()))
        return self.rows(wanted.to_numpy(zero_copy_only=False))

    # Numbers --------------------------------------------------------------------------------------

    @cached_property
    def _raw_heads(self) -> npt.NDArray[np.void]:
        """Return the heads (fields before the body) of all records as bytes; Numpy would copy structured values one
        by one.
        """
        raw = windows(self._bytes, f"V{_HEAD.itemsize}")[self.starts]
        heads = raw.view(_HEAD)
        flags = heads["sys_flag"]
        if (flags & HOSTS_V6).any():
            for name in _BEHIND_HOSTS:
                kind, at = _HEAD[name], self.starts + offsets_of(record_offsets(name), flags)
                # A record may be too short for the hosts that its flag states; check() detects this.
                heads[name] = windows(self._bytes, kind)[np.minimum(at, len(self._bytes) - kind.itemsize)]
        return raw

    @property
    def _heads(self) -> npt.NDArray[Any]:
        """Return the heads in the layout for IPv4 hosts. In records with IPv6 hosts, the two host fields are
        invalid.
        """
        return self._raw_heads.view(_HEAD)

    def number(self, field: str) -> npt.NDArray[Any]:
        """Return a field of the head (:data:`_HEAD`) in native byte order."""
        found = self._heads[field]
        return found.astype(found.dtype.newbyteorder("="))

    @cached_property
    def queue_offsets(self) -> npt.NDArray[np.int64]:
        """Return the queue offsets as int64."""
        return self.number("queue_offset")

    @cached_property
    def sys_flags(self) -> npt.NDArray[np.int32]:
        """Return the sysFlags as int32."""
        return self.number("sys_flag")

    @cached_property
    def store_timestamps(self) -> npt.NDArray[np.int64]:
        """Return the store timestamps in ms since 1970."""
        return self.number("store_timestamp")

    @cached_property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Return the sizes of the complete records in bytes."""
        return self.number("size")

    @cached_property
    def physical_offsets(self) -> npt.NDArray[np.int64]:
        """Return the records' offsets in the broker's log, in bytes."""
        return self.number("physical_offset")

    @cached_property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        """Return the queue ids as int32."""
        return self.number("queue_id")

    # Geometry -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that all records are complete and valid (:attr:`whole`).

        :raises RecordError: a record is invalid; the error names the first invalid record.
        """
        if not self.whole.all():
            at = int(self.starts[int(np.argmin(self.whole))])
            decode_record(self.source, at, check_crc=False)
            raise RecordError(f"the record at byte {at} has inconsistent lengths")

    @property
    def whole(self) -> npt.NDArray[np.bool_]:
        """Return True for each record with valid magic and lengths, so that no read crosses the record's end."""
        found: npt.NDArray[np.bool_] = self._layout[6].astype(np.bool_)
        return found

    @cached_property
    def _layout(self) -> Positions:
        """Return seven rows: start and length of the body, the topic and the properties, and a flag for valid
        records.
        """
        if CORE is not None:
            found = CORE.record_layout(self.source, self.starts)
            if found is not None:
                ones = np.ones(len(self), np.int64)
                return np.vstack((np.frombuffer(found, np.int64).reshape(6, -1), ones))
        ends = self.starts + self.sizes
        magic, flags = self.number("magic"), self.sys_flags
        wide = magic == MESSAGE_MAGIC_V2
        layout = np.empty((7, len(self)), np.int64)
        body_at, body_length, topic_at, topic_length, properties_at, properties_length, whole = layout
        np.add(self.starts, offsets_of(BODY_AT, flags) if self._has_v6 else RECORD.size, out=body_at)
        body_length[:] = self._heads["body_length"]
        good = ((magic == MESSAGE_MAGIC) | wide) & (ends <= len(self._bytes)) & (body_length >= 0)
        at = body_at + body_length
        good &= at + TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES + wide <= ends
        at = np.where(good, at, 0)
        topic_length[:] = self._bytes[at]
        if wide.any():
            topic_length[wide] = windows(self._bytes, ">i2")[at[wide]]
        np.add(at + TOPIC_LENGTH_BYTES, wide, out=topic_at)
        at = topic_at + topic_length
        good &= (topic_length >= 0) & (at + PROPERTIES_LENGTH_BYTES <= ends)
        at = np.where(good, at, 0)
        properties_length[:] = windows(self._bytes, ">i2")[at]
        np.add(at, PROPERTIES_LENGTH_BYTES, out=properties_at)
        np.logical_and(good, (properties_length >= 0) & (properties_at + properties_length == ends), out=whole)
        return layout

    @property
    def body_slices(self) -> tuple[Positions, Positions]:
        """Return the positions and lengths of the stored bodies in ``source``."""
        return self._layout[0], self._layout[1]

    @cached_property
    def topic_codes(self) -> tuple[list[str], Positions]:
        """Return topic names, and the index of each record's topic. Some names may have no record."""
        at, lengths = self._layout[2:4]
        first = bytes(self.source[int(at[0]) : int(at[0] + lengths[0])]) if len(self) else b""
        if first and (lengths == len(first)).all() and (windows(self._bytes, f"S{len(first)}")[at] == first).all():
            return [first.decode("utf-8", "replace")], np.zeros(len(self), np.int64)
        found = text(slices(self._bytes, at, lengths)).dictionary_encode()
        return found.dictionary.to_pylist(), found.indices.to_numpy().astype(np.int64)

    @property
    def places(self) -> Positions:
        """Return one number per record that identifies its queue: the topic's index in :attr:`topic_codes`, followed by
        32 bits with the queue id.
        """
        return self.topic_codes[1] << 32 | (self.queue_ids.astype(np.int64) & 0xFFFFFFFF)

    def by_queue(self) -> Iterator[tuple[str, int, Records]]:
        """Yield each queue's topic, queue id and records."""
        if not len(self):
            return
        names, codes = self.topic_codes
        places = self.places
        order = np.argsort(places, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            yield names[int(codes[rows[0]])], int(self.queue_ids[rows[0]]), self.rows(rows)

    # Columns --------------------------------------------------------------------------------------

    def decode_together(self, schema: Any) -> None:
        """Decode columns of ``schema`` in one pass over the records, if the compiled core can and it pays."""
        self._known = columns_in_one_pass(self.source, self.starts, schema, self._most_body_bytes)
        if "sysFlag" in self._known:
            self.sys_flags = np.frombuffer(self._known["sysFlag"].buffers()[1], np.int32)

    def _most_body_bytes(self) -> int:
        total = len(self._bytes) if self._has_all else int(self.sizes.sum(dtype=np.int64))
        return min(max(total, 0), len(self._bytes))

    def column(self, name: str, kind: Any) -> Any:
        """Return one column of :mod:`cometmq.spark.records.columns` as an Arrow array of type ``kind``. Bodies are as
        stored.
        """
        return self._known[name] if name in self._known else _COLUMNS[name](self, kind)

    def topics(self) -> Any:
        """Return the topics as strings."""
        names, codes = self.topic_codes
        if (codes == codes[:1]).all():
            return constant(names[int(codes[0])] if len(codes) else "", len(self))
        return pa.array(names, pa.string()).take(pa.array(codes))

    @cached_property
    def properties(self) -> PropertyTexts:
        """Return the properties, which are parsed when requested."""
        return PropertyTexts(slices(self._bytes, *self._layout[4:]))

    def stored_bodies(self) -> Any:
        """Return the bodies as stored, without decompressing them."""
        return slices(self._bytes, *self.body_slices)

    def packed_bodies(self) -> Any:
        """Return the stored bodies that are compressed, and null for other bodies."""
        plain = (self.sys_flags & COMPRESSED) == 0
        if plain.all():
            return pa.nulls(len(self), pa.binary())
        at, lengths = self.body_slices
        return slices(self._bytes, at, np.where(plain, 0, lengths), plain)

    def body_bytes(self, row: int) -> bytes:
        """Return the stored body of one record."""
        at, length = self.body_slices
        return bytes(self.source[int(at[row]) : int(at[row] + length[row])])

    def msg_ids(self) -> Any:
        """Return the offset ids: 32 hex digits, or 56 if the store host is IPv6."""
        if self._has_v6:
            places = zip(self._hosts("store_host"), self.physical_offsets.tolist(), strict=True)
            return pa.array([offset_msg_id(host, offset) for host, offset in places], pa.string())
        raw = np.empty((len(self), 2), _HEAD["physical_offset"])
        raw[:, 0] = self._heads["store_host"].view(raw.dtype)
        raw[:, 1] = self._heads["physical_offset"]
        digits = _HEX[raw.view(np.uint8)]
        ends = np.arange(0, 32 * len(self) + 1, 32, dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), len(self), [None, pa.py_buffer(ends), pa.py_buffer(digits)])

    @cached_property
    def _has_v6(self) -> bool:
        return bool((self.sys_flags & HOSTS_V6).any())

    def _hosts(self, field: str) -> list[bytes]:
        begin, end = (
            self.starts + offsets_of(record_offsets(name), self.sys_flags) for name in (field, _BEHIND[field])
        )
        return [bytes(self.source[a:b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]

    def host_texts(self, field: str) -> Any:
        """Return the hosts in a field as ``ip:port``. Each distinct host is formatted only once."""
        if self._has_v6:
            known: dict[bytes, str] = {}
            return pa.array(
                [known.get(h) or known.setdefault(h, host_text(h)) for h in self._hosts(field)], pa.string()
            )
        return host_texts(self._heads[field].view("u8"))


def _number(field: str) -> Callable[[Records, Any], Any]:
    return lambda records, kind: _numbers(records.number(field), kind)


def _numbers(values: npt.NDArray[Any], kind: Any) -> Any:
    return fixed(values, len(values), kind)


def _timestamp(milliseconds: npt.NDArray[np.int64], kind: Any) -> Any:
    return _numbers(np.clip(milliseconds, -_MAX_MS, _MAX_MS) * 1000, kind)


def _priorities(numbers: Any, kind: Any) -> Any:
    """Return priorities; numbers that are none become null."""
    valid = pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, props.PRIORITY_MAX))
    return pc.if_else(valid, numbers, pa.scalar(None, numbers.type)).cast(kind)


def _moments(milliseconds: Any, kind: Any) -> Any:
    return pc.multiply(milliseconds, 1000).cast(kind)


_TRANSACTION_TYPES: Final = (None, "PREPARED", "COMMIT", "ROLLBACK")
"""Transaction types by the two bits in the sysFlag."""


def _property(name: str) -> Callable[[Records, Any], Any]:
    return lambda records, _: records.properties.values_of(name)


_COLUMNS: Final[dict[str, Callable[[Records, Any], Any]]] = {
    **{column: _property(name) for column, name in PROPERTY_COLUMNS.items()},
    "body": lambda records, _: records.stored_bodies(),
    "topic": lambda records, _: records.topics(),
    "queueId": _number("queue_id"),
    "queueOffset": _number("queue_offset"),
    "msgId": lambda records, _: records.msg_ids(),
    "properties": lambda records, kind: records.properties.maps(kind),
    "propertiesText": lambda records, _: records.properties.text(),
    "storedBody": lambda records, _: records.packed_bodies(),
    "flag": _number("flag"),
    "sysFlag": lambda records, kind: _numbers(records.sys_flags, kind),
    "bornTimestamp": lambda records, kind: _timestamp(records.number("born_timestamp"), kind),
    "bornHost": lambda records, _: records.host_texts("born_host"),
    "storeTimestamp": lambda records, kind: _timestamp(records.store_timestamps, kind),
    "storeHost": lambda records, _: records.host_texts("store_host"),
    "reconsumeTimes": _number("reconsume_times"),
    "preparedTransactionOffset": _number("prepared_transaction_offset"),
    "physicalOffset": _number("physical_offset"),
    "storeSize": lambda records, kind: _numbers(records.sizes, kind),
    "bodyCrc": _number("body_crc"),
    "delayLevel": lambda records, kind: records.properties.numbers_of(props.DELAY, kind),
    "deliverTimestamp": lambda records, kind: _moments(
        records.properties.numbers_of(props.TIMER_DELIVER_MS, pa.int64()), kind
    ),
    "priority": lambda records, kind: _priorities(records.properties.numbers_of(props.PRIORITY, pa.int64()), kind),
    "expireTimestamp": lambda records, kind: _moments(
        records.properties.numbers_of(props.EXPIRES_MS, pa.int64()), kind
    ),
    "transactionType": lambda records, kind: pa.array(_TRANSACTION_TYPES, kind).take(
        pa.array((records.sys_flags >> 2) & 3)
    ),
}
"""Functions for every column except ``brokerName``, which no record contains. Bodies may have to be decompressed."""


OnBadBody = Callable[[Queue, int, str], None]
"""Function that is called with the queue and offset of a message whose body cannot be decompressed, and with the
reason.
"""


def refuse_bad_body(queue: Queue, offset: int, reason: str) -> None:
    """Raise an error for the body: the default handler.

    :raises BadBodyError: always.
    """
    raise BadBodyError(
        f"the body of the message at offset {offset} of {queue} cannot be decompressed: {reason}",
        next_step='set badBodies="null" to read it without its body; column storedBody contains the stored bytes',
    )


def decode(
    records: Records,
    schema: Any,
    *,
    broker_name: str = "",
    on_bad_body: OnBadBody = refuse_bad_body,
    max_body_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[Any]:
    """Yield Arrow record batches with ``schema``, in order. There is usually one batch, or several if decompressed
    bodies are large.

    :param on_bad_body: function that is called for each body that cannot be decompressed; if it returns, the body is
        null.
    """
    if not len(records):
        return
    records.decode_together(schema)
    if "body" not in schema.names or not (records.sys_flags & COMPRESSED).any():
        yield _batch(records, schema, broker_name, None)
        return
    first = 0
    while first < len(records):
        part = records.rows(slice(first, None))
        bodies, count = _unpack(part, broker_name, on_bad_body, max_body_bytes)
        yield _batch(part.rows(slice(0, count)), schema, broker_name, bodies)
        first += count


def _batch(records: Records, schema: Any, broker_name: str, bodies: dict[int, bytes | None] | None) -> Any:
    arrays = []
    for field in schema:
        if field.name == "brokerName":
            arrays.append(constant(broker_name, len(records)))
        elif field.name == "body":
            arrays.append(_with_unpacked(records.column(field.name, field.type), bodies or {}))
        else:
            arrays.append(records.column(field.name, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with_unpacked(stored: Any, bodies: dict[int, bytes | None]) -> Any:
    if not bodies:
        return stored
    mask = np.zeros(len(stored), np.bool_)
    mask[list(bodies)] = True
    return pc.replace_with_mask(stored, pa.array(mask), pa.array(list(bodies.values()), pa.binary()))


def _unpack(
    records: Records, broker_name: str, on_bad_body: OnBadBody, max_body_bytes: int
) -> tuple[dict[int, bytes | None], int]:
    """Decompress the bodies of as many rows as fit into one batch. Return the bodies by row, and the number of rows."""
    bodies: dict[int, bytes | None] = {}
    room = MAX_SPARK_BATCH_BODY_BYTES
    for row in np.flatnonzero(records.sys_flags & COMPRESSED).tolist():
        try:
            body = decompress(records.body_bytes(row), int(records.sys_flags[row]), max_body_bytes)
        except DecompressionError as error:
            topic = records.rows(slice(row, row + 1)).topics()[0].as_py()
            queue = Queue(topic, broker_name, int(records.queue_ids[row]))
            on_bad_body(queue, int(records.queue_offsets[row]), error.message)
            bodies[row] = None
            continue
        if bodies and len(body) > room:
            return bodies, row
        room -= len(body)
        bodies[row] = body
    return bodies, len(records)
