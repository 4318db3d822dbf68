"""The messages that users work with: :class:`Message` for sending, and :class:`MessageExt` for received messages."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cometmq.core import CORE
from cometmq.errors import CometMQError
from cometmq.limits import MAX_DECOMPRESSED_BYTES, MAX_TTL_MS
from cometmq.message import properties as names
from cometmq.message.compression import decompress
from cometmq.message.hosts import decode_host, format_address
from cometmq.message.ids import offset_msg_id
from cometmq.message.layout import (
    BODY_AT,
    HOSTS_V6,
    RECORD,
    RECORDS,
    TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_V2_BYTES,
    record_offsets,
)
from cometmq.message.properties import KEY_SEPARATOR, decode_properties
from cometmq.message.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, RecordError, body_crc
from cometmq.message.sysflag import COMPRESSED

_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_MAX_TIME_DIGITS: Final = 14
"""Maximum length of a time in milliseconds since 1970: it is before the year 9999, the last one of Python's dates."""
_SIZE_MAGIC: Final = RECORD.struct("size", "magic")
_SIZE: Final = RECORD.struct("size").unpack_from
_MAGIC: Final = RECORD.struct("magic").unpack_from
_BODY_CRC: Final = RECORD.struct("body_crc").unpack_from
_QUEUE_ID: Final = RECORD.struct("queue_id").unpack_from
_FLAG: Final = RECORD.struct("flag").unpack_from
_QUEUE_OFFSET: Final = RECORD.struct("queue_offset").unpack_from
_PHYSICAL_OFFSET: Final = RECORD.struct("physical_offset").unpack_from
_SYS_FLAG: Final = RECORD.struct("sys_flag").unpack_from
_BORN_TIMESTAMP: Final = RECORD.struct("born_timestamp").unpack_from
_BEHIND_HOSTS: Final = {
    bits: layout.struct("store_timestamp", "store_host", "reconsume_times", "prepared_transaction_offset").unpack_from
    for bits, layout in RECORDS.items()
}
_BORN_HOST: Final = {bits: layout.struct("born_host").unpack_from for bits, layout in RECORDS.items()}
_BODY_LENGTH: Final = {bits: layout.struct("body_length").unpack_from for bits, layout in RECORDS.items()}
_RECONSUME_TIMES_AT: Final = record_offsets("reconsume_times")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_FLAGS_AND_LENGTH: Final = RECORD.struct("sys_flag", "body_length").unpack_from
"""Unpacks the sysFlag and the body length. The length is valid only if both hosts are IPv4."""
_USUAL_BODY_AT: Final = BODY_AT[0]
_UNUSUAL: Final = COMPRESSED | HOSTS_V6


class Message(msgspec.Struct):
    """One message to send.

    Set either ``body`` or ``value``; the producer's serializer converts the value to the body when the message is sent.
    ``tags`` is one tag, by which consumers filter. The message can be queried by its ``keys``. ``properties`` are the
    user's own; they must not have RocketMQ's reserved names, and empty values are not allowed. ``delay_level`` 0 means
    no delay. ``delay`` (on the broker's clock) and ``deliver_at`` (with a time zone) delay the message to the
    millisecond; they need a CometMQ or RocketMQ 5 broker. ``ttl`` is the life time of the message, from when the broker
    accepts it or from when its delay ends: after that, CometMQ's brokers do not deliver it. If ``wait_store_msg_ok`` is
    false, the broker responds before flush and replication. In topics of type PRIORITY, messages with a larger
    ``priority`` (0 or more) are popped first.
    In topics of type LITE, a message belongs to the lite topic ``lite_topic``.

    :raises ValueError: more than one of ``delay_level``, ``delay`` and ``deliver_at`` is set, ``deliver_at`` has no
        time zone, ``priority`` is not a number from 0 to 2,147,483,647, ``ttl`` is less than a millisecond or more than
        ten years, or both ``body`` and ``value`` are set.
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
    priority: int | None = None
    ttl: datetime.timedelta | None = None
    lite_topic: str | None = None

    def __post_init__(self) -> None:
        if self.value is not msgspec.UNSET and self.body:
            raise ValueError("the message has both a body and a value: set only one")
        if self.delay is not None or self.deliver_at is not None:
            self.check_delay()
        if self.priority is not None:
            self.check_priority()
        if self.ttl is not None:
            self.check_ttl()

    def check_priority(self) -> None:
        """Check that the priority is valid.

        :raises ValueError: the priority is invalid; the error says what to do.
        """
        priority = self.priority
        if priority is not None and not (type(priority) is int and 0 <= priority <= names.PRIORITY_MAX):
            raise ValueError(
                f"the priority {priority!r:.100} must be greater than or equal to 0: use a whole number from 0 to "
                f"{names.PRIORITY_MAX}"
            )

    def check_delay(self) -> None:
        """Check that the message has at most one delay, and that the delay is valid.

        :raises ValueError: the delay is invalid; the error says what to do.
        """
        if bool(self.delay_level) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise ValueError("the message has more than one of delay_level, delay and deliver_at: set only one")
        if self.deliver_at is not None and self.deliver_at.utcoffset() is None:
            raise ValueError(
                f"deliver_at {self.deliver_at.isoformat()} has no time zone: add one, for example "
                "datetime(…, tzinfo=timezone.utc), or use .astimezone() for local time"
            )

    def check_ttl(self) -> None:
        """Check the life time.

        :raises ValueError: the life time is less than a millisecond or more than ten years.
        """
        if self.ttl is not None and not _MILLISECOND <= self.ttl <= MAX_TTL_MS * _MILLISECOND:
            raise ValueError(f"the ttl {self.ttl} is not a life time: use one millisecond to ten years")

    @property
    def is_delayed(self) -> bool:
        """True if the message has a delay of any kind."""
        return bool(self.delay_level) or self.delay is not None or self.deliver_at is not None

    def all_properties(self) -> dict[str, str]:
        """Return the properties to store: the user's properties and RocketMQ's own."""
        stored = dict(self.properties)
        if self.keys:
            stored[names.KEYS] = self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys)
        if self.tags:
            stored[names.TAGS] = self.tags
        if self.lite_topic is not None:
            stored[names.LITE_TOPIC] = self.lite_topic
        if self.delay_level:
            stored[names.DELAY] = str(self.delay_level)
        if self.delay is not None:
            stored[names.TIMER_DELAY_MS] = str(round(self.delay / _MILLISECOND))
        if self.deliver_at is not None:
            stored[names.TIMER_DELIVER_MS] = str(round((self.deliver_at - _EPOCH) / _MILLISECOND))
        if self.priority is not None:
            stored[names.PRIORITY] = str(self.priority)
        if self.ttl is not None:
            stored[names.TTL_MS] = str(self.ttl // _MILLISECOND)
        stored[names.WAIT] = "true" if self.wait_store_msg_ok else "false"
        return stored


class MessageExt(msgspec.Struct, eq=False, gc=False):
    """A received message, decoded on demand from the body of its pull response.

    Fields are decoded on first access, so a consumer that reads only bodies does not pay for other fields. A message
    keeps the entire response body in memory.
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
        """Size of the stored record in bytes."""
        return int(_SIZE(self._data, self._at)[0])

    @property
    def body_crc(self) -> int:
        """The CRC32 of the stored body, reduced to 31 bits."""
        return int(_BODY_CRC(self._data, self._at)[0])

    @property
    def queue_id(self) -> int:
        """The id of the message's queue."""
        return int(_QUEUE_ID(self._data, self._at)[0])

    @property
    def flag(self) -> int:
        """The producer's flag, which RocketMQ does not interpret."""
        return int(_FLAG(self._data, self._at)[0])

    @property
    def queue_offset(self) -> int:
        """The message's offset in its queue."""
        return int(_QUEUE_OFFSET(self._data, self._at)[0])

    @property
    def commit_log_offset(self) -> int:
        """The message's offset in the broker's log, in bytes."""
        return int(_PHYSICAL_OFFSET(self._data, self._at)[0])

    @property
    def sys_flag(self) -> int:
        """The flag bits; see :mod:`cometmq.message.sysflag`."""
        return int(_SYS_FLAG(self._data, self._at)[0])

    @property
    def born_timestamp(self) -> int:
        """The time at which the producer created the message, in milliseconds since 1970."""
        return int(_BORN_TIMESTAMP(self._data, self._at)[0])

    @property
    def store_timestamp(self) -> int:
        """The time at which the broker stored the message, in milliseconds since 1970."""
        return int(self._behind_born_host()[0])

    @property
    def born_host(self) -> str:
        """The producer's address as ``ip:port``."""
        return format_address(*decode_host(_BORN_HOST[self._hosts()](self._data, self._at)[0]))

    @property
    def store_host(self) -> str:
        """The broker's address as ``ip:port``."""
        return format_address(*decode_host(self._behind_born_host()[1]))

    @property
    def msg_id(self) -> str:
        """The message id assigned by the client (UNIQ_KEY), or the offset id if there is none."""
        return self.properties.get(names.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The message id assigned by the broker: its store host and log offset in hex."""
        return offset_msg_id(self._behind_born_host()[1], self.commit_log_offset)

    @property
    def reconsume_times(self) -> int:
        """The number of failed attempts to consume the message."""
        return int(self._behind_born_host()[2])

    @property
    def priority(self) -> int | None:
        """The message's priority, or ``None`` if it has none; a larger number is more urgent."""
        priority = names.read_priority(self.properties.get(names.PRIORITY))
        return None if priority == names.NO_PRIORITY else priority

    @property
    def prepared_transaction_offset(self) -> int:
        """For a committed transactional message, the log offset of its half message; otherwise 0."""
        return int(self._behind_born_host()[3])

    # --- variable fields ------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body, decompressed if the producer compressed it.

        :raises DecompressionError: the body is damaged or larger than the limit.
        """
        data, at = self._data, self._at
        flags, length = _FLAGS_AND_LENGTH(data, at)
        if not flags & _UNUSUAL:  # fast path: the layout of nearly every message
            body_at = at + _USUAL_BODY_AT
            return data[body_at : body_at + length]
        return decompress(self.stored_body, flags, MAX_DECOMPRESSED_BYTES)

    @property
    def value(self) -> Any:
        """The body, converted by the consumer's deserializer.

        :raises CometMQError: the consumer has no deserializer, or the deserializer failed.
        """
        raise CometMQError(
            f"message {self.msg_id} of topic {self.topic} has no value, because its consumer has no deserializer",
            next_step="create the consumer with deserializer=…, or use body",
        )

    @property
    def stored_body(self) -> bytes:
        """The body in its stored form, which may be compressed."""
        self._locate()
        return self._data[self._body_at : self._tail_at]

    @property
    def topic(self) -> str:
        """The message's topic; for a retried message, the original topic, as in RocketMQ's consumers."""
        return self.properties.get(names.RETRY_TOPIC) or self.stored_topic

    @property
    def stored_topic(self) -> str:
        """The topic in the stored record, which may be a retry topic."""
        start, end = self._topic_span()
        return self._data[start:end].decode()

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the message, by name."""
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
        """The message's tag, if it has one."""
        return self.properties.get(names.TAGS)

    @property
    def lite_topic(self) -> str | None:
        """The lite topic to which the message belongs, if any."""
        return self.properties.get(names.LITE_TOPIC)

    @property
    def keys(self) -> tuple[str, ...]:
        """The message's keys, split at spaces as in a broker's index; other white space is part of a key."""
        return tuple([key for key in self.properties.get(names.KEYS, "").split(KEY_SEPARATOR) if key])

    @property
    def expires_at(self) -> datetime.datetime | None:
        """The end of the message's life in UTC, after which brokers do not deliver it; ``None`` for no life time."""
        text = self.properties.get(names.EXPIRES_MS, "")
        if not (text.isascii() and text.isdigit() and len(text) <= _MAX_TIME_DIGITS):
            return None
        return _EPOCH + int(text) * _MILLISECOND

    @property
    def place(self) -> tuple[bytes, int]:
        """The pull response's body and the record's position in it."""
        return self._data, self._at

    def with_reconsume_times(self, times: int) -> MessageExt:
        """Return a copy of the message with a different reconsume count."""
        record = bytearray(self._record())
        _INT.pack_into(record, _RECONSUME_TIMES_AT[self._hosts()], times)
        return MessageExt(bytes(record), 0, self.broker_name)

    def check(self) -> None:
        """Check the body against its CRC.

        :raises RecordError: the CRC does not match.
        """
        if body_crc(self.stored_body) != self.body_crc:
            raise RecordError(f"the body of {self.offset_msg_id} does not match its CRC")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the message's record, not the entire pull response."""
        return MessageExt, (self._record(), 0, self.broker_name)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"msg_id={self.msg_id!r}, body={len(self.stored_body)} bytes)"
        )

    # --- positions in the record -----------------------------------------------------------------------

    def _record(self) -> bytes:
        return self._data[self._at : self._at + self.store_size]

    def _hosts(self) -> int:
        return self.sys_flag & HOSTS_V6

    def _behind_born_host(self) -> tuple[int, bytes, int, int]:
        fields: tuple[int, bytes, int, int] = _BEHIND_HOSTS[self._hosts()](self._data, self._at)
        return fields

    def _locate(self) -> None:
        if not self._body_at:
            hosts = self._hosts()
            self._body_at = self._at + BODY_AT[hosts]
            self._tail_at = self._body_at + _BODY_LENGTH[hosts](self._data, self._at)[0]

    def _topic_span(self) -> tuple[int, int]:
        self._locate()
        if _MAGIC(self._data, self._at)[0] == MESSAGE_MAGIC_V2:
            start = self._tail_at + TOPIC_LENGTH_V2_BYTES
            return start, start + _SHORT.unpack_from(self._data, self._tail_at)[0]
        start = self._tail_at + TOPIC_LENGTH_BYTES
        return start, start + self._data[self._tail_at]


def split_records(data: bytes, broker_name: str = "") -> list[MessageExt]:
    """Return the messages in a pull response. Their sizes and magics are checked; all else is checked on access.

    :raises RecordError: the body is not a sequence of complete records.
    """
    return [MessageExt(data, at, broker_name) for at in record_starts(data)]


def record_starts(data: bytes) -> list[int]:
    """Return the position of each record in a pull response.

    :raises RecordError: the body is not a sequence of complete records.
    """
    starts: list[int] | None = None if CORE is None else CORE.message_starts(data)
    return _starts_of(data) if starts is None else starts


def _starts_of(data: bytes) -> list[int]:
    starts = []
    at, end = 0, len(data)
    while at < end:
        if end - at < MIN_RECORD_BYTES:
            raise RecordError(f"{end - at} bytes are left over after the last record")
        size, magic = _SIZE_MAGIC.unpack_from(data, at)
        if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) or not MIN_RECORD_BYTES <= size <= end - at:
            raise RecordError(f"byte {at} of the pull response is not the start of a record")
        starts.append(at)
        at += size
    return starts
