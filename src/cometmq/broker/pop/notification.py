"""Queries about waiting messages: NOTIFICATION (200054), PEEK_MESSAGE (200052) and POLLING_INFO (200055).

(``NotificationProcessor``, ``PeekMessageProcessor``, ``PollingInfoProcessor``.) These requests do not hand out
messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_POP_MESSAGES, MAX_POP_WAIT_MS, POP_READS_MAX, POP_SKIPPED_MAX
from cometmq.broker.pop.own_retries import own_retries
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.pop_long_polling import HeldPop, PopLongPollingService
from cometmq.broker.pop.pop_message import PopMessageProcessor
from cometmq.broker.pop.popped_records import Chunks
from cometmq.broker.pull.filters import EVERYTHING, MessageFilter, PullFilters
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.names import PERM_READ
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.permissions import Action, needs_group, needs_topic
from cometmq.remoting.pop_headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageResponseHeader,
)
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue, GetMessageStatus

_SUB = needs_topic(Action.SUB) & needs_group(Action.SUB)
_HAS_MESSAGES = Response(0, NotificationResponseHeader(has_msg=True))


class NotificationProcessor:
    """Handles queries about the messages that a pop would find."""

    def __init__(
        self,
        broker: BrokerContext,
        filters: PullFilters,
        pops: PopMessageProcessor,
        log: PopLog,
        polling: PopLongPollingService,
    ) -> None:
        self._live = broker.live
        self._store = broker.store
        self._clock = broker.clock
        self._filters = filters
        self._pops = pops
        self._state = log.state
        self._polling = polling

    @answers(
        RequestCode.NOTIFICATION,
        header=NotificationRequestHeader,
        limits=("MAX_POP_WAIT_MS", "MAX_HELD_POPS_OF_CONNECTION"),
        permission=_SUB,
    )
    def notify(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Answer as soon as a pop would find a message, or when the wait time has ended."""
        header: NotificationRequestHeader = request.header
        self._check_readable("notification")
        self._pops.check_names(connection, header)
        wanted = self._filters.of_pop(header.exp, header.exp_type)
        if self._has_messages(header, wanted):
            return _HAS_MESSAGES
        now_ms = self._clock.now_ms()
        wait_ms = min((header.born_time or now_ms) + header.poll_time - now_ms, header.poll_time, MAX_POP_WAIT_MS)
        if wait_ms > 0:
            held = HeldPop(connection, request, self._retry_held, _not_found, wanted=wanted)
            if self._polling.hold(held, wait_ms):
                return None
            return Response(0, NotificationResponseHeader(polling_full=True))
        return _not_found()

    def _retry_held(self, held: HeldPop) -> bool:
        self._pops.check_names(held.connection, held.request.header)
        if not self._has_messages(held.request.header, held.wanted):
            return False
        held.connection.respond(held.request, _HAS_MESSAGES, polling=True)
        return True

    def _has_messages(self, header: NotificationRequestHeader, wanted: MessageFilter) -> bool:
        """Return whether a pop would find a message, or might find one after the messages that this query reads."""
        group, in_order = header.consumer_group, bool(header.order)
        retry = self._pops.retry_topic(header.topic, group, in_order=in_order)
        if retry is not None:
            own = own_retries(wanted, retry.topic_name, group)
            for queue_id in range(retry.read_queue_nums):
                if self._count_unwanted(self._store.find_queue(retry.topic_name, queue_id), group, own) is None:
                    return True
        queue_ids = [header.queue_id]
        if header.queue_id < 0:
            queue_ids = list(range(self._pops.readable(header.topic).read_queue_nums))
        skipped = 0
        for queue_id in queue_ids:
            state = self._state.find(header.topic, group, queue_id) if in_order else None
            if state is not None and state.ordered is not None:
                if state.ordered.is_locked(self._clock.now_ms(), header.attempt_id or ""):
                    continue
                if state.ordered.messages:
                    return True
            unwanted = self._count_unwanted(self._store.find_queue(header.topic, queue_id), group, wanted)
            if unwanted is None or skipped + unwanted >= POP_SKIPPED_MAX:
                return True
            skipped += unwanted
        return False

    def _count_unwanted(self, queue: ConsumeQueue | None, group: str, wanted: MessageFilter) -> int | None:
        """Return the number of messages if the filter rejects all of them, or ``None`` if it may accept some."""
        if queue is None:
            return 0
        begin = offset = self._pops.offset(group, queue)
        if offset < queue.min_offset():  # archived messages would have to be loaded first
            return None
        if wanted.wants_all or offset == queue.max_offset():
            return None if offset < queue.max_offset() else 0
        for _ in range(POP_READS_MAX):
            found = self._store.get_message(
                queue, offset, 1, tag_codes=wanted.codes, predicate=wanted.predicate, choose=wanted.choose
            )
            if found.status is GetMessageStatus.FOUND:
                return None
            offset = found.next_begin_offset
            if offset == queue.max_offset():
                break
        return None if begin < offset < queue.max_offset() else offset - begin

    @answers(RequestCode.PEEK_MESSAGE, header=PeekMessageRequestHeader, limits=("MAX_POP_MESSAGES",), permission=_SUB)
    def peek(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """Return the next messages that a pop would hand out."""
        header: PeekMessageRequestHeader = request.header
        self._check_readable("peek")
        self._pops.check_names(connection, header)
        if header.max_msg_nums > MAX_POP_MESSAGES:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._live.current.broker_ip1}] peek message's num is greater than {MAX_POP_MESSAGES}",
            )
        group = header.consumer_group
        retry = self._pops.retry_topic(header.topic, group, in_order=False)
        queues = [] if retry is None else self._queues_of(retry.topic_name, range(retry.read_queue_nums))
        queue_ids: Iterable[int] = [header.queue_id]
        if header.queue_id < 0:
            queue_ids = range(self._pops.readable(header.topic).read_queue_nums)
        queues += self._queues_of(header.topic, queue_ids)
        chunks: Chunks = []
        count = size = rest = 0
        most_bytes = self._live.current.max_transfer_bytes_on_message_in_memory
        for queue in queues:
            offset = max(self._pops.offset(group, queue), queue.min_offset())  # archived messages are not loaded
            rest += queue.max_offset() - offset
            if offset < queue.max_offset() and count < header.max_msg_nums and size < most_bytes:
                own = None if queue.topic == header.topic else own_retries(EVERYTHING, queue.topic, group).predicate
                most = header.max_msg_nums - count
                found = self._store.get_message(queue, offset, most, predicate=own, max_bytes=most_bytes - size)
                if self._filters.expired.may_expire(queue.topic, group):
                    found = self._filters.expired.living(found)
                chunks += found.chunks
                count += found.count
                size += found.size
        answer = PopMessageResponseHeader(0, 0, 0, rest)
        if count:
            return Response(0, answer, "FOUND", chunks)
        return Response(ResponseCode.PULL_NOT_FOUND, answer, "NO_MESSAGE_IN_QUEUE")

    def _queues_of(self, topic: str, queue_ids: Iterable[int]) -> list[ConsumeQueue]:
        found = [self._store.find_queue(topic, queue_id) for queue_id in queue_ids]
        return [queue for queue in found if queue is not None]

    @answers(RequestCode.POLLING_INFO, header=PollingInfoRequestHeader, permission=_SUB)
    def polling_info(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """Return the number of waiting pops."""
        header: PollingInfoRequestHeader = request.header
        self._check_readable("polling info")
        self._pops.check_names(connection, header)
        waiting = self._polling.waiting(header.topic, header.consumer_group, header.queue_id)
        return Response(0, PollingInfoResponseHeader(waiting))

    def _check_readable(self, what: str) -> None:
        config = self._live.current
        if not config.broker_permission & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] {what} is forbidden")


def _not_found() -> Response:
    return Response(0, NotificationResponseHeader())
