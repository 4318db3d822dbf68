"""Messages whose life times have ended: pulls and pops pass over them, or make them dead letters.

Theory of operation. A read of a topic with life times looks at the end of each message's life
(:mod:`cometmq.broker.turn.life_time`) and leaves out those that have ended, as a filter does: the group's offset moves
on behind them. If the attribute ``expired.messages`` of the message's own topic asks for dead letters, the read first
ends before the message. A dead letter is stored, with the message's place in the log among its properties. The read is
repeated when that is done, and then passes over the message.

Invariants.

* A group's offset moves behind an expired message of such a topic only when its dead letter is as durable as a send.
* A living message is never left out.

Fault model. Reads are repeated: after a restart, or when a consumer did not commit its offset. The places of a group's
newest ``MAX_KNOWN_EXPIRED`` dead letters show which messages already have one. They are read from the log once, so a
crash at any moment leaves one dead letter for each message. A consumer that goes back further than that gets a second
one. While dead letters cannot be stored (a full disk, or a slave answers), groups wait at the first message that needs
one.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from cometmq.broker.config import SLAVE
from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import EXPIRED_AGAIN_SECONDS, MAX_GROUPS_WITH_EXPIRED, MAX_KNOWN_EXPIRED
from cometmq.broker.tables.topic_attributes import has_life_times, makes_dead_letters
from cometmq.broker.turn.inner_message import InnerMessage, Stored, inner_message
from cometmq.broker.turn.targets import RefusedError
from cometmq.filter.records import properties_of, property_reader
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.layout import RECORD
from cometmq.message.names import dlq_topic, is_system_group
from cometmq.message.pop_info import original_topic
from cometmq.message.properties import (
    DEAD_REASON,
    EXPIRED,
    EXPIRED_FROM,
    EXPIRES_MS,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    join_properties,
    property_mark,
)
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.remoting.codes import ResponseCode
from cometmq.store.message_store import GetMessageStatus, GetResult

_log = logging.getLogger(__name__)

_MARK: Final = property_mark(EXPIRES_MS).encode()
_SIZE_AND_PLACES: Final = RECORD.struct("size", "queue_offset", "physical_offset").unpack_from
_IDENTITY: Final = RECORD.struct("body_crc", "born_timestamp").unpack_from
_WAITS: Final = (-1, -1)
"""Stands for a dead letter that is not stored yet."""
_OF_LETTERS: Final[tuple[str, ...]] = (RETRY_TOPIC, ORIGIN_MESSAGE_ID, DEAD_REASON, EXPIRED_FROM)
_MAX_DIGITS: Final = 18
_read_end: Final = property_reader(EXPIRES_MS)
_read_topic: Final = property_reader(RETRY_TOPIC)
_read_origin: Final = property_reader(EXPIRED_FROM)

Again = Callable[[], None]
"""Repeats a read, once the dead letters are stored that it waits for."""


class _Expired(msgspec.Struct, frozen=True, gc=False):
    """An expired message in the result of a read."""

    chunk: int
    """Index of its piece in the result, and the part of the piece that it occupies."""
    start: int
    end: int
    queue_offset: int
    physical_offset: int
    identity: tuple[int, int]
    """The CRC of its body, and the time at which it was sent; its dead letter has the same."""
    topic: str | None
    """The topic to which it was sent, if it is a retry."""


class ExpiredMessages:
    """Passes over expired messages for the readers of a broker."""

    def __init__(self, broker: BrokerContext) -> None:
        self._live = broker.live
        self._topics = broker.topics
        self._failed = broker.failed
        self._store = broker.store
        self._turn = broker.turn
        self._clock = broker.clock
        self._traffic = broker.stats.traffic
        self._dead: OrderedDict[str, dict[int, tuple[int, int]]] = OrderedDict()
        """For each group: the log offsets of expired messages, and the identity of their dead letters, or ``_WAITS``.
        A producer could put the log offset of another message into a property; the identity shows it."""
        self._is_refused = False

    def may_expire(self, topic: str, group: str) -> bool:
        """Return whether a topic's messages may have life times that count for a group; they do not for tools."""
        config = self._topics.get(topic)
        return config is not None and has_life_times(config.attributes) and not is_system_group(group)

    def living(self, result: GetResult) -> GetResult:
        """Return the living messages of a read, without effect on any group."""
        return _without(result, self._find_expired(result))

    def pass_over(self, result: GetResult, topic: str, group: str, again: Again) -> GetResult:
        """Return the living messages of a group's read, up to the first one that must become a dead letter before.

        The result has the status NO_MATCHED_MESSAGE if all messages were passed over, and OFFSET_FOUND_NULL if the
        first one must become a dead letter.

        :param again: called when the read can be repeated after dead letters were stored.
        """
        expired = self._find_expired(result)
        if not expired:
            return result
        topic = original_topic(topic, group)
        passed: dict[str, int] = {}
        wait_for: _Expired | None = None
        missing: list[_Expired] = []
        dead: dict[int, tuple[int, int]] | None = None
        for one in expired:
            origin = one.topic or topic
            if self._makes_dead_letters(origin):
                dead = self._known_dead(group) if dead is None else dead
                known = dead.get(one.physical_offset)
                if known != one.identity:
                    wait_for = wait_for or one
                    if known != _WAITS:
                        missing.append(one)
            if wait_for is None:
                passed[origin] = passed.get(origin, 0) + 1
        if missing:
            self._store_dead_letters(result, missing, topic, group, again)
        if self._traffic is not None:
            for origin, messages in passed.items():
                self._traffic.expired(origin, group, messages)
        return _without(result, expired, wait_for)

    def _makes_dead_letters(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and makes_dead_letters(config.attributes)

    def _find_expired(self, result: GetResult) -> list[_Expired]:
        now_ms = self._clock.now_ms()
        found: list[_Expired] = []
        for number, chunk in enumerate(result.chunks):
            if _MARK not in (chunk if isinstance(chunk, bytes) else bytes(chunk)):
                continue
            view = memoryview(chunk)
            start = 0
            while start < len(view):
                size, offset, physical_offset = _SIZE_AND_PLACES(view, start)
                properties = _properties(view[start : start + size])
                end_ms = _number(_read_end(properties)) if _MARK in properties else None
                if end_ms is not None and end_ms <= now_ms:
                    identity = _IDENTITY(view, start)
                    found.append(
                        _Expired(
                            *(number, start, start + size, offset, physical_offset, identity, _read_topic(properties))
                        )
                    )
                start += size
        return found

    # --- dead letters -----------------------------------------------------------------------------
    def _known_dead(self, group: str) -> dict[int, tuple[int, int]]:
        """Return the log offsets of a group's expired messages that have dead letters, among the newest ones."""
        known = self._dead.get(group)
        if known is None:
            known = self._dead[group] = dict(self._read_dead(group))
            if len(self._dead) > MAX_GROUPS_WITH_EXPIRED:
                self._dead.popitem(last=False)
        self._dead.move_to_end(group)
        return known

    def _read_dead(self, group: str) -> Iterator[tuple[int, tuple[int, int]]]:
        name = dlq_topic(group)
        if self._topics.get(name) is None:
            return
        queue = self._store.queue(name, 0)
        end = queue.max_offset()
        for offset in range(max(queue.min_offset(), end - MAX_KNOWN_EXPIRED), end):
            unit = queue.unit(offset)
            view = None if unit is None else self._store.view(unit[0], unit[1])
            origin = None if view is None else _number(_read_origin(_properties(view)))
            if origin is not None and view is not None:
                yield origin, _IDENTITY(view)

    def _store_dead_letters(
        self, result: GetResult, missing: list[_Expired], topic: str, group: str, again: Again
    ) -> None:
        """Store the dead letters of expired messages; call ``again`` then, or after a pause if they are not stored."""
        if self._live.current.broker_role == SLAVE:
            return
        dead = self._known_dead(group)
        dead.update((one.physical_offset, _WAITS) for one in missing)
        for place in list(islice(dead, max(len(dead) - MAX_KNOWN_EXPIRED, 0))):
            del dead[place]
        stored = partial(self._stored, group, topic, missing, again)
        try:
            name = self._failed.dead_letter_topic(group).topic_name
            letters = []
            for one in missing:
                record = decode_record(memoryview(result.chunks[one.chunk])[one.start : one.end], check_crc=False)
                letters.append(expired_letter(record, name, one.topic or topic))
            self._turn.put_together(letters, stored)
        except RefusedError as refused:
            if refused.code == ResponseCode.MESSAGE_ILLEGAL and len(missing) > 1:
                for one in missing:
                    self._store_dead_letters(result, [one], topic, group, again)
            elif refused.code == ResponseCode.MESSAGE_ILLEGAL:
                _log.error(
                    "an expired message of %s cannot become a dead letter and is passed over: %s", topic, refused
                )
                dead[missing[0].physical_offset] = missing[0].identity
                self._clock.call_later(0, again)
            else:
                stored(refused)

    def _stored(
        self, group: str, topic: str, letters: list[_Expired], again: Again, outcome: Stored | RefusedError
    ) -> None:
        dead = self._known_dead(group)
        if isinstance(outcome, RefusedError):
            for one in letters:
                dead.pop(one.physical_offset, None)
            if not self._is_refused:
                _log.warning("cannot make dead letters of expired messages of %s; will retry: %s", topic, outcome)
            self._is_refused = True
            self._clock.call_later(EXPIRED_AGAIN_SECONDS, again)
            return
        self._is_refused = False
        dead.update((one.physical_offset, one.identity) for one in letters)
        if self._traffic is not None:
            for one in letters:
                self._traffic.died(one.topic or topic, group)
        again()


def _without(result: GetResult, expired: list[_Expired], until: _Expired | None = None) -> GetResult:
    """Return a result without expired messages, and without the messages from ``until`` on."""
    if not expired:
        return result
    chunks: list[bytes | memoryview] = []
    number = at = 0
    for one in expired:
        while number < one.chunk:
            _add(chunks, result.chunks[number], at, len(result.chunks[number]))
            number, at = number + 1, 0
        _add(chunks, result.chunks[number], at, one.start)
        at = one.end
        if one is until:
            break
    else:
        while number < len(result.chunks):
            _add(chunks, result.chunks[number], at, len(result.chunks[number]))
            number, at = number + 1, 0
    count = sum(map(_records_in, chunks))
    without = GetMessageStatus.NO_MATCHED_MESSAGE if until is None else GetMessageStatus.OFFSET_FOUND_NULL
    return msgspec.structs.replace(
        result,
        status=GetMessageStatus.FOUND if count else without,
        next_begin_offset=result.next_begin_offset if until is None else until.queue_offset,
        chunks=chunks,
        count=count,
        size=sum(map(len, chunks)),
    )


def _add(chunks: list[bytes | memoryview], chunk: bytes | memoryview, start: int, end: int) -> None:
    if start < end:
        chunks.append(memoryview(chunk)[start:end])


def _records_in(chunk: bytes | memoryview) -> int:
    count = at = 0
    while at < len(chunk):
        at += _SIZE_AND_PLACES(chunk, at)[0]
        count += 1
    return count


def _properties(record: memoryview) -> bytes:
    """Return the encoded properties of a record, or nothing if the record is damaged."""
    try:
        return properties_of(record)
    except (RecordError, struct.error, IndexError):
        return b""


def end_of_life(record: memoryview) -> int | None:
    """Return when the life of a message ends, in milliseconds since 1970, or ``None`` if it has no life time."""
    properties = _properties(record)
    return _number(_read_end(properties)) if _MARK in properties else None


def _number(text: str | None) -> int | None:
    """Return the number in a property, or ``None`` if a client wrote something else there."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def expired_letter(record: StoredRecord, name: str, topic: str) -> InnerMessage:
    """Return the dead letter for an expired message, which says why it is one and where the message was."""
    properties = dict(record.properties)
    properties.setdefault(RETRY_TOPIC, topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, record.msg_id)
    properties[DEAD_REASON] = EXPIRED
    properties[EXPIRED_FROM] = str(record.physical_offset)
    text = join_properties(properties)
    if len(text.encode()) > MAX_PROPERTIES_BYTES:
        text = join_properties({own: properties[own] for own in _OF_LETTERS if own in properties})
    return msgspec.structs.replace(
        inner_message(record), topic=name, queue_id=0, properties=text, prepared_transaction_offset=0
    )
