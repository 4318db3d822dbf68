"""Ids and hashes: offset ids, unique keys, recall handles, tag codes and index key hashes.

Rules: ``MessageDecoder.createMessageId``, ``MessageClientIDSetter``, ``String.hashCode``,
``MessageExtBrokerInner.tagsString2tagsCode``, ``IndexFile.indexKeyHashMethod``.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import itertools
import os
import struct
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Self

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.limits import MAX_RECALL_HANDLE_CHARS
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES, decode_host, encode_host, own_ip

_MASK: Final = 0xFFFFFFFF
_MULTIPLIER: Final = 2862933555777941757
_LONG_MASK: Final = 2**64 - 1


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode()``: Σ s[i]·31^(n−1−i) over UTF-16 units, as a signed int32."""
    units: Sequence[int]
    if text.isascii():
        units = text.encode()
    else:
        units = struct.unpack(f"<{(len(raw := text.encode('utf-16-le', 'surrogatepass')) // 2)}H", raw)
    code = 0
    for unit in units:
        code = (code * 31 + unit) & _MASK
    return code - 0x100000000 if code & 0x80000000 else code


def consistent_hash(value: int, buckets: int) -> int:
    """Return Guava's ``Hashing.consistentHash``, with which the queue of a message group or lite topic is chosen."""
    state = value & _LONG_MASK
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _LONG_MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / 2.0**31))
        if not 0 <= following < buckets:
            return candidate
        candidate = following


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return a tag's code in a ConsumeQueue: its Java hash, or 0 if the tag is empty."""
    return java_hash(tag) if tag else 0


def index_hash(code: int) -> int:
    """Return a Java hash in IndexFile's form: its absolute value, or 0 for ``Integer.MIN_VALUE``."""
    return 0 if code == -0x80000000 else abs(code)


def offset_msg_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of a stored message: its store host (8 or 20 bytes) and log offset (8 bytes) in upper-case hex."""
    return f"{store_host.hex().upper()}{physical_offset:016X}"


def decode_offset_msg_id(msg_id: str) -> tuple[str, int, int]:
    """Decode an offset id of 32 or 56 hex characters to ``(ip, port, physical offset)``.

    :raises ValueError: the id is malformed.
    """
    try:
        raw = bytes.fromhex(msg_id)
    except ValueError as error:
        raise ValueError(f"invalid offset message id: {msg_id!r}") from error
    if len(raw) not in (IPV4_HOST_BYTES + 8, IPV6_HOST_BYTES + 8) or len(msg_id) != 2 * len(raw):
        raise ValueError(f"an offset message id must have 32 or 56 hex digits: {msg_id!r}")
    ip, port = decode_host(raw[:-8])
    if not 0 <= port <= 65_535:
        raise ValueError(f"invalid port {port} in offset message id {msg_id!r}")
    return ip, port, struct.unpack(">q", raw[-8:])[0]


class UniqIdGenerator:
    """Generates client message ids (UNIQ_KEY) of 32 hex digits, or of 56 if the host has only IPv6.

    Layout: ip (4 or 16), low 16 bits of the pid (2), a number for this generator (4; in Java the hash of the class
    loader), milliseconds since the first of the month (4), a counter (2). The counter grows by one for each id, so at
    most 65,536 ids per millisecond are distinct.

    Threads may share a generator. Each thread gets different numbers from the counter, so that ids differ even if
    another thread has just replaced the time in the layout.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, ip: bytes | None = None) -> None:
        self._clock = clock
        self._ip = encode_host(own_ip(), 0)[:-4] if ip is None else ip
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._pid = -1
        self._prefix = ""
        self._month_start_ms = 0
        self._next_month_ms = 0
        self._last_ms = -1
        self._stamp = ""

    def next(self) -> str:
        """Return the next id."""
        now = self._clock.now_ms()
        if now != self._last_ms:
            self._turn(now)
        return f"{self._stamp}{next(self._numbers) & 0xFFFF:04X}"

    def many(self, count: int) -> list[str]:
        """Return the next ``count`` ids."""
        now = self._clock.now_ms()
        if now != self._last_ms:
            self._turn(now)
        stamp = self._stamp
        return [f"{stamp}{number & 0xFFFF:04X}" for number in itertools.islice(self._numbers, count)]

    def _turn(self, now: int) -> None:
        """Build the part of the ids that precedes the counter, for a new millisecond."""
        with self._lock:
            if os.getpid() != self._pid:
                self._pid = os.getpid()
                head = self._ip + struct.pack(">H", self._pid & 0xFFFF) + os.urandom(4)
                self._prefix = head.hex().upper()
            if not self._month_start_ms <= now < self._next_month_ms:
                start = datetime.datetime.fromtimestamp(now / 1000).astimezone()
                start = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
                after = (start + datetime.timedelta(days=32)).replace(day=1)
                self._month_start_ms = int(start.timestamp() * 1000)
                self._next_month_ms = int(after.timestamp() * 1000)
            self._stamp = f"{self._prefix}{(now - self._month_start_ms) & _MASK:08X}"
            self._last_ms = now  # last: other threads read the stamp without the lock


_HANDLE_VERSION: Final = "v1"


class RecallHandleError(CometMQError):
    """A recall handle is invalid."""


class RecallHandle(msgspec.Struct, frozen=True):
    """The handle of a delayed message, returned when the message is sent (``RecallMessageHandle``).

    It is ``v1 <topic> <brokerName> <due time + 1> <unique key>`` in URL-safe base64.
    """

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        """Encode the recall handle as text."""
        # RocketMQ's broker uses whole seconds and adds one, so that rounding down finds the same second.
        text = f"{_HANDLE_VERSION} {self.topic} {self.broker_name} {self.due_ms + 1} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Decode a handle.

        :raises RecallHandleError: the handle is invalid.
        """
        try:
            if len(text) > MAX_RECALL_HANDLE_CHARS:
                raise ValueError(f"the text is longer than {MAX_RECALL_HANDLE_CHARS} characters")
            raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
            version, topic, rest = raw.decode().split(" ", 2)
            broker_name, due_ms, unique_key = rest.rsplit(" ", 2)  # the name of a broker may have blanks
            if version != _HANDLE_VERSION:
                raise ValueError(f"its version is not {_HANDLE_VERSION}")
            if not (due_ms.isascii() and due_ms.isdigit() and len(due_ms) < 19):
                raise ValueError("its time is missing")
        except (ValueError, binascii.Error, UnicodeError) as error:
            raise RecallHandleError(
                f"recall handle is invalid: {error}", next_step="use the handle returned by the send"
            ) from error
        return cls(topic, broker_name, int(due_ms) - 1, unique_key)
