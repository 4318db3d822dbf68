"""Reads of popped messages: from the store, or below its first offset from the archive.

Pops work on the event loop and need their messages at once, but the archive reader answers later. So a read of archived
messages that are not loaded raises :class:`NotLoadedError` before anything has changed. Its caller lets them load, and
runs again when they are there: a pop waits as if it waited for a message, and an expired message is checked again.

Loaded messages are kept in windows of consecutive offsets, those used last, up to a total size. Messages never change,
so a window is valid until its topic is deleted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from cometmq.broker.archived.archived_messages import ArchivedMessages
from cometmq.broker.archived.searches import records_in
from cometmq.broker.limits import (
    ARCHIVE_FILTERED_RECORDS,
    MAX_ARCHIVE_WINDOWS_BYTES,
    POP_LOAD_SECONDS,
    POP_LOAD_SECONDS_MAX,
)
from cometmq.broker.pop.popped_records import Chunks, message_group, record_offsets
from cometmq.broker.pull.archived_choice import choose_records
from cometmq.broker.pull.expired_messages import ExpiredMessages
from cometmq.broker.pull.filters import EVERYTHING, MessageFilter
from cometmq.clock import Clock
from cometmq.message.layout import RECORD
from cometmq.message.pop_info import original_topic
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.store.message_store import ConsumeQueue, GetMessageStatus, GetResult, MessageStore
from cometmq.tier.frames import Answer, Records

_OFFSET: Final = RECORD.struct("queue_offset").unpack_from
_WINDOW_BYTES: Final = 1024 * 1024
"""Size of the messages that are loaded together; a single one may be larger."""
_AGAIN_SECONDS: Final = 1.0
"""Pause after which messages that could not be loaded are asked for again."""
_WINDOW_OVERHEAD_BYTES: Final = 500

Place = tuple[str, int, int]
"""A topic, a queue ID and an offset."""


class NotLoadedError(Exception):
    """Archived messages must be loaded first; nothing has changed."""

    def __init__(self, place: Place) -> None:
        super().__init__(f"offset {place[2]} of queue {place[1]} of {place[0]} is not loaded")
        self.place = place


class _Window(msgspec.Struct, eq=False):
    """The archived messages of a queue from ``first`` up to but not including ``end``."""

    first: int
    end: int
    offsets: list[int]
    """Offsets of the messages, which may have gaps."""
    records: list[memoryview]

    @property
    def size(self) -> int:
        """The size in memory, in bytes."""
        return _WINDOW_OVERHEAD_BYTES + sum(map(len, self.records))


class PopReads:
    """Reads a broker's messages for pops.

    :param archived: the broker's archived messages, or ``None`` if it reads no archive.
    :param wake: called with topic and group when a pop may find messages after dead letters were stored.
    """

    def __init__(
        self,
        store: MessageStore,
        archived: ArchivedMessages | None,
        clock: Clock,
        expired: ExpiredMessages,
        wake: Callable[[str, str], None],
    ) -> None:
        self._expired = expired
        self._wake = wake
        self._store = store
        self._archived = archived
        self._clock = clock
        self._windows: OrderedDict[Place, _Window] = OrderedDict()
        """Windows by their first offsets, those used last at the end."""
        self._of_queue: dict[tuple[str, int], dict[int, _Window]] = {}
        self._bytes = 0
        self.pause_seconds = POP_LOAD_SECONDS
        """Time after which a message that is not loaded should be asked for again; it doubles while loads fail."""
        self._loading: dict[tuple[str, int], dict[int, dict[Hashable, Callable[[], None]]]] = {}
        """For each queue: the offsets from which messages are being loaded, and the functions that wait for them."""

    # --- reads ------------------------------------------------------------------------------------
    def first_offset(self, queue: ConsumeQueue, wanted: int) -> int:
        """Return a queue's first offset, which may be the archive's if ``wanted`` is before the store's. While the
        archive is being opened, it is 0.
        """
        low = queue.min_offset()
        if self._archived is None or wanted >= low:
            return low
        if self._archived.may_have(queue.topic):
            return 0
        return self._archived.first_offset(queue.topic, queue.queue_id)

    def get(self, queue: ConsumeQueue, offset: int, most: int, wanted: MessageFilter, most_bytes: int) -> GetResult:
        """Return the messages from an offset on that a filter accepts.

        :raises NotLoadedError: the messages are archived and not loaded.
        """
        if self._archived is None or offset >= queue.min_offset():
            return self._store.get_message(
                queue,
                offset,
                most,
                tag_codes=wanted.codes,
                predicate=wanted.predicate,
                choose=wanted.choose,
                max_bytes=most_bytes,
            )
        window = self._window(queue.topic, queue.queue_id, offset)
        if window is None:
            first, high = self._archived.first_offset(queue.topic, queue.queue_id), queue.max_offset()
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, first, first, high)
        return self._taken(queue, window, offset, most, wanted, most_bytes)

    def living(
        self, queue: ConsumeQueue, offset: int, most: int, wanted: MessageFilter, most_bytes: int, group: str
    ) -> GetResult:
        """Return the messages for a group's pop like :meth:`get`, without those whose life times have ended.

        :raises NotLoadedError: the messages are archived and not loaded.
        """
        result = self.get(queue, offset, most, wanted, most_bytes)
        if result.count and self._expired.may_expire(queue.topic, group):
            again = partial(self._wake, original_topic(queue.topic, group), group)
            return self._expired.pass_over(result, queue.topic, group, again)
        return result

    def get_again(self, queue: ConsumeQueue, offset: int, group: str) -> tuple[Chunks, bool]:
        """Return the message at an offset for its redelivery to a group as :meth:`get_one` does, and whether it is
        passed over because its life time has ended.

        :raises NotLoadedError: the message is archived and not loaded.
        """
        result = self.living(queue, offset, 1, EVERYTHING, _WINDOW_BYTES, group)
        is_over = result.status is GetMessageStatus.NO_MATCHED_MESSAGE and result.next_begin_offset == offset + 1
        return result.chunks if record_offsets(result.chunks) == [offset] else [], is_over

    def get_one(self, queue: ConsumeQueue, offset: int) -> Chunks:
        """Return the message at an offset in pieces, of which there are none if it cannot be read.

        :raises NotLoadedError: the message is archived and not loaded.
        """
        chunks = self.get(queue, offset, 1, EVERYTHING, _WINDOW_BYTES).chunks
        return chunks if record_offsets(chunks) == [offset] else []

    def message_group(self, queue: ConsumeQueue, known: dict[int, str], offset: int) -> str:
        """Return the message group of the message at an offset, or an empty string.

        :param known: the message groups that have been read; this one is added.
        :raises NotLoadedError: the message is archived and not loaded.
        """
        found = known.get(offset)
        if found is None:
            found = known[offset] = message_group(b"".join(self.get_one(queue, offset)))
        return found

    def record_at(self, topic: str, queue_id: int, offset: int) -> StoredRecord | None:
        """Return the message at an offset in a queue, or ``None`` if it no longer exists.

        :raises NotLoadedError: the message is archived and not loaded.
        """
        queue = self._store.queue(topic, queue_id)
        data: bytes | memoryview | None = None
        if self._archived is None or offset >= queue.min_offset():
            unit = queue.unit(offset)
            data = None if unit is None else self._store.record_at(unit[0], unit[1])
        elif (window := self._window(topic, queue_id, offset)) is not None:
            at = bisect_left(window.offsets, offset)
            data = window.records[at] if at < len(window.offsets) and window.offsets[at] == offset else None
        try:
            return None if data is None else decode_record(data)
        except RecordError:
            return None

    def _taken(
        self,
        queue: ConsumeQueue,
        window: _Window,
        offset: int,
        most: int,
        wanted: MessageFilter,
        most_bytes: int,
    ) -> GetResult:
        records = islice(window.records, bisect_left(window.offsets, offset), None)
        chunks, rest = choose_records(records, wanted, most, most_bytes)
        end = window.end if rest is None else _OFFSET(rest)[0]
        status = GetMessageStatus.FOUND if chunks else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetResult(
            status, end, queue.min_offset(), queue.max_offset(), chunks, len(chunks), sum(map(len, chunks))
        )

    def _window(self, topic: str, queue_id: int, offset: int) -> _Window | None:
        """Return the window with an offset, or ``None`` if the offset is not archived."""
        assert self._archived is not None
        if self._archived.may_have(topic):
            raise NotLoadedError((topic, queue_id, offset))
        extent = self._archived.extent(topic, queue_id)
        if extent is None or offset < extent.first:
            return None
        for first, window in self._of_queue.get((topic, queue_id), {}).items():
            if first <= offset < window.end:
                self._windows.move_to_end((topic, queue_id, first))
                return window
        raise NotLoadedError((topic, queue_id, offset))

    # --- loading ----------------------------------------------------------------------------------
    def load(self, place: Place, waiter: Hashable, on_end: Callable[[], None]) -> None:
        """Load the messages from an offset on, and then call a function. It is also called if they cannot be loaded
        now, after a pause.

        :param waiter: key of the function, which is called once for all calls with this key.
        """
        topic, queue_id, offset = place
        loading = self._loading.setdefault((topic, queue_id), {})
        for first, waiting in loading.items():
            if first <= offset < first + ARCHIVE_FILTERED_RECORDS:  # these messages probably contain it
                waiting[waiter] = on_end
                return
        loading[offset] = {waiter: on_end}
        extent = None if self._archived is None else self._archived.extent(topic, queue_id)
        if self._archived is None or extent is None:
            self._clock.call_later(_AGAIN_SECONDS, self._ended, place)
            return

        def take(answer: Answer | None, payload: bytes) -> None:
            if not isinstance(answer, Records):
                self.pause_seconds = min(self.pause_seconds * 2, POP_LOAD_SECONDS_MAX)
                self._clock.call_later(_AGAIN_SECONDS, self._ended, place)
                return
            self.pause_seconds = POP_LOAD_SECONDS
            if not answer.count and self._archived is not None:
                self._archived.report_gap(topic, queue_id, offset, answer.next_offset)
            self._add(place, answer.next_offset, payload)
            self._ended(place)

        self._archived.read(extent, offset, (ARCHIVE_FILTERED_RECORDS, _WINDOW_BYTES), take)

    def _add(self, place: Place, end: int, payload: bytes) -> None:
        if place in self._windows:
            self._remove(place)
        records = list(records_in(payload))
        window = _Window(place[2], end, [_OFFSET(record)[0] for record in records], records)
        self._windows[place] = self._of_queue.setdefault(place[:2], {})[place[2]] = window
        self._bytes += window.size
        while self._bytes > MAX_ARCHIVE_WINDOWS_BYTES and len(self._windows) > 1:
            self._remove(next(iter(self._windows)))

    def _remove(self, place: Place) -> None:
        self._bytes -= self._windows.pop(place).size
        windows = self._of_queue[place[:2]]
        del windows[place[2]]
        if not windows:
            del self._of_queue[place[:2]]

    def _ended(self, place: Place) -> None:
        loading = self._loading[place[:2]]
        waiting = loading.pop(place[2])
        if not loading:
            del self._loading[place[:2]]
        for on_end in waiting.values():
            on_end()

    def forget(self, topic: str) -> None:
        """Forget the messages of a deleted topic."""
        for place in [place for place in self._windows if place[0] == topic]:
            self._remove(place)
