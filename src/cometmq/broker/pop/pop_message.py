"""Pops: POP_MESSAGE (200050) (``PopMessageProcessor``; hot path).

A pop reads messages from one queue or all queues of a topic, and from its group's retry topic. It moves the group's
offset past the messages and adds an entry to the POP log. The response is sent once this entry is as durable as a send.
As in Apache's broker, messages from a retry topic are rewritten with the topic that the client requested and with their
receipt handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    MAX_ARCHIVE_LOADS_OF_POP,
    MAX_POP_INVISIBLE_MS,
    MAX_POP_MESSAGES,
    MAX_POP_WAIT_MS,
    POP_READS_MAX,
    POP_SKIPPED_MAX,
)
from cometmq.broker.pop.entries import PoppedInOrder, popped
from cometmq.broker.pop.left_behind import LeftBehind
from cometmq.broker.pop.order import NOT_BEGUN, WAITS, OrderedMessages
from cometmq.broker.pop.ordered_choice import OrderedChoice
from cometmq.broker.pop.own_retries import own_retries
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.pop_long_polling import HeldPop, PopLongPollingService
from cometmq.broker.pop.pop_result import PopResult
from cometmq.broker.pop.popped_records import Chunks, record_offsets, to_original_topic
from cometmq.broker.pop.queue_order import Place, QueueOrder
from cometmq.broker.pop.reads import NotLoadedError, PopReads
from cometmq.broker.pop.state import NO_OFFSET, PopQueue
from cometmq.broker.pull.filters import MessageFilter, PullFilters
from cometmq.broker.pull.pull_message import is_in_memory
from cometmq.broker.turn.targets import TOPIC_HELP, RefusedError, consuming_group
from cometmq.limits import MAX_CLIENT_ID_CHARS, MAX_TOPIC_CHARS
from cometmq.message.names import PERM_READ, RETRY_PREFIX
from cometmq.message.pop_info import (
    ORDER_REVIVE_QUEUE,
    ReceiptHandle,
    offset_info,
    pop_retry_topic,
    start_info,
    topic_type,
)
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.permissions import Action, needs_group, needs_topic
from cometmq.remoting.pop_headers import (
    MIN,
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue, GetMessageStatus, GetResult

_LATE_MS: Final = 500
"""A pop is refused if its wait time ended at least this many milliseconds ago."""
_EARLY_MS: Final = 20
"""Milliseconds before the end of the wait time at which a waiting pop is answered."""

_NOTHING: Final = PopResult(0)
"""The result of a pop that finds nothing in the usual way; it is never changed."""

PopHeader = PopMessageRequestHeader | NotificationRequestHeader | PeekMessageRequestHeader | PollingInfoRequestHeader


class PopMessageProcessor:
    """Answers pops or holds them until messages arrive."""

    def __init__(
        self,
        broker: BrokerContext,
        filters: PullFilters,
        log: PopLog,
        polling: PopLongPollingService,
        reads: PopReads,
        left: LeftBehind,
    ) -> None:
        self._left = left
        self._live = broker.live
        self._topics = broker.topics
        self._groups = broker.groups
        self._offsets = broker.offsets
        self._store = broker.store
        self._stats = broker.stats
        self._clock = broker.clock
        self._limiter = broker.limiter
        self._filters = filters
        self._log = log
        self._state = log.state
        self._polling = polling
        self._reads = reads
        self._order = QueueOrder(broker.live, broker.groups)

    @answers(
        RequestCode.POP_MESSAGE,
        header=PopMessageRequestHeader,
        limits=(
            "MAX_POP_MESSAGES",
            "MAX_POP_INVISIBLE_MS",
            "MAX_POP_WAIT_MS",
            "MAX_HELD_POPS_OF_CONNECTION",
            "MAX_OWNED_GROUPS_OF_CONNECTION",
        ),
        permission=needs_topic(Action.SUB) & needs_group(Action.SUB),
    )
    def pop(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Hand out messages for a limited time, or wait until messages arrive."""
        header: PopMessageRequestHeader = request.header
        now_ms = self._clock.now_ms()
        header.born_time = header.born_time or now_ms
        wanted = self._check(connection, header, now_ms)
        if header.owner is not None:
            self._left.enter(connection, header.consumer_group, header.owner)
        collected = self._collect(header, wanted)
        if collected.count:
            self._answer_when_stored(connection, request, collected)
            return None
        wait_ms = min(header.born_time + header.poll_time - now_ms - _EARLY_MS, header.poll_time, MAX_POP_WAIT_MS)
        if header.poll_time > 0 and wait_ms > 0:
            held = HeldPop(connection, request, self._retry_held, partial(self._not_found, header), wanted=wanted)
            if self._polling.hold(held, wait_ms):
                if collected.is_cut:
                    self._polling.wake(*held.key)
                return None
            return Response(
                ResponseCode.POLLING_FULL, self._empty_header(header), "too many pops are waiting on this broker"
            )
        return self._not_found(header)

    def _retry_held(self, held: HeldPop) -> bool:
        header: PopMessageRequestHeader = held.request.header
        self.check_names(held.connection, header)
        collected = self._collect(header, held.wanted)
        if collected.count:
            self._answer_when_stored(held.connection, held.request, collected)
            return True
        if collected.is_cut:
            self._polling.wake(*held.key)
        return False

    # --- checks, in Apache's order ----------------------------------------------------------------
    def _check(self, connection: ServerConnection, header: PopMessageRequestHeader, now_ms: int) -> MessageFilter:
        ip = self._live.current.broker_ip1
        if now_ms - header.born_time - header.poll_time > _LATE_MS:
            raise RefusedError(ResponseCode.POLLING_TIMEOUT, f"the broker[{ip}] pop message is timeout too much")
        if not self._live.current.broker_permission & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{ip}] pop message is forbidden")
        if header.max_msg_nums > MAX_POP_MESSAGES:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{ip}] pop message's num is greater than {MAX_POP_MESSAGES}",
            )
        if header.owner is not None and len(header.owner) > MAX_CLIENT_ID_CHARS:
            remark = f"the owner has {len(header.owner)} characters, the maximum is {MAX_CLIENT_ID_CHARS}"
            raise RefusedError(ResponseCode.INVALID_PARAMETER, remark)
        if not 0 <= header.invisible_time <= MAX_POP_INVISIBLE_MS:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime[{header.invisible_time}] is illegal, use 0 to {MAX_POP_INVISIBLE_MS} milliseconds",
            )
        self.check_names(connection, header)
        return self._filters.of_pop(header.exp, header.exp_type)

    def check_names(self, connection: ServerConnection, header: PopHeader) -> None:
        """Check the topic, queue and group of a request.

        :raises RefusedError: one of these does not exist or does not allow pops.
        """
        check_queue(self.readable(header.topic), header.queue_id, connection)
        name = header.consumer_group
        consuming_group(self._groups, name)
        retry = pop_retry_topic(header.topic, name)
        in_order = isinstance(header, PopMessageRequestHeader | NotificationRequestHeader) and header.order
        if len(retry) > MAX_TOPIC_CHARS and not in_order and not header.topic.startswith(RETRY_PREFIX):
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"the retry topic {retry} has {len(retry)} characters, the maximum is {MAX_TOPIC_CHARS}; "
                "use a shorter name for the group or the topic",
            )

    def readable(self, name: str) -> TopicConfig:
        """Return a topic if it allows reading.

        :raises RefusedError: the topic does not exist or does not allow reading.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {TOPIC_HELP}"
            )
        if not topic.perm & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        return topic

    # --- popping ----------------------------------------------------------------------------------
    def _collect(self, header: PopMessageRequestHeader, wanted: MessageFilter) -> PopResult:
        """Collect messages from the queues and the retry topic."""
        topic = self.readable(header.topic)
        retry = self.retry_topic(header.topic, header.consumer_group, in_order=bool(header.order))
        group, in_order = header.consumer_group, bool(header.order)
        if header.queue_id < 0 and not in_order and self._has_read_all(topic, retry, group):
            return _NOTHING
        places = self._order.places(topic, retry, header)
        collected = PopResult(self._pop_time(group, places))
        take = self._pop_in_order if in_order else self._pop_queue
        own = wanted if retry is None else own_retries(wanted, retry.topic_name, group)
        try:
            for name, queue_id in places:
                if collected.skipped >= POP_SKIPPED_MAX and not collected.count:
                    collected.is_cut = True
                    break
                queue = self._store.find_queue(name, queue_id)
                if queue is None:  # clients wait for the first message of thousands of queues
                    self._begin_at_zero(group, name, queue_id)
                else:
                    take(header, wanted if name == header.topic else own, collected, queue)
        except RefusedError:
            if not collected.count:
                raise
        key = header.topic, group
        for missing in collected.not_loaded[:MAX_ARCHIVE_LOADS_OF_POP]:
            self._reads.load(missing, key, partial(self._polling.wake, *key))
        return collected

    def _has_read_all(self, topic: TopicConfig, retry: TopicConfig | None, group: str) -> bool:
        """Return whether a group has read all queues to their ends, as before most pops that will wait."""
        return self._is_read(topic, group) and (retry is None or self._is_read(retry, group))

    def _is_read(self, topic: TopicConfig, group: str) -> bool:
        name, count = topic.topic_name, topic.read_queue_nums
        queues, offsets = self._store.queues().get(name, {}), self._offsets.queues_of(group, name)
        if offsets is None:
            return False
        ends = [0 if (queue := queues.get(queue_id)) is None else queue.max_offset() for queue_id in range(count)]
        return offsets.first(count) == ends

    def retry_topic(self, topic: str, group: str, *, in_order: bool) -> TopicConfig | None:
        """Return the retry topic that pops of a topic also read, if it exists."""
        if in_order or topic.startswith(RETRY_PREFIX):
            return None
        return self._topics.get(pop_retry_topic(topic, group))

    def _pop_time(self, group: str, places: Sequence[Place]) -> int:
        """Return the pop time: the current time, or a later time if handles for these queues already contain it."""
        latest = 0
        for topic, queue_id in places:
            queue = self._state.find(topic, group, queue_id)
            if queue is not None:
                latest = max(latest, queue.floor_ms, 0 if queue.ordered is None else queue.ordered.latest)
        return max(self._clock.now_ms(), latest + 1)

    def _pop_queue(
        self, header: PopMessageRequestHeader, wanted: MessageFilter, collected: PopResult, queue: ConsumeQueue
    ) -> None:
        """Pop messages from one queue."""
        topic, queue_id = queue.topic, queue.queue_id
        if self._offsets.query(header.consumer_group, topic, queue_id) == queue.max_offset():
            return  # the usual case of a pop that will wait
        begin = offset = self._init_offset(header, queue)
        most = header.max_msg_nums - collected.count
        config = self._live.current
        is_full = has_too_many_in_flight(config, self._state.find(topic, header.consumer_group, queue_id))
        if is_full or most <= 0 or collected.size >= config.max_transfer_bytes_on_message_in_memory:
            collected.rest += max(queue.max_offset() - offset, 0)
            return
        for _ in range(POP_READS_MAX):
            if offset == queue.max_offset():
                break
            most_bytes = config.max_transfer_bytes_on_message_in_memory - collected.size
            try:
                result = self._reads.living(queue, offset, most, wanted, most_bytes, header.consumer_group)
            except NotLoadedError as missing:
                collected.not_loaded.append(missing.place)
                break
            offset = result.next_begin_offset
            if result.status is GetMessageStatus.FOUND:
                self._add_popped(header, collected, queue, result)
                collected.moves.append((topic, queue_id, begin, offset))
                break
        if offset != begin:
            self._offsets.set_offset(header.consumer_group, topic, queue_id, offset)
            collected.skip(begin, offset, queue)
        collected.rest += max(queue.max_offset() - offset, 0)

    def _add_popped(
        self, header: PopMessageRequestHeader, collected: PopResult, queue: ConsumeQueue, result: GetResult
    ) -> None:
        self._log.check()
        topic, queue_id, group = queue.topic, queue.queue_id, header.consumer_group
        chunks = result.chunks
        offsets = record_offsets(chunks)
        self._log.add(
            popped(
                *(topic, group, queue_id, offsets, result.next_begin_offset),
                *(collected.pop_time, header.invisible_time),
            )
        )
        if header.owner is not None:
            collected.popped.append((topic, queue_id, offsets))
        self._add_to_answer(header, collected, queue, topic_type(topic, group), offsets, chunks)

    def _pop_in_order(
        self, header: PopMessageRequestHeader, wanted: MessageFilter, collected: PopResult, queue: ConsumeQueue
    ) -> None:
        """Pop messages in order from a queue or from its unlocked message groups."""
        topic, queue_id, group, attempt_id = queue.topic, queue.queue_id, header.consumer_group, header.attempt_id or ""
        begin = self._init_offset(header, queue)
        state = self._state.queue(topic, group, queue_id)
        if state.ordered is None:
            state.ordered = OrderedMessages(begin)
        ordered = state.ordered
        if ordered.committed != begin:
            ordered.move_to(begin)
        now_ms = self._clock.now_ms()
        if not header.by_message_group and ordered.is_locked(now_ms, attempt_id):
            return
        most = header.max_msg_nums - collected.count
        if most <= 0:
            collected.rest += max(queue.max_offset() - ordered.next_offset, 0)
            return
        most_bytes = self._live.current.max_transfer_bytes_on_message_in_memory - collected.size
        choice = OrderedChoice(self._reads, queue, ordered, group=group, most=most, most_bytes=most_bytes)
        if header.by_message_group:
            choice.by_group(wanted, now_ms, attempt_id)
        else:
            choice.by_queue(wanted)
        collected.not_loaded += choice.not_loaded
        counts = ordered.counts(choice.offsets, attempt_id, choice.firsts)
        for offset in choice.lost:
            ordered.remove(offset)
        offsets, next_offset = choice.offsets, choice.next_offset
        collected.rest += max(queue.max_offset() - next_offset, 0)
        if not offsets and not choice.waiting:
            collected.skip(ordered.next_offset, next_offset, queue)
            ordered.next_offset = next_offset
            if not ordered.messages:
                self._offsets.set_offset(group, topic, queue_id, next_offset)
                state.next_offset = next_offset
            return
        self._log.check()
        times = collected.pop_time, header.invisible_time
        by_group = bool(header.by_message_group)
        marked = choice.waiting + choice.not_begun
        marks = [WAITS] * len(choice.waiting) + [NOT_BEGUN] * len(choice.not_begun)
        handed = topic, group, queue_id, offsets + marked, counts + marks, next_offset
        self._log.add(PoppedInOrder(*handed, *times, attempt_id if offsets else "", by_group))
        if not offsets:
            self._log.when_stored(_ignore_outcome)
            return
        committed = self._state.queue(topic, group, queue_id).next_offset
        self._offsets.set_offset(group, topic, queue_id, committed)
        kind = topic_type(topic, group)
        for offset, count in zip(offsets, counts, strict=True):
            if count:
                collected.order_counts.append(f"{kind} qo{queue_id}%{offset} {count}")
        collected.order_counts.append(f"{kind} {queue_id} {min(counts)}")
        self._add_to_answer(header, collected, queue, kind, offsets, choice.chunks)
        collected.moves.append((topic, queue_id, begin, committed))

    def _add_to_answer(
        self,
        header: PopMessageRequestHeader,
        collected: PopResult,
        queue: ConsumeQueue,
        kind: str,
        offsets: list[int],
        chunks: Chunks,
    ) -> None:
        collected.starts.append(start_info(kind, queue.queue_id, offsets[0]))
        collected.offsets.append(offset_info(kind, queue.queue_id, offsets))
        collected.count += len(offsets)
        size = sum(map(len, chunks))
        collected.size += size
        if queue.topic.startswith(RETRY_PREFIX) and not header.topic.startswith(RETRY_PREFIX):
            handle = ReceiptHandle(
                *(offsets[0], collected.pop_time, header.invisible_time, _revive_queue(header), kind),
                *(self._live.current.broker_name, queue.queue_id, 0),
            )
            collected.retries += len(offsets)
            collected.retries_size += size
            chunks = [to_original_topic(b"".join(chunks), header.topic, handle)]
        collected.chunks += chunks

    def _init_offset(self, header: PopMessageRequestHeader, queue: ConsumeQueue) -> int:
        """Return a group's offset in a queue. If there is none, commit one first."""
        offset = self.offset(header.consumer_group, queue, header.init_mode)
        if self._offsets.query(header.consumer_group, queue.topic, queue.queue_id) == NO_OFFSET:
            self._offsets.set_offset(header.consumer_group, queue.topic, queue.queue_id, offset)
        return offset

    def _begin_at_zero(self, group: str, topic: str, queue_id: int) -> None:
        """Let a group begin with the first message of a queue that has none yet. The queue is not created."""
        if self._offsets.query(group, topic, queue_id):
            self._offsets.set_offset(group, topic, queue_id, 0)

    def offset(self, group: str, queue: ConsumeQueue, init_mode: int = MIN) -> int:
        """Return the offset of a group's next message in a queue (``getPopOffset``)."""
        offset = self._offsets.query(group, queue.topic, queue.queue_id)
        if offset == NO_OFFSET:
            offset = low = queue.min_offset()
            if not queue.topic.startswith(RETRY_PREFIX):
                offset = self._reads.first_offset(queue, 0)
                log_bytes = self._store.max_physical_offset - self._store.min_physical_offset
                if init_mode != MIN and (low > 0 or not is_in_memory(log_bytes, self._live.current)):
                    offset = max(queue.max_offset() - 1, 0)
        return min(max(offset, self._reads.first_offset(queue, offset)), queue.max_offset())

    # --- answers ----------------------------------------------------------------------------------
    def _answer_when_stored(self, connection: ServerConnection, request: Request[Any], collected: PopResult) -> None:
        header: PopMessageRequestHeader = request.header
        response = Response(
            ResponseCode.SUCCESS,
            PopMessageResponseHeader(
                pop_time=collected.pop_time,
                invisible_time=header.invisible_time,
                revive_qid=_revive_queue(header),
                rest_num=collected.rest,
                start_offset_info=";".join(collected.starts),
                msg_offset_info=";".join(collected.offsets),
                order_count_info=";".join(collected.order_counts) if header.order else None,
            ),
            "FOUND",
            collected.chunks,
        )

        def answer(refusal: RefusedError | None) -> None:
            group = header.consumer_group
            if refusal is not None:
                for topic, queue_id, begin, _ in collected.moves:
                    if self._offsets.query(group, topic, queue_id) > begin:
                        self._offsets.set_offset(group, topic, queue_id, begin)
                connection.respond(request, refusal.response(), polling=True)
                return
            if header.owner is not None and collected.popped:
                self._left.popped(connection, group, header.owner, collected.popped, collected.pop_time)
            self._limiter.got(connection, group, collected.count, collected.size)
            self._stats.get(header.topic, group, collected.count, collected.size)
            if collected.retries:
                self._stats.retried(header.topic, group, collected.retries, collected.retries_size)
            if self._stats.traffic is not None:
                for topic, queue_id, _, next_offset in collected.moves:
                    self._stats.traffic.sent_to(topic, group, queue_id, next_offset)
            connection.respond(request, response, polling=True)

        self._log.when_stored_or_late(answer)

    def _empty_header(self, header: PopMessageRequestHeader) -> PopMessageResponseHeader:
        return PopMessageResponseHeader(
            pop_time=self._clock.now_ms(),
            invisible_time=header.invisible_time,
            revive_qid=_revive_queue(header),
            rest_num=0,
            start_offset_info="",
            msg_offset_info="",
            order_count_info="" if header.order else None,
        )

    def _not_found(self, header: PopMessageRequestHeader) -> Response:
        self._stats.count_pull_miss()
        return Response(ResponseCode.POLLING_TIMEOUT, self._empty_header(header), "NO_MESSAGE_IN_QUEUE")


def has_too_many_in_flight(config: BrokerConfig, queue: PopQueue | None) -> bool:
    """Return whether a group has too many messages from a queue in flight (``isPopShouldStop``)."""
    return (
        config.enable_pop_message_threshold
        and queue is not None
        and queue.in_flight >= config.pop_inflight_message_threshold
    )


def _revive_queue(header: PopMessageRequestHeader) -> int:
    return ORDER_REVIVE_QUEUE if header.order else 0


def check_queue(topic: TopicConfig, queue_id: int, connection: ServerConnection, *, lowest: int = -1) -> None:
    """Check the queue ID in a request.

    :raises RefusedError: the topic does not have this queue.
    """
    if not lowest <= queue_id < topic.read_queue_nums:
        raise RefusedError(
            ResponseCode.INVALID_PARAMETER if lowest < 0 else ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{connection.remote_address}]",
        )


def _ignore_outcome(_refusal: RefusedError | None) -> None:
    pass
