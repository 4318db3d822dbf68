"""What one turn of the loop stores: put record by record, written by one write, then told to everybody who waits.

A request only puts its record into the store's buffer and remembers who asked; so do the broker's own
services. At the end of the turn one write stores all records, and only then are their requests answered.
With SYNC_FLUSH the answers wait for the flush that covers the write, with SYNC_MASTER for a slave that has it. A write
that fails stores nothing of the turn, and everybody is told so (hot path).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from cometmq.broker.answers import PendingSend, SendAnswers
from cometmq.broker.inner_message import InnerMessage, Stored
from cometmq.broker.send_properties import SendProperties, read_properties
from cometmq.broker.send_targets import SendRefusedError, SendTarget, SendTargets
from cometmq.broker.send_waiters import SendWaiters
from cometmq.broker.stats import BrokerStats
from cometmq.clock import Clock
from cometmq.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_CHARS, MAX_TURN_BYTES
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.record import MIN_RECORD_BYTES
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6
from cometmq.remoting.codes import ResponseCode
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore, TopicQueue
from cometmq.store.record_scan import NO_QUEUE_OFFSET

_log = logging.getLogger(__name__)

_HOST_FLAGS: Final = BORNHOST_V6 | STOREHOST_V6

_MAX_OVERHEAD_BYTES: Final = MIN_RECORD_BYTES + 2 * (IPV6_HOST_BYTES - IPV4_HOST_BYTES) + MAX_TOPIC_CHARS + 8
"""What a record adds to body and properties at most, and the filler that must fit behind it."""

WhenStored = Callable[[Stored | SendRefusedError], None]
"""Told where an inner message was stored (with SYNC_FLUSH: and flushed; with SYNC_MASTER: and is at a slave, or is not
in time), or why it was not."""


Late = Callable[[], None]
"""Called when a flush takes longer than ``syncFlushTimeout``: what was put is stored, and its service is told later."""


class StoreTurn:
    """The records and the waiters of the turn under way.

    ``end`` must be called at the end of every turn of the loop; ``schedule`` sees to it that one ends soon.
    """

    def __init__(
        self,
        targets: SendTargets,
        store: MessageStore,
        stats: BrokerStats,
        answers: SendAnswers,
        store_host: bytes,
        schedule: Callable[[], None],
        *,
        clock: Clock,
        waiters: SendWaiters,
    ) -> None:
        self._targets = targets
        self._store = store
        self._stats = stats
        self._answers = answers
        self._store_host = store_host
        self._host_flags = STOREHOST_V6 if len(store_host) == IPV6_HOST_BYTES else 0
        self._schedule = schedule
        self._clock = clock
        self.waiters: Final = waiters
        self.waits: Final = waiters.needed
        """Whether answers wait for more than the write."""
        self._pending: list[PendingSend] = []
        self._inner: list[tuple[WhenStored, Stored]] = []
        self._late: list[Late] = []
        self._touched: list[SendTarget] = []
        self._size_bytes = 0
        self._began_ms = 0
        self._stopping = False
        self._forbidden: SendRefusedError | None = None
        self.max_stored_bytes: Final = store.config.mapped_file_size_commit_log - _MAX_OVERHEAD_BYTES
        """Body and properties that fit into one log file under any topic: what is parked must fit when it goes on."""
        self.is_open = False
        """Whether ``begin`` was called in this turn."""
        self.refusal: SendRefusedError | None = None
        """Why nothing can be stored in this turn."""

    def begin(self) -> None:
        """The first message of a turn: find out whether messages can be taken now."""
        self.is_open = True
        self._began_ms = self._clock.now_ms()
        error = self._store.writable()
        if self._stopping:
            self.refusal = SendRefusedError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker is shutting down"
            )
        elif error is not None:
            self.refusal = _not_available(error)
        else:
            self.refusal = self._forbidden

    def forbid(self, why: SendRefusedError) -> None:
        """Refuse every message, as a slave does."""
        self._forbidden = why

    def stop(self) -> None:
        """Refuse every message from now on; what is put already is still stored and answered."""
        self._stopping = True
        self.is_open = False

    async def finished(self) -> None:
        """Wait until everything taken in is answered."""
        await self.waiters.finished()

    # --- putting ------------------------------------------------------------------------------
    def put(
        self,
        target: SendTarget,
        queue: TopicQueue,
        body: bytes,
        properties: SendProperties,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int = 0,
    ) -> tuple[int, int]:
        """Put one record into the store's buffer; return its log offset and queue offset.

        The turn must be open and not refused.

        :raises SendRefusedError: no record can hold it; the turn is as it was.
        """
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
        self._size_bytes += size
        return physical_offset, 0 if sys_flag & NO_QUEUE_OFFSET else queue.next_offset - 1

    def answer(self, send: PendingSend) -> None:
        """Answer a request once what it put is stored."""
        self._pending.append(send)

    def tell(self, when_stored: WhenStored, stored: Stored) -> None:
        """Tell a service what becomes of records that a request put at ``stored``."""
        self._inner.append((when_stored, stored))

    def end_if_full(self) -> None:
        """End the turn early when it holds much."""
        if self._size_bytes > MAX_TURN_BYTES:
            self.end()

    def put_message(self, message: InnerMessage, read: SendProperties | None = None) -> Stored:
        """Put a message of the broker's own making, without the checks of a send; the turn must be open.

        The queue comes into being when its topic has none of that number.

        :param read: the tag and the keys of its properties, where they are known already.

        :raises SendRefusedError: properties longer than RocketMQ's limit, more than fits into a log file, a topic or
            queue that cannot be, a number larger than its field, or nothing can be stored now. The turn is as it was.
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
                queue = target.queues[message.queue_id] = self._store.queue(message.topic, message.queue_id)
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
        )
        return Stored(physical_offset, queue_offset)

    def put_inner(
        self,
        message: InnerMessage,
        when_stored: WhenStored,
        read: SendProperties | None = None,
        late: Late | None = None,
    ) -> None:
        """Put a message of the broker's own making and tell ``when_stored`` what became of it.

        :param read: as for :meth:`put_message`.
        :param late: for whoever must not wait for a flush without end: a request.

        :raises SendRefusedError: it cannot be stored now; ``when_stored`` is not called then.
        """
        self.put_together(((message, read),), when_stored, late)

    def put_all(self, messages: Iterable[InnerMessage], when_stored: WhenStored) -> int:
        """Put messages of the broker's own making in one turn and tell ``when_stored`` once, with the last one's place.

        Returns how many were put; what can never be stored is left out and logged. All of them are stored, or none.

        :raises SendRefusedError: nothing can be stored now; ``when_stored`` is not called then.
        """
        self._open()
        if self.refusal is not None:
            raise self.refusal
        count = 0
        try:
            with self.all_or_none():
                for message in messages:
                    try:
                        stored = self.put_message(message)
                    except SendRefusedError as error:
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
    ) -> list[Stored]:
        """Put messages of the broker's own making, each with its properties where they are known already.

        All of them are stored, or none; ``when_stored`` is told once, with the last one's place.

        :param late: as for :meth:`put_inner`.

        :raises SendRefusedError: one cannot be stored now; ``when_stored`` is not called then.
        """
        self._open()
        try:
            with self.all_or_none():
                places = [self.put_message(message, read) for message, read in messages]
        except Exception as error:
            raise _failed(error) from error
        self._inner.append((when_stored, places[-1]))
        if late is not None:
            self._late.append(late)
        self.end_if_full()
        return places

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Records that are put together: when one of them cannot be, whatever is raised, none of them is.

        The turn must be open and may not end inside.
        """
        mark = self._store.mark()
        counted = [(target, target.messages, target.size_bytes) for target in self._touched]
        size_bytes, told = self._size_bytes, len(self._inner)
        try:
            yield
        except BaseException:
            self._store.undo_to(mark)
            for target in self._touched:
                target.messages = target.size_bytes = 0
            for target, messages, target_bytes in counted:
                target.messages, target.size_bytes = messages, target_bytes
            self._touched = [target for target, _, _ in counted]
            self._size_bytes = size_bytes
            del self._inner[told:]
            raise

    def _open(self) -> None:
        """Begin a turn, if none is, that ends by itself: also one that can take nothing."""
        if not self.is_open:
            self.begin()
        self._schedule()

    # --- the end ------------------------------------------------------------------------------
    def end(self) -> None:
        """Store what the turn put and answer, or let the answers wait for the flush."""
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
        messages = 0
        for target in touched:
            stats.put(target.topic, target.messages, target.size_bytes)
            messages += target.messages
            target.messages = 0
            target.size_bytes = 0
        stats.put_took(self._clock.now_ms() - self._began_ms, messages)
        if self.waits:
            self.waiters.add(position, [send for send in pending if send.wait])
            pending = [send for send in pending if not send.wait]
            if inner:
                self.waiters.when_safe(position, partial(_safe, inner), partial(_call, late) if late else None)
        elif inner:
            _tell(inner)
        self._answers.stored(pending)

    def _failed(
        self,
        refusal: SendRefusedError,
        touched: list[SendTarget],
        pending: list[PendingSend],
        inner: list[tuple[WhenStored, Stored]],
    ) -> None:
        messages = sum(target.messages for target in touched)
        for target in touched:
            target.messages = 0
            target.size_bytes = 0
        self._stats.put_failed += messages
        _log.error("%d messages of one turn are not stored: %s", messages, refusal.remark)
        _tell(inner, refusal)
        self._answers.refused(refusal.code, refusal.remark, pending)


def _call(late: list[Late]) -> None:
    for one in late:
        one()


def _tell(inner: list[tuple[WhenStored, Stored]], refusal: SendRefusedError | None = None) -> None:
    for when_stored, stored in inner:
        try:
            when_stored(stored if refusal is None else refusal)
        except Exception:
            _log.exception("a service failed after its message was stored or refused")


def _safe(inner: list[tuple[WhenStored, Stored]], error: StoreError | None) -> None:
    _tell(inner, None if error is None else _not_available(error))


def _illegal(why: str) -> SendRefusedError:
    return SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal, {why}")


def _failed(error: Exception) -> SendRefusedError:
    """The answer to what is not stored; what nobody foresaw is logged with its traceback."""
    if isinstance(error, SendRefusedError):
        return error
    if isinstance(error, StoreError):
        return _not_available(error)
    if isinstance(error, ValueError):
        return _illegal(str(error))
    _log.error("messages are not stored, which is an error of the broker's", exc_info=error)
    return SendRefusedError(ResponseCode.SYSTEM_ERROR, f"not stored, an error inside: {type(error).__name__}: {error}")


def _not_available(error: StoreError) -> SendRefusedError:
    return SendRefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}")
