"""StoreTurn: the records of one turn of the loop, stored by one write and answered together (hot path).

Theory of operation. A turn begins with its first record: ``begin`` finds out if the store takes messages now. A
request puts its record into the store's buffer, which gives it its place, and is remembered (``answer``); the broker's
own services do the same (``put_inner``, ``put_all``, ``put_together``). ``end``, at the end of each turn of the loop or
when the turn holds much, stores all records by one write (``MessageStore.commit``). Then the answers go out: at once
with ASYNC_FLUSH; with SYNC_FLUSH after the flush that covers the write (group commit: one flush covers all turns
written before it began), with SYNC_MASTER once a slave has the records (:mod:`cometmq.broker.turn.waiters`).

Invariants.

* Nothing is answered as stored, and no service goes on, before the write of its turn; with SYNC_FLUSH before its flush.
* Places in log and queues are given in the order of the puts, and are true once the turn is stored.
* Records of one request are stored together or not at all (``all_or_none``): the first part of a batch cannot fail.
* A topic is in its file before its first message is in the log: a start after a crash hides messages of others.

Fault model. A write that fails (full disk, I/O error) stores nothing of the turn: the buffer is dropped, the places are
given again, and every request and service of the turn is refused. A crash loses the turns that were not answered, or
stores some of their records: clients send these again, services find them in the log. After a flush that failed the
store takes no message, and waiting answers are refused. A flush that takes longer than ``syncFlushTimeout`` is answered
FLUSH_DISK_TIMEOUT; the record is stored anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from cometmq.broker.limits import MAX_TURN_BYTES
from cometmq.broker.metrics.stats import BrokerStats
from cometmq.broker.metrics.traffic import DELAY, FIFO, NORMAL, SMALL_BYTES
from cometmq.broker.turn.answers import PendingSend, PlainAnswers
from cometmq.broker.turn.inner_message import InnerMessage, SendProperties, Stored, read_properties
from cometmq.broker.turn.targets import RefusedError, SendTarget, SendTargets
from cometmq.broker.turn.waiters import SendWaiters
from cometmq.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_CHARS
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.record import MIN_RECORD_BYTES
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.errors import StoreError
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET
from cometmq.store.message_store import ConsumeQueue

_log = logging.getLogger(__name__)

_HOST_FLAGS: Final = BORNHOST_V6 | STOREHOST_V6

_MAX_OVERHEAD_BYTES: Final = MIN_RECORD_BYTES + 2 * (IPV6_HOST_BYTES - IPV4_HOST_BYTES) + MAX_TOPIC_CHARS + 8
"""The most that a record adds to body and properties, with the filler that must fit behind it."""

WhenStored = Callable[[Stored | RefusedError], None]
"""Called with the place of a message that is stored (with SYNC_FLUSH: flushed; with SYNC_MASTER: at a slave, or the
time for that is up), or with the reason why it is not."""

Late = Callable[[], None]
"""Called when a flush takes longer than ``syncFlushTimeout``; ``WhenStored`` is called later anyway."""


class StoreTurn:
    """The records of the current turn, and the answers that wait for them.

    ``end`` must be called at the end of every turn of the loop.

    :param schedule: ends a turn of the loop soon.
    """

    def __init__(
        self,
        targets: SendTargets,
        waiters: SendWaiters,
        stats: BrokerStats,
        schedule: Callable[[], None],
    ) -> None:
        self._targets = targets
        self._store = waiters.store
        self._stats = stats
        self._answers = waiters.answers
        self._store_host = waiters.answers.store_host
        self._host_flags = STOREHOST_V6 if len(self._store_host) == IPV6_HOST_BYTES else 0
        self._schedule = schedule
        self._clock = waiters.store.clock
        self.waiters: Final = waiters
        self.waits: Final = waiters.needed
        """True when answers wait for more than the write."""
        self._pending: list[PendingSend | PlainAnswers] = []
        self._inner: list[tuple[WhenStored, Stored]] = []
        self._late: list[Late] = []
        self._touched: list[SendTarget] = []
        self._size_bytes = 0
        self._began_ms = 0
        self.settle: Callable[[], None] | None = None
        """Puts the plain sends that the compiled core has taken; they stand before what is put next."""
        self._stopping = False
        self._forbidden: RefusedError | None = None
        self.max_stored_bytes: Final = waiters.store.config.mapped_file_size_commit_log - _MAX_OVERHEAD_BYTES
        """The most bytes of body and properties that fit into one log file under any topic, as parked messages must."""
        self.is_open = False
        """True once ``begin`` was called in this turn."""
        self.refusal: RefusedError | None = None
        """The reason why nothing can be stored in this turn."""

    def begin(self) -> None:
        """Begin a turn with its first message: find out if messages can be stored now."""
        self.is_open = True
        self._began_ms = self._clock.now_ms()
        error = self._store.writable()
        if self._stopping:
            self.refusal = RefusedError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker is shutting down"
            )
        elif error is not None:
            self.refusal = _not_available(error)
        else:
            self.refusal = self._forbidden

    def forbid(self, why: RefusedError) -> None:
        """Refuse every message, as a slave does."""
        self._forbidden = why

    def stop(self) -> None:
        """Refuse every message from now on; messages put before are still stored and answered."""
        self._stopping = True
        self.is_open = False

    async def finished(self) -> None:
        """Wait until all answers are given."""
        await self.waiters.finished()

    # --- putting ------------------------------------------------------------------------------
    def put(
        self,
        target: SendTarget,
        queue: ConsumeQueue,
        body: bytes,
        properties: SendProperties,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int = 0,
        kind: str = NORMAL,
    ) -> tuple[int, int]:
        """Put a record into the store's buffer; return its log offset and queue offset.

        The turn must be open and not refused.

        :param kind: the type of the message, for metrics.
        :raises RefusedError: the message does not fit into a record; the turn is as it was.
        """
        if self.settle is not None:
            self.settle()
        sys_flag = sys_flag & ~_HOST_FLAGS | self._host_flags
        if len(born_host) == IPV6_HOST_BYTES:
            sys_flag |= BORNHOST_V6
        try:
            physical_offset = self._store.put(
                queue,
                body,
                properties.stored,
                flag,
                sys_flag,
                born_timestamp,
                born_host,
                self._store_host,
                reconsume_times,
                prepared_transaction_offset,
                properties.tags_code,
                properties.index_keys,
            )
        except Exception as error:
            raise _failed(error) from error
        size = len(body) + len(properties.stored) + len(target.topic) + MIN_RECORD_BYTES
        if not target.messages:
            self._touched.append(target)
        target.messages += 1
        target.size_bytes += size
        if kind is not NORMAL:
            target.count_typed(kind, (size,))
        elif size > SMALL_BYTES:
            target.count_large((size,))
        self._size_bytes += size
        return physical_offset, 0 if sys_flag & NO_QUEUE_OFFSET else queue.next_offset - 1

    def put_plain(
        self,
        topics: Iterable[tuple[SendTarget, int, int, tuple[list[int], list[int]] | None]],
        answers: list[tuple[ServerConnection, bytes, bytes, int, int]],
    ) -> None:
        """Count the plain sends that the compiled core has put into the store's buffer; answer them when stored.

        :param topics: each topic with its messages, their bytes, and the sizes of its large and of its FIFO messages,
            if there are any.
        :param answers: as in :class:`~cometmq.broker.turn.answers.PlainAnswers`.
        """
        for target, messages, size, sizes in topics:
            if not target.messages:
                self._touched.append(target)
            target.messages += messages
            target.size_bytes += size
            if sizes is not None:
                large, fifo = sizes
                if large:
                    target.count_large(large)
                if fifo:
                    target.count_typed(FIFO, fifo)
            self._size_bytes += size
        if answers:
            latency = self._answers.latency
            self._pending.append(PlainAnswers(answers, True, 0.0 if latency is None else latency.began))

    def answer(self, send: PendingSend) -> None:
        """Answer a request once its records are stored."""
        self._pending.append(send)

    def notify(self, when_stored: WhenStored, stored: Stored) -> None:
        """Call ``when_stored`` with the outcome of records that a request put at ``stored``."""
        self._inner.append((when_stored, stored))

    def end_if_full(self) -> None:
        """End the turn early when it holds much."""
        if self._size_bytes > MAX_TURN_BYTES:
            self.end()

    def put_message(self, message: InnerMessage, read: SendProperties | None = None, kind: str = NORMAL) -> Stored:
        """Put a message of the broker itself, without the checks of a send; the turn must be open.

        A queue that its topic does not have any more is replaced by one that it has.

        :param read: its properties, if they were read already.
        :param kind: as for :meth:`put`.
        :raises RefusedError: properties longer than RocketMQ's limit, more than fits into a log file, an impossible
            topic or queue, a number larger than its field, or nothing can be stored now. The turn is as it was.
        """
        if self.refusal is not None:
            raise self.refusal
        try:
            properties = read or read_properties(message.properties, "")
            properties.stored = message.properties.encode()
            if len(properties.stored) > MAX_PROPERTIES_BYTES:
                raise _illegal(f"its properties have {len(properties.stored)} bytes, limit 32KB.")
            if len(message.body) + len(properties.stored) > self.max_stored_bytes:
                raise _illegal(
                    f"body and properties have more than the {self.max_stored_bytes} bytes that fit into one log file, "
                    "with what the broker adds to messages that wait."
                )
            target = self._targets.inner(message.topic)
            queue = target.queues.get(message.queue_id)
            if queue is None:
                queue = target.queues[message.queue_id] = target.open_inner(message.queue_id)
        except ValueError as error:
            raise _failed(error) from error
        physical_offset, queue_offset = self.put(
            target,
            queue,
            message.body,
            properties,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            kind,
        )
        return Stored(physical_offset, queue_offset)

    def put_inner(
        self,
        message: InnerMessage,
        when_stored: WhenStored,
        read: SendProperties | None = None,
        late: Late | None = None,
    ) -> None:
        """Put a message of the broker itself and call ``when_stored`` with the outcome.

        :param read: as for :meth:`put_message`.
        :param late: for a request, whose answer must not wait for a flush without a limit.
        :raises RefusedError: it cannot be stored now; ``when_stored`` is not called then.
        """
        self.put_together(((message, read),), when_stored, late)

    def put_all(self, messages: Iterable[InnerMessage], when_stored: WhenStored) -> int:
        """Put delayed messages that are due in one turn and call ``when_stored`` once, with the last one's place.

        Returns how many were put; messages that can never be stored are left out and logged. All are stored, or none.

        :raises RefusedError: nothing can be stored now; ``when_stored`` is not called then.
        """
        self._open()
        if self.refusal is not None:
            raise self.refusal
        count = 0
        try:
            with self.all_or_none():
                for message in messages:
                    try:
                        stored = self.put_message(message, kind=DELAY)
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

    def put_together(
        self,
        messages: Iterable[tuple[InnerMessage, SendProperties | None]],
        when_stored: WhenStored,
        late: Late | None = None,
        kind: str = NORMAL,
    ) -> list[Stored]:
        """Put messages of the broker itself, each with its properties if they were read already.

        All are stored, or none; ``when_stored`` is called once, with the last one's place.

        :param late: as for :meth:`put_inner`.
        :param kind: as for :meth:`put`.
        :raises RefusedError: one cannot be stored now; ``when_stored`` is not called then.
        """
        self._open()
        try:
            with self.all_or_none():
                places = [self.put_message(message, read, kind) for message, read in messages]
        except Exception as error:
            raise _failed(error) from error
        self._inner.append((when_stored, places[-1]))
        if late is not None:
            self._late.append(late)
        self.end_if_full()
        return places

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Undo all records put inside when anything is raised.

        The turn must be open and may not end inside.
        """
        if self.settle is not None:
            self.settle()
        mark = self._store.mark()
        counted = [
            (target, target.messages, target.size_bytes, len(target.large), _lengths(target.typed))
            for target in self._touched
        ]
        size_bytes, inner = self._size_bytes, len(self._inner)
        try:
            yield
        except BaseException:
            self._store.undo_to(mark)
            before = {target for target, *_ in counted}
            for target in self._touched:
                if target not in before:
                    target.forget_turn()
            for target, messages, target_bytes, large, typed in counted:
                target.messages, target.size_bytes = messages, target_bytes
                del target.large[large:]
                target.typed = {kind: target.typed[kind][:count] for kind, count in typed.items()}
            self._touched = [target for target, *_ in counted]
            self._size_bytes = size_bytes
            del self._inner[inner:]
            raise

    def _open(self) -> None:
        """Begin a turn if none is open, and let it end soon, even if it can store nothing."""
        if not self.is_open:
            self.begin()
        self._schedule()

    # --- the end ------------------------------------------------------------------------------
    def end(self) -> None:
        """Store the records of the turn; answer, or let the answers wait for the flush."""
        if self.settle is not None:
            self.settle()
        self.is_open = False
        touched = self._touched
        if not touched:
            return
        pending = self._pending
        inner = self._inner
        late = self._late
        self._pending = []
        self._inner = []
        self._late = []
        self._touched = []
        self._size_bytes = 0
        try:
            self._targets.save_topics()
            position = self._store.commit()
        except Exception as error:
            self._store.rollback()
            self._failed(_failed(error), touched, pending, inner)
            return
        stats = self._stats
        traffic = stats.traffic
        messages = 0
        for target in touched:
            stats.put(target.topic, target.messages, target.size_bytes)
            if traffic is not None:
                traffic.stored(target.topic, target.messages, target.size_bytes, target.large, target.typed)
            messages += target.messages
            target.messages = target.size_bytes = 0
            if target.large or target.typed:
                target.forget_turn()
        stats.put_took(self._clock.now_ms() - self._began_ms, messages)
        if self.waits:
            self.waiters.add(position, [send for send in pending if send.wait])
            pending = [send for send in pending if not send.wait]
            if inner:
                self.waiters.when_safe(position, partial(_safe, inner), partial(_call, late) if late else None)
        elif inner:
            _notify(inner)
        self._answers.stored(pending)

    def _failed(
        self,
        refusal: RefusedError,
        touched: list[SendTarget],
        pending: list[PendingSend | PlainAnswers],
        inner: list[tuple[WhenStored, Stored]],
    ) -> None:
        messages = sum(target.messages for target in touched)
        for target in touched:
            target.forget_turn()
        self._stats.put_failed += messages
        _log.error("%d messages of one turn are not stored: %s", messages, refusal.remark)
        _notify(inner, refusal)
        self._answers.refused(refusal.code, refusal.remark, pending)


def _lengths(typed: Mapping[str, Sequence[int]]) -> dict[str, int]:
    return {kind: len(sizes) for kind, sizes in typed.items()}


def _call(late: list[Late]) -> None:
    for one in late:
        one()


def _notify(inner: list[tuple[WhenStored, Stored]], refusal: RefusedError | None = None) -> None:
    for when_stored, stored in inner:
        try:
            when_stored(stored if refusal is None else refusal)
        except Exception:
            _log.exception("a service failed after its message was stored or refused")


def _safe(inner: list[tuple[WhenStored, Stored]], error: StoreError | None) -> None:
    _notify(inner, None if error is None else _not_available(error))


def _illegal(why: str) -> RefusedError:
    return RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal, {why}")


def _failed(error: Exception) -> RefusedError:
    """The refusal for an error; an unforeseen one is logged with its traceback."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, StoreError):
        return _not_available(error)
    if isinstance(error, ValueError):
        return _illegal(str(error))
    _log.error("messages are not stored, by an error of the broker itself", exc_info=error)
    return RefusedError(ResponseCode.SYSTEM_ERROR, f"not stored, an error inside: {type(error).__name__}: {error}")


def _not_available(error: StoreError) -> RefusedError:
    return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}")
