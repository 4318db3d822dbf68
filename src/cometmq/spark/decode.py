"""Stored records → Arrow columns, many records at a time and only the columns asked for.

The bytes are what a pull answers and a commit log holds: records one after the other, laid out as
:mod:`cometmq.message.record` says. Only the sizes are followed one by one; every other field is gathered for all
records together (:mod:`cometmq.spark.slices`).
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

from cometmq.limits import MAX_DECOMPRESSED_BYTES, MAX_SPARK_BATCH_BODY_BYTES
from cometmq.message.compression import DecompressionError, decompress
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES, decode_host, format_address
from cometmq.message.ids import offset_msg_id
from cometmq.message.properties import DELAY, KEYS, PGROUP, TAGS, TIMER_DELIVER_MS, UNIQ_KEY
from cometmq.message.record import (
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    RecordError,
)
from cometmq.message.sysflag import BORNHOST_V6, COMPRESSED, STOREHOST_V6
from cometmq.spark.errors import BadBodyError
from cometmq.spark.property_columns import PropertyTexts
from cometmq.spark.queues import Queue
from cometmq.spark.slices import Bytes, Positions, constant, numbers, slices, text, windows

_SIZE: Final = struct.Struct(">i")
_MAX_MS: Final = (1 << 63) // 1000 - 1
"""Largest timestamp that still fits into microseconds; a producer may claim any."""
_HEX: Final = np.frombuffer(bytes.hex(bytes(range(256))).upper().encode(), "V2")


def record_starts(buffer: bytes) -> Positions:
    """Where each record of ``buffer`` begins.

    :raises RecordError: the sizes do not lead exactly to the end.
    """
    starts = []
    at, end, size_at = 0, len(buffer), _SIZE.unpack_from
    try:
        while at < end:
            starts.append(at)
            (size,) = size_at(buffer, at)
            if size < MIN_RECORD_BYTES:
                raise RecordError(f"a record at byte {at} claims {size} bytes")
            at += size
    except struct.error:
        at = -1
    if at != end:
        raise RecordError(f"the record at byte {starts[-1]} does not end within its {end} bytes")
    return np.array(starts, np.int64)


class Records:
    """Some records of one buffer, whose columns are decoded when asked for."""

    def __init__(self, buffer: bytes, starts: Positions | None = None, *, check: bool = False) -> None:
        """All records of ``buffer``, or those that begin at ``starts``: checked by an earlier look, or with ``check``.

        :raises RecordError: the bytes are not whole records.
        """
        self.source = buffer
        self._bytes: Bytes = np.frombuffer(buffer, np.uint8)
        self.starts = record_starts(buffer) if starts is None else starts
        if (starts is None or check) and len(self.starts):
            self._check()

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, which: slice | npt.NDArray[np.bool_]) -> Records:
        """Return the chosen records of the same buffer."""
        return Records(self.source, self.starts[which])

    def between(self, first: int, end: int) -> Records:
        """Return the records with ``first <= queue offset < end``."""
        offsets = self.queue_offsets
        inside = (offsets >= first) & (offsets < end)
        return self if inside.all() else self.rows(inside)

    def tagged(self, tags: frozenset[str]) -> Records:
        """Return the records that have one of the tags; brokers compare hashes of them only, which may collide."""
        wanted = pc.is_in(self.properties.values_of(TAGS), pa.array(sorted(tags), pa.string()))
        return self.rows(wanted.to_numpy(zero_copy_only=False))

    # Fields at fixed places -----------------------------------------------------------------------

    def _field(self, at: int | Positions, dtype: str) -> npt.NDArray[Any]:
        return numbers(self._bytes, self.starts + at, dtype)

    @cached_property
    def queue_offsets(self) -> npt.NDArray[np.int64]:
        """Queue offsets, int64."""
        return self._field(QUEUE_OFFSET_AT, ">i8")

    @cached_property
    def sys_flags(self) -> npt.NDArray[np.int32]:
        """The sysFlags, int32."""
        return self._field(SYS_FLAG_AT, ">i4")

    @cached_property
    def store_timestamps(self) -> npt.NDArray[np.int64]:
        """Store timestamps, ms since the epoch."""
        return self._field(self._store_timestamp_at, ">i8")

    @cached_property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Sizes of the whole records, bytes."""
        return self._field(0, ">i4")

    @cached_property
    def physical_offsets(self) -> npt.NDArray[np.int64]:
        """Offsets in the broker's log, bytes."""
        return self._field(PHYSICAL_OFFSET_AT, ">i8")

    @cached_property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        """Queue ids, int32."""
        return self._field(12, ">i4")

    @cached_property
    def body_crcs(self) -> npt.NDArray[np.int32]:
        """CRCs of the stored bodies, 31 bits."""
        return self._field(8, ">i4")

    # Geometry -------------------------------------------------------------------------------------

    @cached_property
    def _v6(self) -> bool:
        return bool((self.sys_flags & (BORNHOST_V6 | STOREHOST_V6)).any())

    def _host_bytes(self, bit: int) -> int | Positions:
        if not self._v6:
            return IPV4_HOST_BYTES
        return np.where(self.sys_flags & bit, IPV6_HOST_BYTES, IPV4_HOST_BYTES).astype(np.int64)

    @cached_property
    def _store_timestamp_at(self) -> int | Positions:
        return BORN_HOST_AT + self._host_bytes(BORNHOST_V6)

    @cached_property
    def _reconsume_at(self) -> int | Positions:
        return self._store_timestamp_at + 8 + self._host_bytes(STOREHOST_V6)

    @cached_property
    def body_slices(self) -> tuple[Positions, Positions]:
        """Where the stored bodies begin in ``source``, and their lengths."""
        lengths = self._field(self._reconsume_at + 12, ">i4").astype(np.int64)
        return self.starts + self._reconsume_at + 16, lengths

    @cached_property
    def _topic(self) -> tuple[Positions, Positions]:
        body_at, body_length = self.body_slices
        at = body_at + body_length
        lengths = self._bytes[at].astype(np.int64)
        wide = self._field(4, ">i4") == MESSAGE_MAGIC_V2
        if wide.any():
            lengths[wide] = numbers(self._bytes, at[wide], ">i2")
            return at + 1 + wide, lengths
        return at + 1, lengths

    @cached_property
    def _property_slices(self) -> tuple[Positions, Positions]:
        topic_at, topic_length = self._topic
        at = topic_at + topic_length
        return at + 2, numbers(self._bytes, at, ">i2").astype(np.int64)

    def _check(self) -> None:
        """Demand magic and lengths that add up, so that no later gather leaves a record."""
        sizes = self.sizes.astype(np.int64)
        ends = self.starts + sizes
        magic = self._field(4, ">i4")
        self._demand((magic == MESSAGE_MAGIC) | (magic == MESSAGE_MAGIC_V2), "has the magic of no record")
        self._demand(self.starts + self._reconsume_at + 16 < ends, "is too short for its hosts")
        at, length = self.body_slices
        self._demand((length >= 0) & (length <= sizes) & (at + length + 3 <= ends), "has a body longer than itself")
        at, length = self._topic
        self._demand((length >= 0) & (at + length + 2 <= ends), "has a topic longer than itself")
        at, length = self._property_slices
        self._demand((length >= 0) & (at + length == ends), "has lengths that do not add up to its size")

    def _demand(self, good: npt.NDArray[np.bool_], what: str) -> None:
        if not good.all():
            at = int(self.starts[int(np.argmin(good))])
            raise RecordError(f"the record at byte {at} {what}")

    def by_queue(self) -> Iterator[tuple[str, int, Records]]:
        """Topic, queue id and records of each queue, queue by queue."""
        if not len(self):
            return
        topics = self.topics().dictionary_encode()
        names: list[str] = topics.dictionary.to_pylist()
        places = topics.indices.to_numpy().astype(np.int64) << 32 | self.queue_ids.astype(np.int64)
        for place in np.unique(places).tolist():
            yield names[place >> 32], place & 0xFFFFFFFF, self.rows(places == place)

    # Columns --------------------------------------------------------------------------------------

    def column(self, name: str, kind: Any) -> Any:
        """One column as an Arrow array of type ``kind``; see :mod:`cometmq.spark.columns` for the names."""
        return _COLUMNS[name](self, kind)

    def topics(self) -> Any:
        """Topics as strings; at hardly any cost where all are the same."""
        at, lengths = self._topic
        first = self.source[int(at[0]) : int(at[0] + lengths[0])]
        if (lengths == len(first)).all() and first:
            found = windows(self._bytes, f"S{len(first)}")[at]
            if (found == first).all():
                return constant(first.decode("utf-8", "replace"), len(self))
        return text(slices(self._bytes, at, lengths))

    @cached_property
    def properties(self) -> PropertyTexts:
        """Properties, cut up when asked for."""
        return PropertyTexts(slices(self._bytes, *self._property_slices))

    def property_numbers(self, name: str, kind: Any) -> Any:
        """A property as whole numbers of an Arrow type; null where it is absent, or none that fits."""
        texts = self.properties.values_of(name)
        digits = 9 if kind == pa.int32() else 14  # milliseconds of so many end in the year 5138
        numeric = pc.match_substring_regex(texts, rf"^-?[0-9]{{1,{digits}}}$")
        return pc.if_else(numeric, texts, pa.scalar(None, pa.string())).cast(kind)

    def stored_bodies(self) -> Any:
        """Bodies as stored."""
        return slices(self._bytes, *self.body_slices)

    def packed_bodies(self) -> Any:
        """Bodies as stored where they were sent packed, null elsewhere."""
        plain = (self.sys_flags & COMPRESSED) == 0
        if plain.all():
            return pa.nulls(len(self), pa.binary())
        at, lengths = self.body_slices
        return slices(self._bytes, at, np.where(plain, 0, lengths), plain)

    def body_bytes(self, row: int) -> bytes:
        """The stored body of one record."""
        at, length = self.body_slices
        return self.source[int(at[row]) : int(at[row] + length[row])]

    def msg_ids(self) -> Any:
        """Offset ids: 32 hex digits, 56 with an IPv6 store host."""
        if self._v6:
            places = zip(self._hosts(STOREHOST_V6), self._field(PHYSICAL_OFFSET_AT, ">i8").tolist(), strict=True)
            return pa.array([offset_msg_id(host, offset) for host, offset in places], pa.string())
        raw = np.empty((len(self), 2), "V8")
        source = windows(self._bytes, "V8")
        raw[:, 0] = source[self.starts + self._store_timestamp_at + 8]
        raw[:, 1] = source[self.starts + PHYSICAL_OFFSET_AT]
        digits = _HEX[raw.view(np.uint8)]
        ends = np.arange(0, 32 * len(self) + 1, 32, dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), len(self), [None, pa.py_buffer(ends), pa.py_buffer(digits)])

    def _hosts(self, bit: int) -> list[bytes]:
        at = self.starts + (BORN_HOST_AT if bit == BORNHOST_V6 else self._store_timestamp_at + 8)
        lengths = np.broadcast_to(self._host_bytes(bit), at.shape)
        return [self.source[a : a + n] for a, n in zip(at.tolist(), lengths.tolist(), strict=True)]

    def host_texts(self, bit: int) -> Any:
        """Born or store hosts (by their IPv6 bit) as ``ip:port``; each distinct one is formatted once."""
        if self._v6:
            known: dict[bytes, str] = {}
            return pa.array([known.get(h) or known.setdefault(h, _host_text(h)) for h in self._hosts(bit)], pa.string())
        at = self.starts + (BORN_HOST_AT if bit == BORNHOST_V6 else self._store_timestamp_at + 8)
        raw = windows(self._bytes, "u8")[at]  # native order: only equality matters, and the bytes stay
        if (raw == raw[0]).all():
            return constant(_host_text(raw[:1].tobytes()), len(self))
        distinct, which = np.unique(raw, return_inverse=True)
        names = pa.array([_host_text(host.tobytes()) for host in distinct], pa.string())
        return names.take(pa.array(which))


def _host_text(stored: bytes) -> str:
    return format_address(*decode_host(stored))


def _number(at: int, dtype: str) -> Callable[[Records, Any], Any]:
    return lambda records, kind: pa.array(records._field(at, dtype), kind)


def _timestamp(milliseconds: npt.NDArray[np.int64], kind: Any) -> Any:
    micros = np.clip(milliseconds, -_MAX_MS, _MAX_MS) * 1000
    return pa.Array.from_buffers(kind, len(micros), [None, pa.py_buffer(micros)])


def _moments(milliseconds: Any, kind: Any) -> Any:
    return pc.multiply(milliseconds, 1000).cast(kind)


_TRANSACTION_TYPES: Final = pa.array([None, "PREPARED", "COMMIT", "ROLLBACK"], pa.string())
"""By the two bits of the sysFlag."""

_COLUMNS: Final[dict[str, Callable[[Records, Any], Any]]] = {
    "topic": lambda records, _: records.topics(),
    "queueId": _number(12, ">i4"),
    "queueOffset": lambda records, kind: pa.array(records.queue_offsets, kind),
    "msgId": lambda records, _: records.msg_ids(),
    "uniqKey": lambda records, _: records.properties.values_of(UNIQ_KEY),
    "tags": lambda records, _: records.properties.values_of(TAGS),
    "keys": lambda records, _: records.properties.values_of(KEYS),
    "properties": lambda records, kind: records.properties.maps(kind),
    "propertiesText": lambda records, _: records.properties.text(),
    "storedBody": lambda records, _: records.packed_bodies(),
    "flag": _number(16, ">i4"),
    "sysFlag": lambda records, kind: pa.array(records.sys_flags, kind),
    "bornTimestamp": lambda records, kind: _timestamp(records._field(BORN_TIMESTAMP_AT, ">i8"), kind),
    "bornHost": lambda records, _: records.host_texts(BORNHOST_V6),
    "storeTimestamp": lambda records, kind: _timestamp(records.store_timestamps, kind),
    "storeHost": lambda records, _: records.host_texts(STOREHOST_V6),
    "reconsumeTimes": lambda records, kind: pa.array(records._field(records._reconsume_at, ">i4"), kind),
    "preparedTransactionOffset": lambda records, kind: pa.array(records._field(records._reconsume_at + 4, ">i8"), kind),
    "physicalOffset": _number(PHYSICAL_OFFSET_AT, ">i8"),
    "storeSize": lambda records, kind: pa.array(records.sizes, kind),
    "bodyCrc": _number(8, ">i4"),
    "delayLevel": lambda records, kind: records.property_numbers(DELAY, kind),
    "deliverTimestamp": lambda records, kind: _moments(records.property_numbers(TIMER_DELIVER_MS, pa.int64()), kind),
    "transactionType": lambda records, _: _TRANSACTION_TYPES.take(pa.array((records.sys_flags >> 2) & 3)),
    "producerGroup": lambda records, _: records.properties.values_of(PGROUP),
}
"""Every column but ``brokerName``, which no record holds, and ``body``, which may have to be unpacked."""


OnBadBody = Callable[[Queue, int, str], None]
"""Told the queue and offset of a message whose body cannot be unpacked, and why."""


def refuse_bad_body(queue: Queue, offset: int, reason: str) -> None:
    """Fail.

    :raises BadBodyError: always.
    """
    raise BadBodyError(
        f"the body of the message at offset {offset} of {queue} cannot be unpacked: {reason}",
        next_step='option badBodies="null" reads it without its body; column storedBody has it as stored',
    )


def decode(
    records: Records,
    schema: Any,
    *,
    broker_name: str = "",
    on_bad_body: OnBadBody = refuse_bad_body,
    max_body_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[Any]:
    """Yield Arrow record batches of ``schema``, in order; usually one, more where unpacked bodies are large.

    :param on_bad_body: called for each body that cannot be unpacked; where it returns, the body is null.
    """
    if not len(records):
        return
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
            arrays.append(_with_unpacked(records.stored_bodies(), bodies or {}))
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
    """Unpacked bodies by row, for as many rows as fit into one batch; and how many rows those are."""
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
