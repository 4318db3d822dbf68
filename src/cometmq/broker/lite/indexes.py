"""LiteIndexes: the indexes of a broker's parent topics, which follow the log.

A message is placed when its turn takes it (:meth:`LiteIndexes.place`), and taken back if the turn is not stored. When
it becomes readable, the subscribers of its lite topic hear of it.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import MAX_LITE_TOPICS
from cometmq.broker.lite.index import NO_ENTRY, LiteIndex, new_index
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.tables.topic_attributes import is_lite
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.broker.turn.targets import RefusedError
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.layout import BODY_AT, BODY_LENGTH_BYTES, HOSTS_V6, RECORD
from cometmq.message.lite_names import check_lite_topic, lmq_name
from cometmq.message.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    LITE_TOPIC,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    PropertiesText,
)
from cometmq.remoting.codes import ResponseCode
from cometmq.store.message_store import ConsumeQueue, MessageStore
from cometmq.store.queue.consume_queue import UNIT_DTYPE

_log = logging.getLogger(__name__)

_INNER: Final = frozenset({INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET})
_PLACE_BYTES: Final = len(INNER_MULTI_DISPATCH) + len(INNER_MULTI_QUEUE_OFFSET) + 24
"""Length of the properties of a message's place, without the name of the lite topic's queue."""
_MOST_DAMAGED: Final = 100
"""Number of damaged messages in a row behind which a lite topic goes on. After more of them it begins anew."""
_UNITS_AT_ONCE: Final = 50_000
_READ_AT_ONCE: Final = 5_000
_SYS_FLAG: Final = RECORD.struct("sys_flag").unpack_from
_INT: Final = struct.Struct(">i").unpack_from
_SHORT: Final = struct.Struct(">h").unpack_from
_OFFSET_MARK: Final = f"{PROPERTY_SEPARATOR}{INNER_MULTI_QUEUE_OFFSET}{NAME_VALUE_SEPARATOR}".encode()
_NAME_MARK: Final = f"{LITE_TOPIC}{NAME_VALUE_SEPARATOR}".encode()
_SEPARATOR: Final = PROPERTY_SEPARATOR.encode()

Arrived = Callable[[LiteIndex, int, int], None]
"""Called with entries whose messages may be read now: the first one, and the one after the last."""


@dataclass(slots=True)
class _Run:
    """Entries of an index that follow one another."""

    index: LiteIndex
    first: int
    end: int


Placed = tuple[LiteIndex, int]
"""The index and the lite topic of a message that is not stored yet."""


class LiteIndexes:
    """The indexes by parent topic."""

    def __init__(self, live: LiveConfig, topics: TopicConfigManager, store: MessageStore) -> None:
        self._live = live
        self._topics = topics
        self._store = store
        self.by_parent: Final[dict[str, LiteIndex]] = {}
        self._added: list[_Run] = []
        """The messages of the current turn, in the order of the log."""
        self._unread: deque[_Run] = deque()
        """Messages that subscribers have not heard of, in the order of the log."""
        self.on_arrival: Final[list[Arrived]] = []
        self.on_forget: Final[list[Callable[[str], None]]] = []
        """Called with each parent topic whose index is removed."""
        store.batch.on_stored.append(self._stored)
        store.batch.on_arrival.append(self._arrived)

    @property
    def count(self) -> int:
        """Return the number of lite topics."""
        return sum(index.count for index in self.by_parent.values())

    def count_of(self, topic: str) -> int:
        """Return the number of lite topics of a parent topic."""
        index = self.by_parent.get(topic)
        return 0 if index is None else index.count

    @property
    def most(self) -> int:
        """The maximum number of lite topics."""
        config = self._live.current
        return config.max_lmq_consume_queue_num if config.enable_lmq_quota else MAX_LITE_TOPICS

    def of(self, parent: str) -> LiteIndex:
        """Return the index of a parent topic; create it if it is missing."""
        found = self.by_parent.get(parent)
        if found is None:
            found = self.by_parent[parent] = new_index(parent)
        return found

    def is_parent(self, topic: str) -> bool:
        """Return whether a topic has lite topics."""
        config = self._topics.get(topic)
        return config is not None and is_lite(config.attributes)

    def add(self, index: LiteIndex, name: str) -> int:
        """Return the number of a lite topic, which is added if it is missing.

        :raises RefusedError: the maximum number of lite topics is reached.
        """
        number = index.find(name)
        if number != NO_NAME:
            return number
        self._check_room()
        return index.add(name)

    def _check_room(self) -> None:
        if not self.room:
            most = self.most
            raise RefusedError(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                f"[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded: {most} lite topics",
            )

    # --- messages ---------------------------------------------------------------------------------
    def check_later(self, topic: str, properties: str) -> None:
        """Check that a message that waits first can be placed later.

        :raises RefusedError: the name is not allowed, there are too many lite topics, or the properties are too long.
        """
        name = _name(PropertiesText(properties))
        if not name:
            return
        if len(properties.encode()) + len(lmq_name(topic, name).encode()) + _PLACE_BYTES > MAX_PROPERTIES_BYTES:
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: its properties, with those of its place in the lite topic, exceed 32KB.",
            )
        index = self.of(topic)
        if index.find(name) == NO_NAME:
            self._check_room()

    def place(self, topic: str, properties: str, *, is_promised: bool = False) -> tuple[str, Placed] | None:
        """Give a message its offset in its lite topic; return its new properties and its place, or ``None`` if it
        belongs to no lite topic.

        :param is_promised: True if the message was acknowledged before, so that it is stored in any case.
        :raises RefusedError: the name is not allowed, or there are too many lite topics.
        """
        text = PropertiesText(properties)
        name = _name(text)
        if not name:
            return None
        index = self.of(topic)
        number = index.find(name)
        if number == NO_NAME:
            number = index.add(name) if is_promised else self.add(index, name)
        if "INNER_MULTI_" in properties:
            text = text.without(_INNER)
        return (
            text.plus(
                {
                    INNER_MULTI_DISPATCH: lmq_name(topic, name),
                    INNER_MULTI_QUEUE_OFFSET: str(index.next_offset(number)),
                }
            ).text,
            (index, number),
        )

    def put(self, placed: Placed, log_offset: int) -> None:
        """Add a placed message that the turn has taken."""
        index, number = placed
        index.append(number, log_offset)
        self.put_all(index, 1)

    def put_all(self, index: LiteIndex, count: int) -> None:
        """Note that the turn has taken the next ``count`` messages in an index, which the compiled core has added."""
        added = self._added
        if added and added[-1].index is index:
            added[-1].end += count
            return
        first = next((run.end for run in reversed(added) if run.index is index), index.end - index.unstored)
        added.append(_Run(index, first, first + count))

    @property
    def mark(self) -> int:
        """A point in the turn, for :meth:`take_back_to`."""
        return sum(run.end - run.first for run in self._added)

    def take_back_to(self, mark: int) -> None:
        """Take back the messages that were put since a point in the turn."""
        for _ in range(self.mark - mark):
            run = self._added[-1]
            run.index.take_back()
            run.end -= 1
            if run.end == run.first:
                self._added.pop()

    def _stored(self, _queues: Iterable[ConsumeQueue]) -> None:
        if self._added:
            for run in self._added:
                run.index.stored()
            self._unread += self._added
            self._added = []

    def _arrived(self, _queues: Iterable[ConsumeQueue]) -> None:
        unread = self._unread
        while unread:
            run = unread[0]
            end = self._readable_end(run)
            if run.first < end:
                for arrived in self.on_arrival:
                    arrived(run.index, run.first, end)
            run.first = end
            if end < run.end:
                return
            unread.popleft()

    def _readable_end(self, run: _Run) -> int:
        """Return the entry after those of a run that may be read, or that retention has deleted."""
        index, readable = run.index, self._store.readable_end
        run.first = max(run.first, min(index.base, run.end))
        if run.first == run.end or index.log_offset(run.end - 1) < readable:
            return run.end
        return run.first + bisect_left(range(run.first, run.end), readable, key=index.log_offset)

    def forget(self, parent: str) -> bool:
        """Remove the index of a parent topic; return whether there was one."""
        if self.by_parent.pop(parent, None) is None:
            return False
        for forget in self.on_forget:
            forget(parent)
        return True

    @property
    def room(self) -> int:
        """The number of lite topics that may be added."""
        return max(self.most - self.count, 0)

    def for_core(self, topic: str) -> tuple[LiteIndex, Callable[[], int]]:
        """Return a parent topic's index, and the function that returns how many lite topics may be added."""
        return self.of(topic), lambda: self.room

    def first_entry_since(self, index: LiteIndex, timestamp: int) -> int:
        """Return the first entry that was stored at a time (in milliseconds since 1970) or later."""
        low, high = index.base, index.end
        while low < high:
            middle = (low + high) // 2
            record = self._store.decoded_at(index.log_offset(middle))
            if record is not None and record.store_timestamp < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    # --- reading the log --------------------------------------------------------------------------
    def catch_up(self, index: LiteIndex, ends: dict[int, int]) -> Iterator[None]:
        """Read the parent topic's records after a snapshot, in slices.

        :param ends: the end of each queue in the snapshot; it is moved to the queue's end.
        """
        queues = self._store.queues().get(index.parent, {})
        offsets: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        for queue_id, queue in list(queues.items()):
            at = max(ends.get(queue_id, 0), queue.min_offset())
            while at < queue.committed:
                units = np.frombuffer(queue.units(at, _UNITS_AT_ONCE, stored=True), UNIT_DTYPE)
                if not len(units):
                    break
                offsets.append(units["offset"][(units["size"] > 0) & (units["size"] < 2**31 - 1)].astype(np.int64))
                at += len(units)
                yield
            ends[queue_id] = at
        if not offsets:
            return
        for at, log_offset in enumerate(np.sort(np.concatenate(offsets)).tolist()):
            if at % _READ_AT_ONCE == _READ_AT_ONCE - 1:
                index.stored()
                yield
            view = self._store.bytes_at(log_offset)
            found = None if view is None else read_lite(view)
            if found is not None:
                self._found(index, found[0], found[1], log_offset)
        index.stored()

    def _found(self, index: LiteIndex, name: bytes, offset: int, log_offset: int) -> None:
        """Add a message that was found in the log."""
        number = index.find_bytes(name)
        if number == NO_NAME:
            try:
                text = name.decode()
            except UnicodeDecodeError:
                return
            if check_lite_topic(text) is not None:
                return
            number = index.add(text, offset)
        missing = offset - index.next_offset(number)
        if 0 < missing <= _MOST_DAMAGED and index.first(number) != NO_ENTRY:
            for _ in range(missing):  # their records are damaged, and there is none at this place
                index.append(number, log_offset - 1)
        elif missing:  # it was removed and made again, or retention deleted its messages
            index.restart(number, offset)
        index.append(number, log_offset)


def _name(text: PropertiesText) -> str:
    """Return the lite topic among a message's properties, or an empty text.

    :raises RefusedError: the name is not allowed.
    """
    name = text.get(LITE_TOPIC)
    wrong = check_lite_topic(name) if name else None
    if wrong is not None:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal, {wrong}")
    return name or ""


def read_lite(record: bytes | memoryview) -> tuple[bytes, int] | None:
    """Return the lite topic of a record and its offset there, or ``None``."""
    try:
        at = BODY_AT[_SYS_FLAG(record)[0] & HOSTS_V6]
        at += _INT(record, at - BODY_LENGTH_BYTES)[0]
        at += 1 + record[at]
        length = _SHORT(record, at)[0]
        properties = bytes(record[at + 2 : at + 2 + length])
    except (struct.error, IndexError):
        return None
    begin = properties.rfind(_OFFSET_MARK)
    if begin < 0:
        return None
    offset = properties[begin + len(_OFFSET_MARK) :].partition(_SEPARATOR)[0]
    begin = properties.rfind(_SEPARATOR + _NAME_MARK)
    if begin >= 0:
        begin += 1
    elif properties.startswith(_NAME_MARK):
        begin = 0
    else:
        return None
    name = properties[begin + len(_NAME_MARK) :].partition(_SEPARATOR)[0]
    return (name, int(offset)) if offset.isdigit() and len(offset) < 19 else None
