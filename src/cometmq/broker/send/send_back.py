"""Failed messages that consumers send back: CONSUMER_SEND_MSG_BACK (36) (``asyncConsumerSendMsgBack``).

The message is read from the log and stored again: in the group's retry topic after a delay that grows with each
failure, or, after too many failures, in the group's dead-letter topic. The request is answered once the message is
stored and, with SYNC_FLUSH, flushed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from cometmq.broker.archived.searches import NOT_NOW, find_position
from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.schedule_message import ScheduleMessageService
from cometmq.broker.send.send_message import BUSY
from cometmq.broker.stored_access import may_access, may_access_archived, not_found
from cometmq.broker.turn.answers import OneAnswer
from cometmq.broker.turn.inner_message import InnerMessage, Stored, next_attempt
from cometmq.broker.turn.targets import RefusedError, existing_queue
from cometmq.message.names import DLQ_PREFIX, PERM_WRITE, retry_topic
from cometmq.message.pop_info import original_topic
from cometmq.message.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT, join_properties
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.message.sysflag import TOPIC_UNIT_SUB
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.remoting.permissions import CALLER, Action, needs_group, needs_stored
from cometmq.remoting.processors import PostponeError, Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

FIRST_RETRY_LEVEL: Final = 3
"""The delay level of the first retry; each further retry uses the next level."""


class _Asked(NamedTuple):
    """A request whose message is read from the archive."""

    connection: ServerConnection
    request: Request[ConsumerSendMsgBackRequestHeader]
    topic: TopicConfig
    """The group's retry topic."""
    may_access: Callable[[StoredRecord], bool]
    absent: RefusedError
    """The answer if there is no such message."""


class SendBackProcessor:
    """Accepts failed messages from consumers."""

    def __init__(self, broker: BrokerContext, schedule: ScheduleMessageService) -> None:
        self._live = broker.live
        self._failed = broker.failed
        self._groups = broker.groups
        self._store = broker.store
        self._archived = broker.archived
        self._targets = broker.targets
        self._turn = broker.turn
        self._schedule = schedule
        self._stats = broker.stats

    @answers(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        limits=("MAX_ARCHIVE_LOOKUPS",),
        permission=needs_group(Action.SUB, field="group") & needs_stored(Action.SUB),
    )
    def send_back(
        self, connection: ServerConnection, request: Request[ConsumerSendMsgBackRequestHeader], _body: bytes
    ) -> Response | None:
        """Store a failed message again, for a retry or as a dead letter; then answer the request."""
        header = request.header
        topic = self._retry_topic(connection, header)
        if topic is None:
            return Response()
        if self._archived is not None and 0 <= header.offset < self._store.min_physical_offset:
            may_access = partial(may_access_archived, CALLER.get(), actions=(Action.SUB,))
            asked = _Asked(connection, request, topic, may_access, self._absent(header.offset))
            find_position(self._archived, header.offset, partial(self._archived_found, asked))
            return None
        self._put(connection, request, topic, self._record(header.offset))
        return None

    def _put(
        self,
        connection: ServerConnection,
        request: Request[ConsumerSendMsgBackRequestHeader],
        topic: TopicConfig,
        record: StoredRecord,
    ) -> None:
        """Store the copy, and answer the request when it is stored."""
        header = request.header
        failed_topic = record.properties.get(RETRY_TOPIC, record.topic)
        message = self._message(record, topic, header, request.version)
        answer = OneAnswer(connection, request)
        self._turn.put_inner(
            message,
            partial(self._stored, answer, request, failed_topic, message.topic),
            late=answer.respond_flush_timeout,
        )

    def _archived_found(self, asked: _Asked, found: bytes | None) -> None:
        """Send back a message that only the archive has."""
        connection, request = asked.connection, asked.request
        if found is None:
            connection.respond(request, Response(ResponseCode.SYSTEM_BUSY, remark=NOT_NOW))
            return
        record = decode_record(found) if found else None
        try:
            if record is None or not asked.may_access(record):
                raise asked.absent
            self._put(connection, request, asked.topic, record)
        except RefusedError as refused:
            connection.respond(request, refused.response())
        except PostponeError as postponed:
            postponed.when(partial(self._archived_found, asked, found))

    def _stored(
        self,
        answer: OneAnswer,
        request: Request[Any],
        failed_topic: str,
        topic: str,
        result: Stored | RefusedError,
    ) -> None:
        if isinstance(result, RefusedError):
            response = Response(ResponseCode.SYSTEM_ERROR, remark=result.remark)
        else:
            self._stats.send_back(failed_topic, request.header.group)
            if self._stats.traffic is not None and topic.startswith(DLQ_PREFIX):
                self._stats.traffic.died(failed_topic, request.header.group)
            response = Response()
        answer.respond(response)

    # --- the message --------------------------------------------------------------------------
    def _retry_topic(
        self, connection: ServerConnection, header: ConsumerSendMsgBackRequestHeader
    ) -> TopicConfig | None:
        """Return the group's retry topic, or ``None`` if the group disables retries.

        :raises RefusedError: the request is refused; code and text are Apache's.
        """
        config = self._live.current
        group = self._groups.find(header.group)
        if group is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not config.broker_permission & PERM_WRITE:
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return None
        if self._turn.waits and self._turn.waiters.full(connection):
            raise RefusedError(ResponseCode.SYSTEM_BUSY, BUSY)
        topic_sys_flag = TOPIC_UNIT_SUB if header.unit_mode else 0
        topic = self._failed.topic(retry_topic(header.group), group.retry_queue_nums, topic_sys_flag)
        if not topic.perm & PERM_WRITE:
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
            )
        return topic

    def _message(
        self, record: StoredRecord, topic: TopicConfig, header: ConsumerSendMsgBackRequestHeader, version: int
    ) -> InnerMessage:
        """Return the message to store: either a delayed copy for the retry topic or a dead letter.

        :raises RefusedError: the maximum number of topics has been reached.
        :raises PostponeError: the topic is still being saved.
        """
        asked = header.max_reconsume_times
        if self._failed.is_dead(record.reconsume_times, header.group, asked, version) or header.delay_level < 0:
            dead = self._failed.dead_letter_topic(header.group).topic_name
            self._targets.require_saved(dead)
            return _failed_copy(record, dead, header.group, queue_id=0, level=0)
        self._targets.require_saved(topic.topic_name)
        group = self._groups.get(header.group)
        assert group is not None
        level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        queue_id = existing_queue(topic, random.randrange(group.retry_queue_nums))
        message = _failed_copy(record, topic.topic_name, header.group, queue_id=queue_id, level=level)
        return self._schedule.park(message, level) if level > 0 else message

    def _record(self, offset: int) -> StoredRecord:
        data = self._store.record_at(offset)
        try:
            record = None if data is None else decode_record(data)
            if record is not None and may_access(self._store, record, Action.SUB):
                return record
        except RecordError:
            pass
        raise self._absent(offset)

    @staticmethod
    def _absent(offset: int) -> RefusedError:
        return RefusedError(ResponseCode.SYSTEM_ERROR, not_found(f"look message by offset failed, {offset}"))


def _failed_copy(record: StoredRecord, topic: str, group: str, *, queue_id: int, level: int) -> InnerMessage:
    """Return a copy of a failed message, ready to be stored again.

    Body and flags are unchanged; RETRY_TOPIC and ORIGIN_MESSAGE_ID contain the original topic and message ID.
    """
    properties = dict(record.properties)
    properties.setdefault(RETRY_TOPIC, original_topic(record.topic, group))
    properties.setdefault(ORIGIN_MESSAGE_ID, record.msg_id)
    properties[WAIT] = "false"
    properties[DELAY] = str(level)
    return next_attempt(record, topic, queue_id=queue_id, properties=join_properties(properties))
