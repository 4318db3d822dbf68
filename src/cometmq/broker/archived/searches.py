"""Searches by time, log offset and key that include archived messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

from cometmq.broker.archived.archived_messages import ArchivedMessages
from cometmq.message.layout import RECORD
from cometmq.message.record import decode_record
from cometmq.store.index.index_service import QueryResult
from cometmq.store.message_store import MessageStore
from cometmq.tier.frames import Answer, FindKey, FindPosition, FindTime, Records, TimeFound

_SIZE: Final = RECORD.struct("size").unpack_from
_QUEUE_ID: Final = RECORD.struct("queue_id").unpack_from

OnFound = Callable[[TimeFound | None], None]
"""Callback with the archived messages around a time, or with ``None`` if the archive cannot be read."""

NOT_NOW: Final = "the archive of older messages cannot be read now; try again"


def records_in(payload: bytes) -> Iterator[memoryview]:
    """Yield the records in the archive reader's response."""
    view, at = memoryview(payload), 0
    while at < len(view):
        size = _SIZE(view, at)[0]
        yield view[at : at + size]
        at += size


def is_before_store(store: MessageStore, topic: str, queue_id: int, timestamp: int) -> bool:
    """Return whether messages from a time in milliseconds may be older than a queue's first message in the store."""
    low, high = store.extent(topic, queue_id)
    return low == high or timestamp <= store.store_time(topic, queue_id, low)


def find_time(
    archived: ArchivedMessages, topic: str, queue_id: int, timestamp: int, before: int, found: OnFound
) -> None:
    """Find a queue's archived messages around a time in milliseconds.

    :param before: the queue's first offset in the store.
    """

    def take(answer: Answer | None, _payload: bytes) -> None:
        if not isinstance(answer, TimeFound):
            found(None)
            return
        nothing = TimeFound(answer.number, -1, -1, -1, -1)

        def give(confirmed: set[tuple[str, int]] | None) -> None:
            found(None if confirmed is None else answer if confirmed else nothing)

        archived.confirm([(topic, queue_id)], give)

    archived.ask(lambda number: FindTime(number, topic, queue_id, timestamp, before), take)


def find_first(
    archived: ArchivedMessages,
    store: MessageStore,
    topic: str,
    queue_ids: Collection[int],
    timestamp: int,
    found: Callable[[Mapping[int, int] | None], None],
) -> None:
    """Find the first archived offset at or after a time in milliseconds, for queues in which this message is archived.

    :param found: called with offsets by queue id, or with ``None`` if the archive cannot be read now.
    """
    asked = [
        queue_id
        for queue_id in queue_ids
        if archived.extent(topic, queue_id) and is_before_store(store, topic, queue_id, timestamp)
    ]
    offsets: dict[int, int] = {}
    left = len(asked)
    if not asked:
        found(offsets)
        return

    def take(queue_id: int, answer: TimeFound | None) -> None:
        nonlocal left
        if left <= 0:
            return
        left -= 1
        if answer is None:
            left = 0
            found(None)
            return
        if answer.offset >= 0:
            offsets[queue_id] = answer.offset
        if not left:
            found(offsets)

    for queue_id in asked:
        before, _ = store.extent(topic, queue_id)
        find_time(archived, topic, queue_id, timestamp, before, partial(take, queue_id))


def find_position(archived: ArchivedMessages, position: int, found: Callable[[bytes | None], None]) -> None:
    """Find the archived record at a log offset.

    :param found: called with the record, which is empty if there is none, or with ``None`` if the archive cannot be
        read now.
    """

    def take(answer: Answer | None, payload: bytes) -> None:
        if not isinstance(answer, Records):
            found(None)
            return
        record = decode_record(payload) if answer.count else None
        if record is None:
            found(b"")
            return
        archived.confirm(
            [(record.topic, record.queue_id)],
            lambda confirmed: found(None if confirmed is None else payload if confirmed else b""),
        )

    if archived.is_open:
        archived.ask(lambda number: FindPosition(number, position), take)
    else:
        found(None if archived.is_opening else b"")


def find_key(
    archived: ArchivedMessages,
    store: MessageStore,
    asked: FindKey,
    newer: QueryResult,
    found: Callable[[QueryResult | None], None],
) -> None:
    """Add archived messages with a key to those in the store.

    :param asked: the key and the time; ``max_count`` is for archived and stored messages together.
    :param newer: the messages in the store.
    :param found: called with all of them, or with ``None`` if the archive cannot be read now.
    """
    before = {queue_id: store.extent(asked.topic, queue_id)[0] for queue_id in archived.queue_ids(asked.topic)}
    room = asked.max_count - len(newer.records)
    if not before or room <= 0:
        found(None if archived.may_have(asked.topic) else newer)
        return

    def take(answer: Answer | None, payload: bytes) -> None:
        if not isinstance(answer, Records):
            found(None)
            return
        records = list(records_in(payload))
        queues = [(asked.topic, _QUEUE_ID(record)[0]) for record in records]

        def add(confirmed: set[tuple[str, int]] | None) -> None:
            if confirmed is None:
                found(None)
                return
            older = [record for record, queue in zip(records, queues, strict=True) if queue in confirmed]
            last = newer.last_update_timestamp, newer.last_update_physical_offset
            found(QueryResult(*last, [*older, *newer.records]))

        archived.confirm(set(queues), add)

    archived.ask(
        lambda number: FindKey(number, asked.topic, asked.key, asked.is_unique, asked.begin, asked.end, before, room),
        take,
    )
