"""Failed messages that consumers hand back: CONSUMER_SEND_MSG_BACK (36) (``asyncConsumerSendMsgBack``).

The message is read from the log and stored once more: in the group's retry topic after a delay that grows with
each failure, or, when it failed too often, in the group's dead-letter topic. The request is answered once
that is stored (with SYNC_FLUSH: flushed).
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any, Final

from cometmq.broker.delay_levels import DelayLevels
from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.inner_message import InnerMessage, Stored, inner_message
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.one_answer import OneAnswer
from cometmq.broker.send import BUSY
from cometmq.broker.send_targets import DLQ_QUEUES, V3_4_9, SendRefusedError
from cometmq.broker.stats import BrokerStats
from cometmq.broker.store_turn import StoreTurn
from cometmq.broker.topics import TopicConfigManager
from cometmq.message.names import PERM_WRITE, dlq_topic, retry_topic
from cometmq.message.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT, join_properties
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.message.sysflag import TOPIC_UNIT_SUB
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore

FIRST_RETRY_LEVEL: Final = 3
"""The delay level of the first retry; each further one takes the next level."""

MAX_RECONSUME_TIMES: Final = 2**31 - 1
"""What the field holds at most: a message that has failed so often, as its producer says, stays at it."""


class SendBackProcessor:
    """Takes failed messages back."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        store: MessageStore,
        turn: StoreTurn,
        levels: DelayLevels,
        stats: BrokerStats,
    ) -> None:
        self._live = live
        self._topics = topics
        self._groups = groups
        self._store = store
        self._turn = turn
        self._levels = levels
        self._stats = stats

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code of send-backs."""
        processors.register(RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader, self.send_back)

    def send_back(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Store a failed message once more; answered when that is done."""
        header: ConsumerSendMsgBackRequestHeader = request.header
        try:
            topic = self._retry_topic(connection, header)
            if topic is None:
                return Response()
            record = self._record(header.offset)
            failed_topic = record.properties.get(RETRY_TOPIC, record.topic)
            message = self._message(record, topic, header, request.version)
            answer = OneAnswer(connection, request)
            self._turn.put_inner(message, partial(self._stored, answer, request, failed_topic), late=answer.late)
        except SendRefusedError as refused:
            return Response(refused.code, remark=refused.remark)
        return None

    def _stored(
        self,
        answer: OneAnswer,
        request: Request[Any],
        failed_topic: str,
        result: Stored | SendRefusedError,
    ) -> None:
        if isinstance(result, SendRefusedError):
            response = Response(ResponseCode.SYSTEM_ERROR, remark=result.remark)
        else:
            self._stats.send_back(failed_topic, request.header.group)
            response = Response()
        answer.give(response)

    # --- the message --------------------------------------------------------------------------
    def _retry_topic(
        self, connection: ServerConnection, header: ConsumerSendMsgBackRequestHeader
    ) -> TopicConfig | None:
        """The group's retry topic; ``None`` where the group wants no retries.

        :raises SendRefusedError: with code and words.
        """
        config = self._live.current
        group = self._groups.find(header.group)
        if group is None:
            raise SendRefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not config.broker_permission & PERM_WRITE:
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return None
        if self._turn.waits and self._turn.waiters.full(connection):
            raise SendRefusedError(ResponseCode.SYSTEM_BUSY, BUSY)
        topic_sys_flag = TOPIC_UNIT_SUB if header.unit_mode else 0
        topic = self._made(retry_topic(header.group), group.retry_queue_nums, topic_sys_flag)
        if not topic.perm & PERM_WRITE:
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
            )
        return topic

    def _message(
        self, record: StoredRecord, topic: TopicConfig, header: ConsumerSendMsgBackRequestHeader, version: int
    ) -> InnerMessage:
        """The message to store: in the retry topic after a delay, or among the dead letters.

        :raises SendRefusedError: there is no room for one more topic.
        """
        group = self._groups.get(header.group)
        assert group is not None
        most = group.retry_max_times
        if version >= V3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if record.reconsume_times >= most or header.delay_level < 0:
            dead = self._made(dlq_topic(header.group), DLQ_QUEUES, 0)
            return again(record, dead.topic_name, queue_id=0, level=0)
        level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        queue_id = random.randrange(group.retry_queue_nums)
        message = again(record, topic.topic_name, queue_id=queue_id, level=level)
        return self._levels.park(message, level) if level > 0 else message

    def _made(self, name: str, queue_nums: int, topic_sys_flag: int) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None and self._topics.is_full:
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist")
        return topic or self._topics.create_retry(name, queue_nums=queue_nums, topic_sys_flag=topic_sys_flag)

    def _record(self, offset: int) -> StoredRecord:
        data = self._store.record_at(offset)
        try:
            if data is not None:
                return decode_record(data)
        except RecordError:
            pass
        raise SendRefusedError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")


def again(record: StoredRecord, topic: str, *, queue_id: int, level: int) -> InnerMessage:
    """A failed message as it is stored once more.

    Body and flags stay as they are; RETRY_TOPIC and ORIGIN_MESSAGE_ID keep where it came from at first.
    """
    properties = dict(record.properties)
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, record.msg_id)
    properties[WAIT] = "false"
    properties[DELAY] = str(level)
    failed = inner_message(record)
    return InnerMessage(
        topic,
        queue_id,
        failed.body,
        join_properties(properties),
        failed.flag,
        failed.sys_flag,
        failed.born_timestamp,
        failed.born_host,
        min(failed.reconsume_times + 1, MAX_RECONSUME_TIMES),
    )
