"""Messages as users see them: :class:`Message` to send, :class:`MessageExt` as received."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cometmq.core import CORE
from cometmq.errors import CometMQError
from cometmq.limits import MAX_DECOMPRESSED_BYTES
from cometmq.message import properties as names
from cometmq.message.compression import decompress
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES, decode_host, format_address
from cometmq.message.ids import offset_msg_id
from cometmq.message.properties import KEY_SEPARATOR, decode_properties
from cometmq.message.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, RecordError, body_crc
from cometmq.message.sysflag import BORNHOST_V6, COMPRESSED, STOREHOST_V6

_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_SIZE_MAGIC: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">h")
_BODY_HEAD: Final = struct.Struct(">iqi")
_FLAGS_AND_LENGTH: Final = struct.Struct(">i44xi")
"""SysFlag and, where both hosts are IPv4, the length of the body."""
_UNUSUAL: Final = COMPRESSED | BORNHOST_V6 | STOREHOST_V6


class Message(msgspec.Struct):
    """One message to send.

    Give either ``body`` or ``value``, of which the producer's serializer makes the body when the message is sent.
    ``tags`` is one tag, which consumers filter by; ``keys`` are what the message can be found by later;
    ``properties`` are the user's own; they may not use RocketMQ's reserved names, and none is empty. ``delay_level`` 0
    means now; ``delay``, by the broker's clock, or ``deliver_at``, with a time zone, keep the message until any
    time, to the millisecond, at brokers of CometMQ or RocketMQ 5. With ``wait_store_msg_ok`` false the
    broker answers before flush and replication.

    :raises ValueError: more than one of ``delay_level``, ``delay`` and ``deliver_at``, or no time zone; both ``body``
        and ``value``.
    """

    topic: str
    body: bytes = b""
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: dict[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    wait_store_msg_ok: bool = True
    delay: datetime.timedelta | None = None
    deliver_at: datetime.datetime | None = None
    value: Any = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.value is not msgspec.UNSET and self.body:
            raise ValueError("the message has a body and a value: give it the one that you mean")
        if self.delay is not None or self.deliver_at is not None:
            self.check_delay()

    def check_delay(self) -> None:
        """Check that the message has at most one delay, and a valid one.

        :raises ValueError: what is wrong, and what to do.
        """
        if bool(self.delay_level) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise ValueError(
                "the message has more than one of delay_level, delay and deliver_at: give it the one that you mean"
            )
        if self.deliver_at is not None and self.deliver_at.utcoffset() is None:
            raise ValueError(
                f"deliver_at {self.deliver_at.isoformat()} has no time zone: add one, as in "
                "datetime(…, tzinfo=timezone.utc), or use .astimezone() for local time"
            )

    @property
    def is_delayed(self) -> bool:
        """The message has a delay of any kind."""
        return bool(self.delay_level) or self.delay is not None or self.deliver_at is not None

    def all_properties(self) -> dict[str, str]:
        """The stored properties: the user's and RocketMQ's own."""
        stored = dict(self.properties)
        if self.keys:
            stored[names.KEYS] = self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys)
        if self.tags:
            stored[names.TAGS] = self.tags
        if self.delay_level:
            stored[names.DELAY] = str(self.delay_level)
        if self.delay is not None:
            stored[names.TIMER_DELAY_MS] = str(round(self.delay / _MILLISECOND))
        if self.deliver_at is not None:
            stored[names.TIMER_DELIVER_MS] = str(round((self.deliver_at - _EPOCH) / _MILLISECOND))
        stored[names.WAIT] = "true" if self.wait_store_msg_ok else "false"
        return stored


class MessageExt(msgspec.Struct, eq=False, gc=False):
    """One received message: a view of the bytes of its pull.

    Nothing is decoded before it is asked for, so that a consumer which looks at bodies only pays for
    bodies only. It keeps the bytes of its pull alive.
    """

    _data: bytes
    _at: int
    broker_name: str = ""
    _body_at: int = 0
    _tail_at: int = 0
    _properties: dict[str, str] | None = None

    # --- fixed fields ---------------------------------------------------------------------------

    @property
    def store_size(self) -> int:
        """Bytes of the stored record."""
        return int(_INT.unpack_from(self._data, self._at)[0])

    @property
    def body_crc(self) -> int:
        """CRC32 of the stored body, 31 bits."""
        return int(_INT.unpack_from(self._data, self._at + 8)[0])

    @property
    def queue_id(self) -> int:
        """The id of its queue."""
        return int(_INT.unpack_from(self._data, self._at + 12)[0])

    @property
    def flag(self) -> int:
        """The producer's own flag."""
        return int(_INT.unpack_from(self._data, self._at + 16)[0])

    @property
    def queue_offset(self) -> int:
        """Its offset in its queue."""
        return int(_LONG.unpack_from(self._data, self._at + 20)[0])

    @property
    def commit_log_offset(self) -> int:
        """Its offset in the broker's log, in bytes."""
        return int(_LONG.unpack_from(self._data, self._at + 28)[0])

    @property
    def sys_flag(self) -> int:
        """See :mod:`cometmq.message.sysflag`."""
        return int(_INT.unpack_from(self._data, self._at + 36)[0])

    @property
    def born_timestamp(self) -> int:
        """Time of its creation by the producer, ms since 1970."""
        return int(_LONG.unpack_from(self._data, self._at + 40)[0])

    @property
    def store_timestamp(self) -> int:
        """Time of its storage by the broker, ms since 1970."""
        return int(_LONG.unpack_from(self._data, self._store_at())[0])

    @property
    def born_host(self) -> str:
        """``ip:port`` of the producer."""
        return format_address(*decode_host(self._data[self._at + 48 : self._store_at()]))

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker."""
        return format_address(*decode_host(self._store_host()))

    @property
    def msg_id(self) -> str:
        """The client's id (UNIQ_KEY), or the offset id of a message that has none."""
        return self.properties.get(names.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id: store host and log offset in hex."""
        return offset_msg_id(self._store_host(), self.commit_log_offset)

    @property
    def reconsume_times(self) -> int:
        """Number of failed consumptions."""
        return int(_INT.unpack_from(self._data, self._fixed_at())[0])

    @property
    def prepared_transaction_offset(self) -> int:
        """Log offset of its half message, 0 for none."""
        return int(_LONG.unpack_from(self._data, self._fixed_at() + 4)[0])

    # --- variable fields ------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body, decompressed if the producer compressed it.

        :raises DecompressionError: it is damaged or larger than the limit.
        """
        data, at = self._data, self._at
        flags, length = _FLAGS_AND_LENGTH.unpack_from(data, at + 36)
        if not flags & _UNUSUAL:  # the layout of nearly every message, without looking further
            body_at = at + 88
            return data[body_at : body_at + length]
        return decompress(self.stored_body, flags, MAX_DECOMPRESSED_BYTES)

    @property
    def value(self) -> Any:
        """The body as the consumer's deserializer reads it.

        :raises CometMQError: the consumer has no deserializer, or it failed.
        """
        raise CometMQError(
            f"message {self.msg_id} of topic {self.topic} has no value, since its consumer has no deserializer",
            next_step="make the consumer with deserializer=…, or use body",
        )

    @property
    def stored_body(self) -> bytes:
        """The body as stored."""
        self._locate()
        return self._data[self._body_at : self._tail_at]

    @property
    def topic(self) -> str:
        """The topic; for a retried message the original one, as in RocketMQ's consumers."""
        return self.properties.get(names.RETRY_TOPIC) or self.stored_topic

    @property
    def stored_topic(self) -> str:
        """The topic of the record."""
        start, end = self._topic_span()
        return self._data[start:end].decode()

    @property
    def properties(self) -> dict[str, str]:
        """All properties."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_text)
        return self._properties

    @property
    def properties_text(self) -> str:
        """All properties in their stored form."""
        _, at = self._topic_span()
        return self._data[at + 2 : at + 2 + _SHORT.unpack_from(self._data, at)[0]].decode(errors="replace")

    @property
    def tags(self) -> str | None:
        """The tag, if any."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys: what stands between blanks, as in a broker's index; other white space belongs to a key."""
        return tuple([key for key in self.properties.get(names.KEYS, "").split(KEY_SEPARATOR) if key])

    @property
    def place(self) -> tuple[bytes, int]:
        """The bytes of its pull, and where its record begins in them."""
        return self._data, self._at

    def with_reconsume_times(self, times: int) -> MessageExt:
        """Return a copy with its own bytes and another number of failures."""
        record = bytearray(self._record())
        _INT.pack_into(record, self._fixed_at() - self._at, times)
        return MessageExt(bytes(record), 0, self.broker_name)

    def check(self) -> None:
        """Check the body against its CRC.

        :raises RecordError: it does not match.
        """
        if body_crc(self.stored_body) != self.body_crc:
            raise RecordError(f"the body of {self.offset_msg_id} does not match its CRC")

    def __reduce__(self) -> tuple[Any, ...]:
        """Hand on the message alone, without the other bytes of its pull."""
        return MessageExt, (self._record(), 0, self.broker_name)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"msg_id={self.msg_id!r}, body={len(self.stored_body)} bytes)"
        )

    # --- where things are -----------------------------------------------------------------------

    def _record(self) -> bytes:
        return self._data[self._at : self._at + self.store_size]

    def _store_at(self) -> int:
        return self._at + 48 + (IPV6_HOST_BYTES if self.sys_flag & BORNHOST_V6 else IPV4_HOST_BYTES)

    def _fixed_at(self) -> int:
        return self._store_at() + 8 + (IPV6_HOST_BYTES if self.sys_flag & STOREHOST_V6 else IPV4_HOST_BYTES)

    def _store_host(self) -> bytes:
        return self._data[self._store_at() + 8 : self._fixed_at()]

    def _locate(self) -> None:
        if not self._body_at:
            fixed_at = self._fixed_at()
            self._body_at = fixed_at + 16
            self._tail_at = self._body_at + _BODY_HEAD.unpack_from(self._data, fixed_at)[2]

    def _topic_span(self) -> tuple[int, int]:
        self._locate()
        if _INT.unpack_from(self._data, self._at + 4)[0] == MESSAGE_MAGIC_V2:
            start = self._tail_at + 2
            return start, start + _SHORT.unpack_from(self._data, self._tail_at)[0]
        start = self._tail_at + 1
        return start, start + self._data[self._tail_at]


def split_records(data: bytes, broker_name: str = "") -> list[MessageExt]:
    """Return the messages of a pull's body; sizes and magics are checked now, the rest when it is read.

    :raises RecordError: the body is not a run of whole records.
    """
    starts = None if CORE is None else CORE.message_starts(data)
    if starts is None:
        starts = _starts_of(data)
    return [MessageExt(data, at, broker_name) for at in starts]


def _starts_of(data: bytes) -> list[int]:
    starts = []
    at, end = 0, len(data)
    while at < end:
        if end - at < MIN_RECORD_BYTES:
            raise RecordError(f"{end - at} bytes are left over after the last record")
        size, magic = _SIZE_MAGIC.unpack_from(data, at)
        if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) or not MIN_RECORD_BYTES <= size <= end - at:
            raise RecordError(f"no record begins at byte {at} of the pull's body")
        starts.append(at)
        at += size
    return starts
