"""StoreTurn: the messages of one turn, stored by one write and answered together (hot path).

A *turn* is everything that a broker stores with one write: the messages of all requests and services that run in one
round of the event loop (:mod:`cometmq.remoting.server`), or sometimes in a part of the round. The store's part of a
turn is its :class:`~cometmq.store.write_batch.WriteBatch`, which contains the records and their offsets; this module
has the broker's part: answers, waiting services, and statistics.

Theory of operation. A turn begins with its first record: ``begin`` checks that the store accepts messages now. A
request adds its record to the store's batch, which assigns its position, and the request is remembered (``answer``);
the broker's own services do the same (``put_inner``, ``put_together``, ``put_due``). ``end``, at the end of each round
of the loop or when the turn is large, commits the batch. Then the answers are sent: immediately with ASYNC_FLUSH; with
SYNC_FLUSH after the flush that covers the write (group commit: one flush covers all turns written before it began),
with SYNC_MASTER once slaves have the records (:mod:`cometmq.broker.turn.waiters`).

The compiled core encodes plain sends by itself (:mod:`cometmq.broker.turn.plain_sends`): it borrows the end of the
batch (``lend``), and its records are put before anything else happens to the turn (``take_back``).

Invariants.

* No request is answered as stored, and no service continues, before the write of its turn; with SYNC_FLUSH, before the
  flush.
* Positions in log and queues are assigned in the order of the puts, and are valid once the turn is stored.
* Records of one request are stored together or not at all (``all_or_none``): no batch is stored in part.
* A topic is in its file before its first message is in the log: a start after a crash hides messages in other topics.

Fault model. A write that fails (full disk, I/O error) stores nothing of the turn: the batch is dropped, its positions
are assigned again, and every request and service of the turn is refused. A crash loses the turns that were not
answered, or stores some of their records: clients send these messages again, services find them in the log. After a
failed flush the store accepts no messages, and pending requests are refused. If a flush takes longer than
``syncFlushTimeout``, the answer is FLUSH_DISK_TIMEOUT; the record is stored anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from cometmq.broker.limits import MAX_TURN_BYTES
from cometmq.broker.statistics.stats import BrokerStats, Counted
from cometmq.broker.statistics.traffic import DELAY, FIFO, NORMAL, SMALL_BYTES, TRANSACTION
from cometmq.broker.turn.answers import PendingSend, PlainAnswers
from cometmq.broker.turn.inner_message import InnerMessage, Stored, read_properties
from cometmq.broker.turn.lite_messages import LiteMessages
from cometmq.broker.turn.targets import NotServingError, RefusedError, SendTarget, SendTargets, perhaps_stored
from cometmq.broker.turn.waiters import SendWaiters
from cometmq.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_CHARS
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.properties import EXPIRES_MS, property_mark
from cometmq.message.record import MIN_RECORD_BYTES
from cometmq.remoting.codes import ResponseCode
from cometmq.store.errors import StoreError
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET
from cometmq.store.message_store import ConsumeQueue
from cometmq.store.write_batch import EncodedRecords, NewRecord

_log = logging.getLogger(__name__)

_EXPIRES: Final = property_mark(EXPIRES_MS)
"""The end of a message's life, as it occurs in a properties text."""
_MAX_OVERHEAD_BYTES: Final = MIN_RECORD_BYTES + 2 * (IPV6_HOST_BYTES - IPV4_HOST_BYTES) + MAX_TOPIC_CHARS + 8
"""Maximum number of bytes that a record has in addition to its body and properties, including the filler after it."""

WhenStored = Callable[[Stored | RefusedError], None]
"""Callback with the position of a message once it is as durable as required, or with the reason why it was not
stored.
"""

Late = Callable[[], None]
"""Callback that is called if a flush takes longer than ``syncFlushTimeout``; ``WhenStored`` is still called later."""


Place = tuple[int, int, int]
"""The next log offset, the maximum log offset and the store timestamp for records."""

CoreCounts = Iterable[tuple[SendTarget, int, int, tuple[list[int], list[int]] | None]]
"""The core's statistics for each topic: the number and sizes of its messages."""


class StoreTurn:
    """The current turn, and the responses that are waiting for it.

    ``end`` must be called at the end of every round of the loop.

    :param schedule: makes the event loop end its current round soon.
    :param forbidden: the reason to refuse every message, on a slave; see :meth:`forbid`.
    """

    def __init__(
        self,
        targets: SendTargets,
        waiters: SendWaiters,
        stats: BrokerStats,
        schedule: Callable[[], None],
        forbidden: RefusedError | None = None,
    ) -> None:
        self._targets = targets
        self._store = waiters.store
        self._batch = waiters.store.batch
        self._stats = stats
        self._answers = waiters.answers
        self.store_host: Final = waiters.answers.store_host
        """The store host in all records, 8 or 20 bytes."""
        self._schedule = schedule
        self._clock = waiters.store.clock
        self.waiters: Final = waiters
        self.waits: Final = waiters.needed
        """True if responses wait for more than the write."""
        self._pending: list[PendingSend | PlainAnswers] = []
        self._inner: list[tuple[WhenStored, Stored]] = []
        self._late: list[Late] = []
        self._counts: list[tuple[Counted, int, int, Sequence[int]]] = []
        """Statistics of the added records by topic and type."""
        self._began_ms = self._full_at = 0
        self._give_back: Callable[[], None] | None = None
        self._stopping = False
        self._forbidden = forbidden
        self.max_stored_bytes: Final = waiters.store.config.mapped_file_size_commit_log - _MAX_OVERHEAD_BYTES
        """Maximum size of body and properties that fit into a log file under any topic name."""
        self.is_open = False
        """True once ``begin`` has been called in this turn."""
        self.refusal: RefusedError | None = None
        """The reason why nothing can be stored in this turn."""
        self.lite: LiteMessages | None = None
        """The lite topics of a master."""

    def begin(self) -> None:
        """Begin a turn with its first message, after checking that messages can be stored now."""
        self.is_open = True
        self._began_ms = self._clock.now_ms()
        error = self._batch.begin()
        self._full_at = self._batch.end + MAX_TURN_BYTES
        if self._stopping:
            self.refusal = NotServingError("the broker is shutting down")
        elif error is not None:
            self.refusal = NotServingError(str(error))
        else:
            self.refusal = self._forbidden

    def forbid(self, reason: RefusedError | None) -> None:
        """Refuse every message from now on, or accept messages from the next turn on if ``reason`` is ``None``.

        Messages that were added to the current turn before are still stored.
        """
        self.take_back()
        self._forbidden = reason
        if self.is_open and self.refusal is None:
            self.refusal = reason

    def stop(self) -> None:
        """Refuse all new messages; messages that were added before are still stored and answered."""
        self._stopping = True
        self.is_open = False

    async def finished(self) -> None:
        """Wait until all requests are answered."""
        await self.waiters.finished()

    # --- putting ------------------------------------------------------------------------------
    def put(self, target: SendTarget, queue: ConsumeQueue, record: NewRecord, kind: str = NORMAL) -> tuple[int, int]:
        """Add a record to the store's batch; return its log offset and queue offset.

        The turn must be open and not refused.

        :param kind: the type of the message, for metrics.
        :raises RefusedError: the message does not fit into a record; the turn is unchanged.
        """
        if self._give_back is not None:
            self.take_back()
        try:
            physical_offset = self._batch.put(queue, record)
        except Exception as error:
            raise _failed(error) from error
        size = len(record.body) + len(record.properties) + target.fixed_bytes
        counted = target.counted if kind is NORMAL else (target.topic, kind)
        self._counts.append((counted, 1, size, (size,) if size > SMALL_BYTES else ()))
        return physical_offset, 0 if record.sys_flag & NO_QUEUE_OFFSET else queue.next_offset - 1

    def lend(self, give_back: Callable[[], None]) -> Place | None:
        """Lend the end of the batch to code that encodes records itself; return ``None`` if nothing can be stored.

        :param give_back: called before any other change to the turn; it must pass the encoded records to
        ``put_encoded``.
        """
        if not self.is_open:
            self.begin()
        place = None if self.refusal is not None else self._batch.next_place()
        if place is not None:
            self._give_back = give_back
        return place

    def take_back(self) -> None:
        """Take back the end of the batch, and add the records encoded by the other code."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def next_place(self) -> Place | None:
        """Return the position for encoded records, or ``None`` if the records must be added one by one.

        Call it only inside :meth:`all_or_none`.
        """
        return self._batch.next_place()

    def put_encoded(self, encoded: EncodedRecords, topics: CoreCounts, answers: PlainAnswers | None = None) -> None:
        """Add encoded records that begin at the position last returned by :meth:`next_place` or :meth:`lend`.

        :param answers: responses to send once the records are stored.
        """
        self._batch.put_encoded(encoded)
        for target, messages, size, sizes in topics:
            large, fifo = sizes or ((), ())
            if fifo:
                size_fifo = sum(fifo)
                large_fifo = [one for one in fifo if one > SMALL_BYTES]
                self._counts.append(((target.topic, FIFO), len(fifo), size_fifo, large_fifo))
                messages, size = messages - len(fifo), size - size_fifo
            if messages:
                self._counts.append((target.counted, messages, size, large))
        if answers is not None:
            latency = self._answers.latency
            answers.arrived = 0.0 if latency is None else latency.began
            self._pending.append(answers)

    def answer(self, send: PendingSend) -> None:
        """Answer a request once its records are stored."""
        self._pending.append(send)

    def notify(self, when_stored: WhenStored, stored: Stored) -> None:
        """Call ``when_stored`` once it is known whether the records that a request added at ``stored`` are stored."""
        self._inner.append((when_stored, stored))

    def end_if_full(self) -> None:
        """End the turn early if it is large."""
        if self._batch.end > self._full_at:
            self.end()

    def put_message(self, message: InnerMessage, kind: str = NORMAL) -> Stored:
        """Add a message from the broker itself to the current turn, without the checks for client sends.

        If the topic no longer has the queue, an existing queue is used.

        :param kind: as for :meth:`put`.
        :raises RefusedError: the properties exceed RocketMQ's limit, the message does not fit into a log file, the
        topic or queue is invalid, a number is too large for its field, or nothing can be stored now. The turn is
        unchanged.
        """
        if self.refusal is not None:
            raise self.refusal
        try:
            tags_code, index_keys = message.tags_code, message.index_keys
            if index_keys is None:
                read = read_properties(message.properties, "")
                tags_code, index_keys = read.tags_code, read.index_keys
            target = self._targets.inner(message.topic)
            text, placed = message.properties, None
            if target.is_lite and self.lite is not None:
                found = self.lite.place(message.topic, text, is_promised=kind in (DELAY, TRANSACTION))
                if found is not None:
                    text, placed = found
            properties = text.encode()
            if len(properties) > MAX_PROPERTIES_BYTES:
                raise _illegal(f"its properties have {len(properties)} bytes, limit 32KB.")
            if len(message.body) + len(properties) > self.max_stored_bytes:
                raise _illegal(
                    "its body and properties, including those that the broker adds, exceed the "
                    f"{self.max_stored_bytes} bytes that fit into one log file."
                )
            if not target.has_life_times and _EXPIRES in message.properties:
                self._targets.note_life_times(message.topic)
            queue = target.queues.get(message.queue_id)
            if queue is None:
                queue = target.queues[message.queue_id] = target.open_inner(message.queue_id)
        except ValueError as error:
            raise _failed(error) from error
        record = NewRecord(
            message.body,
            properties,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            self.store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            tags_code,
            index_keys,
        )
        stored = Stored(*self.put(target, queue, record, kind))
        if placed is not None and self.lite is not None:
            self.lite.put(placed, stored.physical_offset)
        return stored

    def put_inner(self, message: InnerMessage, when_stored: WhenStored, late: Late | None = None) -> None:
        """Add a message from the broker itself; see :meth:`put_together`."""
        self.put_together((message,), when_stored, late)

    def put_together(
        self,
        messages: Iterable[InnerMessage],
        when_stored: WhenStored,
        late: Late | None = None,
        kind: str = NORMAL,
    ) -> list[Stored]:
        """Add messages from the broker itself; either all of them are stored or none.

        :param when_stored: called once, with the position of the last message, or with the reason why they were not
        stored.
        :param late: called if the flush takes too long; required for requests, which must not wait forever.
        :param kind: as for :meth:`put`.
        :raises RefusedError: a message cannot be stored now; in this case ``when_stored`` is not called.
        """
        self._open()
        try:
            with self.all_or_none():
                places = [self.put_message(message, kind) for message in messages]
        except Exception as error:
            raise _failed(error) from error
        self._inner.append((when_stored, places[-1]))
        if late is not None:
            self._late.append(late)
        self.end_if_full()
        return places

    def put_due(self, messages: Iterable[InnerMessage], when_stored: WhenStored) -> int:
        """Add due delayed messages to one turn; call ``when_stored`` once, with the position of the last message.

        Return the number of messages added. Messages that can never be stored are logged and skipped; either all or
        none of the others are stored.

        :raises RefusedError: nothing can be stored now; in this case ``when_stored`` is not called.
        """
        self._open()
        if self.refusal is not None:
            raise self.refusal
        count = 0
        try:
            with self.all_or_none():
                for message in messages:
                    try:
                        stored = self.put_message(message, DELAY)
                    except RefusedError as error:
                        if error.code != ResponseCode.MESSAGE_ILLEGAL:
                            raise
                        _log.error("a message for topic %s cannot be stored and is lost: %s", message.topic, error)
                    else:
                        count += 1
        except Exception as error:
            raise _failed(error) from error
        if count:
            self._inner.append((when_stored, stored))
            self.end_if_full()
        return count

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Undo all records added inside the block if an exception is raised.

        The turn must be open, and must not end inside the block.
        """
        self.take_back()
        mark = self._batch.mark()
        counts, inner = len(self._counts), len(self._inner)
        lite = 0 if self.lite is None else self.lite.mark
        try:
            yield
        except BaseException:
            self._batch.undo_to(mark)
            del self._counts[counts:]
            del self._inner[inner:]
            if self.lite is not None:
                self.lite.take_back_to(lite)
            raise

    def _open(self) -> None:
        """Begin a turn if none is open, and arrange for its end, even if nothing can be stored."""
        if not self.is_open:
            self.begin()
        self._schedule()

    # --- the end ------------------------------------------------------------------------------
    def end(self) -> None:
        """Store the records of the turn; answer its requests now or after the flush."""
        if self._give_back is not None:
            self.take_back()
        self.is_open = False
        counts = self._counts
        if not counts:
            return
        pending = self._pending
        inner = self._inner
        late = self._late
        self._pending = []
        self._inner = []
        self._late = []
        self._counts = []
        try:
            self._targets.save_topics()
            position = self._batch.commit()
        except Exception as error:
            self._batch.rollback()
            if self.lite is not None:
                self.lite.take_back_to(0)
            self._refuse(_failed(error), sum(messages for _, messages, _, _ in counts), pending, inner)
            return
        self._stats.stored(counts, self._clock.now_ms() - self._began_ms)
        if self.waits:
            self.waiters.add(position, [send for send in pending if send.wait])
            pending = [send for send in pending if not send.wait]
            if inner:
                self.waiters.when_safe(
                    position, partial(_call_when_safe, inner), partial(call_all, late) if late else None
                )
        elif inner:
            _notify(inner)
        self._answers.stored(pending)

    def _refuse(
        self,
        refusal: RefusedError,
        messages: int,
        pending: list[PendingSend | PlainAnswers],
        inner: list[tuple[WhenStored, Stored]],
    ) -> None:
        """Refuse the requests and internal messages of a turn that could not be stored."""
        self._stats.put_failed += messages
        _log.error("cannot store the %d messages in a turn: %s", messages, refusal.remark)
        _notify(inner, refusal)
        self._answers.refused(refusal, pending)


def call_all(late: list[Late]) -> None:
    """Call each function in a list; the functions answer requests whose flush has timed out."""
    for answer_now in late:
        answer_now()


def _notify(inner: list[tuple[WhenStored, Stored]], refusal: RefusedError | None = None) -> None:
    for when_stored, stored in inner:
        try:
            when_stored(stored if refusal is None else refusal)
        except Exception:
            _log.exception("a callback failed after its message was stored or refused")


def _call_when_safe(inner: list[tuple[WhenStored, Stored]], error: StoreError | None) -> None:
    _notify(inner, None if error is None else perhaps_stored(error))


def _illegal(why: str) -> RefusedError:
    return RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal, {why}")


def _failed(error: Exception) -> RefusedError:
    """Convert an error to a refusal; log an unexpected error with its traceback."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, StoreError):
        return perhaps_stored(error)
    if isinstance(error, ValueError):
        return _illegal(str(error))
    _log.error("messages were not stored because of an internal error", exc_info=error)
    return RefusedError(ResponseCode.SYSTEM_ERROR, f"not stored, internal error: {type(error).__name__}: {error}")
