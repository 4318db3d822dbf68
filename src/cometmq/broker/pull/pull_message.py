"""Pulls: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361) (``PullMessageProcessor``; hot path).

A response consists of a header and unchanged slices of the log. A pull that finds no messages and may wait is held by
:mod:`cometmq.broker.pull.pull_request_hold`, which runs it again when a message arrives or its wait time ends.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Final

from cometmq.broker.config import SLAVE, BrokerConfig
from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import EXPIRED_READS_MAX
from cometmq.broker.pull.archived_pulls import ArchivedPulls
from cometmq.broker.pull.filters import MessageFilter, PullFilters
from cometmq.broker.pull.held_queue import HeldPull
from cometmq.broker.pull.pull_request_hold import PullRequestHoldService
from cometmq.broker.turn.targets import TOPIC_HELP, RefusedError, consuming_group
from cometmq.message.names import MASTER_ID, PERM_READ
from cometmq.message.sysflag import PULL_COMMIT, PULL_EXPIRED, PULL_SUSPEND
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import PullMessageRequestHeader, PullMessageResponseHeader
from cometmq.remoting.permissions import Action, needs_group, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import GetMessageStatus, GetResult

_MEMORY_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_EMPTY: Final = (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)
_CORRECTED: Final = (
    *_EMPTY,
    GetMessageStatus.OFFSET_TOO_SMALL,
    GetMessageStatus.OFFSET_OVERFLOW_ONE,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
)
"""Results for which a master corrects the offset (``DefaultMessageStore.nextOffsetCorrection``)."""
_CODES: Final = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullMessageProcessor:
    """Answers pulls or holds them until messages arrive."""

    def __init__(self, broker: BrokerContext, filters: PullFilters) -> None:
        self._live = broker.live
        self._topics = broker.topics
        self._groups = broker.groups
        self._filters = filters
        self._expired = filters.expired
        self._offsets = broker.offsets
        self._lives = broker.deletions.lives
        self._store = broker.store
        self._stats = broker.stats
        self.hold: Final = PullRequestHoldService(broker.store, self._answer_held)
        broker.deletions.on_topic.append(self.hold.topic_deleted)
        self._clock = broker.clock
        self._limiter = broker.limiter
        self._archived = broker.archived
        self._archived_pulls = (
            None
            if broker.archived is None
            else ArchivedPulls(broker.archived, broker.store, broker.live, self._check, self._respond_archived)
        )

    @answers(
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        limits=("MAX_HELD_PULLS", "MAX_ARCHIVE_QUESTIONS"),
        permission=needs_topic(Action.SUB) & needs_group(Action.SUB),
    )
    def pull(
        self, connection: ServerConnection, request: Request[PullMessageRequestHeader], _body: bytes
    ) -> Response | None:
        """Answer with messages, or hold the request until messages arrive."""
        header = request.header
        wanted = self._check(connection, header)
        config = self._live.current
        if self._lives.has_readers and self._reads_deleted_topic(connection, header):
            return self._start_at_min_offset(connection, header)
        if header.sys_flag & PULL_COMMIT and config.broker_role != SLAVE:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        result = self._get_message(header, wanted)
        if result.status is GetMessageStatus.OFFSET_TOO_SMALL and self._archived_pulls is not None:
            archived = self._archived_pulls.read(connection, request, wanted, result)
            if archived is None:
                return None
            result = archived
        code = result_code(result.status, header.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PULL_SUSPEND:
            wait_ms = header.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
            if self.hold.hold(HeldPull(connection, request, wanted), result.max_offset, wait_ms):
                return None
        return self._response(connection, header, result, code)

    def _answer_held(self, held: HeldPull) -> Response:
        """Run a held pull again and answer it."""
        header: PullMessageRequestHeader = held.request.header
        try:
            wanted = self._check(held.connection, header)
        except RefusedError as refused:
            return refused.response()
        if held.topic_was_deleted and header.queue_offset > 0:
            return self._start_at_min_offset(held.connection, header)
        result = self._get_message(header, wanted)
        if result.status is GetMessageStatus.OFFSET_TOO_SMALL and self._archived_pulls is not None:
            result = self._archived_pulls.again(header, result)
        return self._respond_with(held.connection, header, result)

    # --- recreated topics -----------------------------------------------------------------------
    def _reads_deleted_topic(self, connection: ServerConnection, header: PullMessageRequestHeader) -> bool:
        """Return whether a consumer's offset belongs to a deleted topic with the same name."""
        reader = connection, header.consumer_group, header.topic, header.queue_id
        reads_deleted = self._lives.reads_earlier(*reader)
        if reads_deleted and not header.queue_offset:
            self._lives.record_reader(*reader)
        return reads_deleted and header.queue_offset > 0

    def _start_at_min_offset(self, connection: ServerConnection, header: PullMessageRequestHeader) -> Response:
        """Return a response that makes the consumer start at the queue's first offset."""
        self._lives.record_reader(connection, header.consumer_group, header.topic, header.queue_id)
        low, high = self._store.extent(header.topic, header.queue_id)
        result = GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, low, low, high)
        return self._response(connection, header, result, ResponseCode.PULL_OFFSET_MOVED)

    # --- checks, in Apache's order --------------------------------------------------------------
    def _check(self, connection: ServerConnection, header: PullMessageRequestHeader) -> MessageFilter:
        config = self._live.current
        if not config.broker_permission & PERM_READ:
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        group = consuming_group(self._groups, header.consumer_group)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {TOPIC_HELP}"
            )
        if not topic.perm & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{connection.remote_address}]",
            )
        return self._filters.of(header, group)

    # --- the answer -----------------------------------------------------------------------------
    def _get_message(self, header: PullMessageRequestHeader, wanted: MessageFilter) -> GetResult:
        began = self._clock.monotonic()
        result = self._read(header, wanted, header.queue_offset)
        if result.count and self._may_expire(header):
            result = self._pass_over_expired(header, wanted, result)
        self._stats.count_read_time(self._clock.monotonic() - began)
        if result.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY and header.topic in self._lives.deleted:
            # The offset belongs to an earlier topic, unless the log lost its end: then the group's offset was set back.
            known = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
            in_queue = result.min_offset <= known <= result.max_offset
            result.next_begin_offset = known if in_queue else result.min_offset
        return result

    def _read(self, header: PullMessageRequestHeader, wanted: MessageFilter, offset: int) -> GetResult:
        queue = self._store.find_queue(header.topic, header.queue_id)
        if queue is None:  # clients wait for the first message of thousands of queues
            return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        config = self._live.current
        most_bytes = config.max_transfer_bytes_on_message_in_memory
        if header.max_msg_bytes is not None:  # 5.x clients may limit the answer with pullBatchSizeInBytes
            most_bytes = min(most_bytes, max(header.max_msg_bytes, 1))
        return self._store.get_message(
            queue,
            offset,
            min(header.max_msg_nums, config.max_transfer_count_on_message_in_memory),
            tag_codes=wanted.codes,
            predicate=wanted.predicate,
            choose=wanted.choose,
            max_bytes=most_bytes,
        )

    def _may_expire(self, header: PullMessageRequestHeader) -> bool:
        is_asked = header.sys_flag & PULL_EXPIRED
        return not is_asked and self._expired.may_expire(header.topic, header.consumer_group)

    def _pass_over_expired(
        self, header: PullMessageRequestHeader, wanted: MessageFilter, result: GetResult
    ) -> GetResult:
        """Leave out the expired messages in a result; if that leaves nothing, read on."""
        again = partial(self._wake, header.topic, header.queue_id)
        for _ in range(EXPIRED_READS_MAX):
            living = self._expired.pass_over(result, header.topic, header.consumer_group, again)
            if living.status is not GetMessageStatus.NO_MATCHED_MESSAGE:
                break
            result = self._read(header, wanted, living.next_begin_offset)
            if result.status is not GetMessageStatus.FOUND:
                return result if result.status is GetMessageStatus.NO_MATCHED_MESSAGE else living
        return living

    def _wake(self, topic: str, queue_id: int) -> None:
        self.hold.arrived((self._store.queue(topic, queue_id),))

    def _respond_archived(
        self, connection: ServerConnection, header: PullMessageRequestHeader, result: GetResult
    ) -> Response:
        if result.count and self._may_expire(header):
            again = partial(self._wake, header.topic, header.queue_id)
            result = self._expired.pass_over(result, header.topic, header.consumer_group, again)
        return self._respond_with(connection, header, result)

    def _respond_with(
        self, connection: ServerConnection, header: PullMessageRequestHeader, result: GetResult
    ) -> Response:
        return self._response(connection, header, result, result_code(result.status, header.queue_offset))

    def _response(
        self, connection: ServerConnection, header: PullMessageRequestHeader, result: GetResult, code: ResponseCode
    ) -> Response:
        if code == ResponseCode.SUCCESS:
            self._limiter.got(connection, header.consumer_group, result.count, result.size)
            self._stats.get(header.topic, header.consumer_group, result.count, result.size)
            if self._stats.traffic is not None:
                self._stats.traffic.sent_to(
                    header.topic, header.consumer_group, header.queue_id, result.next_begin_offset
                )
        else:
            self._stats.count_pull_miss()
        next_offset, next_broker = result.next_begin_offset, self._next_broker_id(header.consumer_group, result)
        config = self._live.current
        if self._archived is not None:
            result.min_offset = self._archived.first_offset(header.topic, header.queue_id)
        if config.broker_role == SLAVE and result.status in _CORRECTED and not config.offset_check_in_slave:
            # The master may have messages beyond the end of this queue: do not correct the offset.
            next_offset = header.queue_offset
            if code == ResponseCode.PULL_OFFSET_MOVED:
                group = self._groups.get(header.consumer_group)
                code, next_broker = ResponseCode.PULL_RETRY_IMMEDIATELY, group.broker_id if group else MASTER_ID
        return Response(
            code,
            PullMessageResponseHeader(
                suggest_which_broker_id=next_broker,
                next_begin_offset=next_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ),
            result.status.name,
            result.chunks,
        )

    def _next_broker_id(self, group_name: str, result: GetResult) -> int:
        """Return the broker ID for the group's next pull: that of a slave if the messages are not in memory."""
        config = self._live.current
        group = self._groups.get(group_name) if config.slave_read_enable else None
        if group is None:
            return MASTER_ID
        behind = self._store.max_physical_offset - result.log_offset if result.count else 0
        return group.broker_id if is_in_memory(behind, config) else group.which_broker_when_consume_slowly


def result_code(status: GetMessageStatus, asked_offset: int) -> ResponseCode:
    """Return the response code for a store result (``PullMessageProcessor.processRequest``)."""
    if status in _EMPTY:
        return ResponseCode.PULL_NOT_FOUND if asked_offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


def is_in_memory(bytes_behind: int, config: BrokerConfig) -> bool:
    """Return whether the last ``bytes_behind`` bytes of the log are probably in memory.

    As in Apache's broker, this depends on ``accessMessageInMemoryMaxRatio``.
    """
    return bytes_behind <= _MEMORY_BYTES * config.access_message_in_memory_max_ratio // 100
