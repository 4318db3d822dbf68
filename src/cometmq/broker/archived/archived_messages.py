"""A broker's archived messages: their offsets, and requests to the archive reader (``TieredMessageStore``).

An archive is used for a queue only below the queue's first offset in the store, and only if it has the same queue:

* The archive does not end behind the queue, and does not begin before its topic was created: a topic that was deleted
  and created again counts from 0 again.
* The newest archived message that the store has too is the same message. If the store has none of them, the last
  archived message is older than the first one in the store. This is asked once, with the first read.

Everything here belongs to the event loop. Answers come by callbacks; a question whose answer does not come in time is
answered with ``None``, and its caller tells the client to ask again later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from cometmq.broker.archived.reader_process import ReaderProcess
from cometmq.broker.config import BrokerConfig, storage_options
from cometmq.broker.limits import (
    ARCHIVE_ANSWER_SECONDS,
    ARCHIVE_OPENING_SECONDS,
    ARCHIVE_SILENCE_SECONDS,
    MAX_ARCHIVE_LOOKUPS,
    MAX_ARCHIVE_QUESTIONS,
)
from cometmq.broker.stops import Stops
from cometmq.broker.tables.broker_tables import BrokerTables
from cometmq.broker.tables.deletions import Deletions
from cometmq.broker.tables.topic_attributes import reads_archive
from cometmq.errors import CometMQError, require
from cometmq.message.record import RecordError, decode_record
from cometmq.periodic import Alarm
from cometmq.store.message_store import MessageStore
from cometmq.tier.frames import (
    Answer,
    Extent,
    Extents,
    Failed,
    Lookup,
    Message,
    Open,
    Question,
    Read,
    Records,
    Unreadable,
)

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
"""Pause in seconds between two checks for requests that have timed out."""

OnAnswer = Callable[[Answer | None, bytes], None]
_Queue = tuple[str, int]


class _Pending(msgspec.Struct, eq=False):
    """A pending request to the archive reader."""

    question: Question
    on_answer: OnAnswer
    deadline: float


class _Identity(msgspec.Struct, eq=False):
    """The result of comparing an archived queue with the broker's queue."""

    is_same: bool | None = None
    """True if the queues are the same, or ``None`` while this is being checked."""
    waiting: list[Callable[[], None]] = []

    def when_known(self, then: Callable[[], None]) -> None:
        """Call a function once the queues have been compared, or could not be compared."""
        if self.is_same is None:
            self.waiting.append(then)
        else:
            then()


class ArchivedMessages:
    """The archived messages of a broker.

    :param opened: the archive, and the name of the broker in it.
    """

    def __init__(self, opened: Open, store: MessageStore, tables: BrokerTables) -> None:
        self._opened = opened
        self._store = store
        self._topics = tables.topics
        self._lives = tables.lives
        self._clock = store.clock
        self._process = ReaderProcess(opened, self._received, self._send_again, clock=store.clock)
        self._extents: dict[str, dict[int, Extent]] = {}
        self._incoming: dict[str, dict[int, Extent]] = {}
        """The extents of a report that is not complete yet."""
        self._identities: dict[_Queue, _Identity] = {}
        self._pending: dict[int, _Pending] = {}
        self._lookups = 0
        """Number of pending requests that search all files."""
        self._silent_since: float | None = None
        """Time of the first request since the last message of the reader, or ``None``."""
        self._next_number = 0
        self._next_look = Alarm(self._look, clock=store.clock)
        self._may_open_until = float("-inf")
        self._is_open = False
        self._unreadable = ""
        self._waiting = 0
        self._reported = ""
        self._reported_gaps: set[_Queue] = set()
        self._stopped = False
        self.records = 0
        """Number of archived messages that have been read."""
        self.failures = 0
        """Number of requests that have not been answered."""

    @classmethod
    def configured(
        cls, config: BrokerConfig, store: MessageStore, tables: BrokerTables, deletions: Deletions
    ) -> ArchivedMessages | None:
        """Return a broker's archived messages, or ``None`` if no archive is configured."""
        if not config.archive_read:
            return None
        options = storage_options(config.archive_read_storage)
        archived = cls(Open(config.archive_read, options, config.broker_name), store, tables)
        deletions.on_topic.append(archived.forget)
        return archived

    # --- life ---------------------------------------------------------------------------------
    def start(self, stops: Stops) -> None:
        """Start the archive reader."""
        stops.add("archive reader", self.stop)
        try:
            require("archive.read", "lake", "pyarrow", "numpy")
        except CometMQError as error:
            self._report(str(error))
            return
        self._may_open_until = self._clock.monotonic() + ARCHIVE_OPENING_SECONDS
        self._process.start()

    async def stop(self) -> None:
        """Stop the archive reader, and end all requests without an answer."""
        self._stopped = True
        self._next_look.close()
        for number in list(self._pending):
            self._finish(number, None)
        await self._process.stop()

    @property
    def process(self) -> ReaderProcess:
        """The process of the archive reader."""
        return self._process

    @property
    def waiting(self) -> int:
        """The number of requests that wait for the archive reader."""
        return len(self._pending) + self._waiting

    @property
    def is_full(self) -> bool:
        """Return whether no more requests may wait."""
        return self.waiting >= MAX_ARCHIVE_QUESTIONS

    @property
    def is_open(self) -> bool:
        """Return whether the archived queues are known."""
        return self._is_open

    @property
    def is_readable(self) -> bool:
        """Return whether the archive's commits could be read at the last check."""
        return self._is_open and not self._unreadable

    # --- what is archived ---------------------------------------------------------------------
    def extent(self, topic: str, queue_id: int) -> Extent | None:
        """Return the archived part of a queue before its first offset in the store, or ``None`` if there is none."""
        extent = self._extents.get(topic, {}).get(queue_id)
        if extent is None or not self._is_read(topic):
            return None
        low, high = self._store.extent(topic, queue_id)
        deleted = self._lives.deleted.get(topic)
        if not extent.first < low <= high or extent.end > high:
            return None
        if deleted is not None and extent.first_ms < deleted.time_ms:
            return None
        identity = self._identities.get((topic, queue_id))
        return None if identity is not None and identity.is_same is False else extent

    def first_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue in the archive or the store."""
        extent = self.extent(topic, queue_id)
        return self._store.extent(topic, queue_id)[0] if extent is None else extent.first

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that have archived messages before their first offsets in the store."""
        return [queue_id for queue_id in self._extents.get(topic, ()) if self.extent(topic, queue_id)]

    def may_have(self, topic: str) -> bool:
        """Return whether a topic's messages may be archived because the archive is still being opened."""
        return self.is_opening and self._is_read(topic)

    @property
    def is_opening(self) -> bool:
        """Return whether the archive is still being opened."""
        return not self._extents and self._clock.monotonic() < self._may_open_until and not self._stopped

    def _is_read(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and reads_archive(config.attributes or None)

    def report_gap(self, topic: str, queue_id: int, first: int, end: int) -> None:
        """Log, once per queue, that some messages are in neither the archive nor the store."""
        if (topic, queue_id) not in self._reported_gaps:
            self._reported_gaps.add((topic, queue_id))
            _log.warning(
                "queue %d of %s: neither %s nor the store has offsets %d to %d; consumers continue after them. "
                "Archive more often than fileReservedTime deletes",
                *(queue_id, topic, self._opened.url, first, end - 1),
            )

    # --- questions ----------------------------------------------------------------------------
    def ask(self, question: Callable[[int], Question], on_answer: OnAnswer) -> None:
        """Send a request to the archive reader.

        :param question: makes the question from its number.
        :param on_answer: called once, with ``None`` if there is no answer in time.
        """
        self._next_number += 1
        asked = question(self._next_number)
        is_lookup = isinstance(asked, Lookup)
        if self._stopped or not self._extents or self.is_full or (is_lookup and self._lookups >= MAX_ARCHIVE_LOOKUPS):
            on_answer(None, b"")
            return
        now = self._clock.monotonic()
        self._pending[asked.number] = _Pending(asked, on_answer, now + ARCHIVE_ANSWER_SECONDS)
        self._lookups += is_lookup
        if self._silent_since is None:
            self._silent_since = now
        if not self._next_look.is_set:
            self._next_look.after(_LOOK_SECONDS)
        self._process.send(asked)

    def wait(self, on_end: Callable[[], None]) -> None:
        """Call a function when a client should be told to retry."""

        def end() -> None:
            self._waiting -= 1
            on_end()

        self._waiting += 1
        self._clock.call_later(ARCHIVE_ANSWER_SECONDS, end)

    def read(self, extent: Extent, offset: int, most: tuple[int, int], on_answer: OnAnswer) -> None:
        """Read records from a queue; the first read checks that the archive contains the same queue.

        :param most: maximum number of records and of bytes.
        :param on_answer: receives :class:`Records` or ``None``. If the archive has another queue, :meth:`extent`
            returns ``None`` from then on.
        """
        key = extent.topic, extent.queue_id
        low, _ = self._store.extent(*key)
        identity = self._identity(extent)

        def deliver(answer: Answer | None, payload: bytes) -> None:
            if identity.is_same is None and answer is not None:
                identity.waiting.append(lambda: deliver(answer, payload))
                return
            is_good = identity.is_same and isinstance(answer, Records)
            if is_good and isinstance(answer, Records):
                self.records += answer.count
            on_answer(answer if is_good else None, payload if is_good else b"")

        self.ask(lambda number: Read(number, *key, offset, low, *most), deliver)

    def confirm(self, queues: Collection[_Queue], then: Callable[[set[_Queue] | None], None]) -> None:
        """Compare archived queues with the broker's queues.

        :param queues: topics and queue IDs.
        :param then: receives those that are the same, or ``None`` if some could not be compared now.
        """
        extents = [extent for queue in queues if (extent := self.extent(*queue))]
        identities = {(extent.topic, extent.queue_id): self._identity(extent) for extent in extents}
        left = len(identities) + 1

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                is_known = all(self._identities.get(queue) is identity for queue, identity in identities.items())
                then({queue for queue, identity in identities.items() if identity.is_same} if is_known else None)

        for identity in identities.values():
            identity.when_known(done)
        done()

    def _identity(self, extent: Extent) -> _Identity:
        key = extent.topic, extent.queue_id
        identity = self._identities.get(key)
        if identity is None:
            identity = self._identities[key] = _Identity(waiting=[])
            self._check_identity(identity, extent)
        return identity

    def _check_identity(self, identity: _Identity, extent: Extent) -> None:
        key = extent.topic, extent.queue_id

        def check(answer: Answer | None, payload: bytes) -> None:
            if isinstance(answer, Records):
                identity.is_same = not payload or self._is_same(key, payload)
                if not identity.is_same:
                    _log.warning(
                        "the messages of queue %d of %s in %s belong to another topic of this name, and are not read; "
                        "archive the new topic into another directory",
                        *(extent.queue_id, extent.topic, self._opened.url),
                    )
            else:
                identity.is_same = False
                self._identities.pop(key, None)  # the next read tries again
            for deliver in identity.waiting:
                deliver()

        self.ask(lambda number: Read(number, *key, extent.end - 1, extent.end, 1, 1), check)

    def _is_same(self, key: _Queue, payload: bytes) -> bool:
        """Return whether a queue's last archived record belongs to the broker's queue, as far as the store can tell."""
        try:
            archived = decode_record(payload)
        except RecordError:
            return False
        queue = self._store.queue(*key)
        low, high = queue.min_offset(), queue.max_offset()
        if archived.queue_offset >= high:
            return False
        offset = max(archived.queue_offset, low)
        chunks = self._store.get_message(queue, offset, 1).chunks
        if not chunks:
            return True
        try:
            stored = decode_record(b"".join(chunks))
        except RecordError:  # damaged, which says nothing about the archive
            return True
        if offset == archived.queue_offset:
            places = (stored.physical_offset, stored.store_timestamp)
            return places == (archived.physical_offset, archived.store_timestamp)
        return archived.physical_offset < stored.physical_offset and archived.store_timestamp <= stored.store_timestamp

    # --- answers ------------------------------------------------------------------------------
    def _received(self, message: Message, payload: bytes) -> None:
        self._silent_since = None
        if isinstance(message, Extents):
            self._take_extents(message)
        elif isinstance(message, Unreadable):
            if not message.may_pass:
                self._may_open_until = float("-inf")
            self._unreadable = message.reason
            self._report(message.reason)
        else:
            if isinstance(message, Failed):
                self._report(message.reason)
            self._finish(message.number, message, payload)

    def _take_extents(self, message: Extents) -> None:
        taken = self._incoming if message.is_whole else self._extents
        for extent in message.queues:
            if extent.first < extent.end:
                taken.setdefault(extent.topic, {})[extent.queue_id] = extent
            else:
                taken.get(extent.topic, {}).pop(extent.queue_id, None)
        if not message.is_last:
            return
        if message.is_whole:
            self._extents, self._incoming = taken, {}
        self._process.worked()
        if self._unreadable or self._may_open_until > float("-inf"):
            count = sum(map(len, self._extents.values()))
            _log.info("the archive %s can be read: %d queues", self._opened.url, count)
        self._is_open = True
        self._unreadable = self._reported = ""
        self._may_open_until = float("-inf")

    def _report(self, reason: str) -> None:
        """Log a problem with the archive, unless it was the last one logged."""
        if reason != self._reported:
            self._reported = reason
            _log.warning("the archive cannot be read: %s", reason)

    def _finish(self, number: int, answer: Answer | None, payload: bytes = b"") -> None:
        pending = self._pending.get(number)
        if pending is None or (isinstance(answer, Failed) and isinstance(pending.question, Read)):
            return  # a client whose read failed asks again when its time is over, not immediately
        del self._pending[number]
        self._lookups -= isinstance(pending.question, Lookup)
        if answer is None or isinstance(answer, Failed):
            self.failures += 1
            answer = None
        pending.on_answer(answer, payload)

    def _send_again(self) -> None:
        """Send the pending requests to a new process."""
        self._incoming = {}
        self._silent_since = self._clock.monotonic() if self._pending else None
        for pending in self._pending.values():
            self._process.send(pending.question)

    def _look(self) -> None:
        """End the requests that have timed out."""
        now = self._clock.monotonic()
        for number, pending in list(self._pending.items()):
            if pending.deadline <= now:
                self._finish(number, None)
        if self._silent_since is not None and now - self._silent_since > ARCHIVE_SILENCE_SECONDS:
            self._silent_since = None
            self._process.kill(f"the archive reader has not answered for {ARCHIVE_SILENCE_SECONDS:.0f} s")
        if self._pending and not self._stopped:
            self._next_look.after(_LOOK_SECONDS)

    def forget(self, topic: str) -> None:
        """Forget what is known about a deleted topic's queues."""
        for key in [key for key in self._identities if key[0] == topic]:
            del self._identities[key]
        self._reported_gaps = {key for key in self._reported_gaps if key[0] != topic}
