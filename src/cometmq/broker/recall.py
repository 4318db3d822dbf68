"""Recall: a message that waits for its time is taken back, RECALL_MESSAGE (370, ``RecallMessageProcessor``).

A recall is a message of its own that waits beside the one it takes back; it is stored before it is
answered. Taking back twice, or what nobody sent, is answered like the first time.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from cometmq.broker.inner_message import InnerMessage, Stored
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.one_answer import OneAnswer
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.timer import TimerMessageService
from cometmq.broker.timer_detour import parked
from cometmq.broker.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.message.names import PERM_WRITE, RETRY_PREFIX, TIMER_TOPIC
from cometmq.message.properties import (
    PGROUP,
    REAL_TOPIC,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from cometmq.message.recall_handle import RecallHandle, RecallHandleError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.timer_unit import recall_key, text_hash

RECALL_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


def recall_handle(message: InnerMessage, broker_name: str) -> str | None:
    """What takes a parked message back; ``None`` when nothing can."""
    if message.topic != TIMER_TOPIC:
        return None
    properties = decode_properties(message.properties)
    unique_key = properties.get(UNIQ_KEY)
    topic = properties[REAL_TOPIC]
    if unique_key is None or topic.startswith(RETRY_PREFIX) or " " in unique_key:
        return None
    return RecallHandle(topic, broker_name, int(properties[TIMER_OUT_MS]), unique_key).encode()


class RecallMessageProcessor:
    """Takes messages back."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicConfigManager,
        timer: TimerMessageService,
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._topics = topics
        self._timer = timer
        self._clock = clock

    def register(self, processors: ProcessorTable) -> None:
        """Answer RECALL_MESSAGE."""
        processors.register(RequestCode.RECALL_MESSAGE, RecallMessageRequestHeader, self.recall)

    def recall(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Store the recall; it is answered at the end of the turn, or later with SYNC_FLUSH."""
        try:
            handle = self._checked(request.header)
            key = text_hash(recall_key(handle.topic, handle.unique_key))
            message = self._message(handle, request.header.producer_group, connection.peer_bytes)
            answer = OneAnswer(connection, request)
            done = partial(self._stored, answer, handle.unique_key)
            self._timer.recall(message, handle.due_ms, key, done, answer.late)
        except SendRefusedError as refused:
            return self._response(refused.code, remark=refused.remark)
        return None

    def _checked(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """The handle, when its message may be taken back now.

        :raises SendRefusedError: with Apache's code and words.
        """
        config = self._live.current
        now_ms = self._clock.now_ms()
        if not config.recall_message_enable:
            raise SendRefusedError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if now_ms < config.start_accept_send_request_time_stamp or not config.broker_permission & PERM_WRITE:
            raise SendRefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        if self._topics.get(header.topic) is None:
            raise SendRefusedError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except RecallHandleError as error:
            raise SendRefusedError(ResponseCode.ILLEGAL_OPERATION, error.message) from error
        if handle.topic != header.topic:
            raise SendRefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise SendRefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        if not 0 < handle.due_ms - now_ms <= config.timer_max_delay_sec * 1000:
            raise SendRefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _message(self, handle: RecallHandle, producer_group: str | None, born_host: bytes) -> InnerMessage:
        properties = {
            TIMER_DEL_UNIQKEY: recall_key(handle.topic, handle.unique_key),
            UNIQ_KEY: handle.unique_key,
            TAGS: RECALL_TAG,
            PGROUP: producer_group or "",
        }
        try:
            text = encode_properties(properties)
        except ValueError as error:
            raise SendRefusedError(ResponseCode.ILLEGAL_OPERATION, f"recall handle is invalid: {error}") from error
        message = InnerMessage(handle.topic, 0, _BODY, text, 0, 0, self._clock.now_ms(), born_host)
        return parked(message, handle.due_ms)

    def _stored(self, answer: OneAnswer, unique_key: str, outcome: Stored | SendRefusedError) -> None:
        if isinstance(outcome, SendRefusedError):
            answer.give(self._response(outcome.code, remark=outcome.remark))
        else:
            answer.give(self._response(ResponseCode.SUCCESS, RecallMessageResponseHeader(msg_id=unique_key)))

    def _response(
        self, code: int, header: RecallMessageResponseHeader | None = None, remark: str | None = None
    ) -> Response:
        return Response(code, header, remark=remark, ext={"MSG_REGION": self._live.current.region_id})
