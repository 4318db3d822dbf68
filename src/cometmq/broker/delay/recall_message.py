"""Recall of a delayed message: RECALL_MESSAGE (370, ``RecallMessageProcessor``).

A recall is itself a delayed message with the same due time, and is stored before it is answered. Recalls of unknown or
already recalled messages get the same response.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.parked_message import parked
from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.broker.turn.answers import OneAnswer
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.ids import RecallHandle, RecallHandleError
from cometmq.message.names import PERM_WRITE
from cometmq.message.properties import (
    PGROUP,
    TAGS,
    TIMER_DEL_UNIQKEY,
    UNIQ_KEY,
    encode_properties,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from cometmq.remoting.permissions import Action, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.timer.unit import recall_key, text_hash

RECALL_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


class RecallMessageProcessor:
    """Handles requests to recall delayed messages."""

    def __init__(self, broker: BrokerContext, timer: TimerMessageService) -> None:
        self._live = broker.live
        self._topics = broker.topics
        self._timer = timer
        self._clock = broker.clock

    @answers(RequestCode.RECALL_MESSAGE, permission=needs_topic(Action.PUB))
    def recall(
        self, connection: ServerConnection, request: Request[RecallMessageRequestHeader], _body: bytes
    ) -> Response | None:
        """Cancel a delayed message; answer once the recall is stored."""
        try:
            handle = self._check_handle(request.header)
            key = text_hash(recall_key(handle.topic, handle.unique_key))
            message = self._recall_message(handle, request.header.producer_group, connection.peer_bytes)
            answer = OneAnswer(connection, request)
            done = partial(self._stored, answer, handle.unique_key)
            self._timer.recall(message, handle.due_ms, key, done, answer.respond_flush_timeout)
        except RefusedError as refused:
            return refused.response(self._ext)
        return None

    def _check_handle(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """Return the recall handle if its message may be recalled now.

        :raises RefusedError: the recall is not allowed; code and text are Apache's.
        """
        config = self._live.current
        now_ms = self._clock.now_ms()
        if not config.recall_message_enable:
            raise RefusedError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if now_ms < config.start_accept_send_request_time_stamp or not config.broker_permission & PERM_WRITE:
            raise RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        if self._topics.get(header.topic) is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except RecallHandleError as error:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, error.message) from error
        if handle.topic != header.topic:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        if not 0 < handle.due_ms - now_ms <= config.timer_max_delay_sec * 1000:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _recall_message(self, handle: RecallHandle, producer_group: str | None, born_host: bytes) -> InnerMessage:
        properties = {
            TIMER_DEL_UNIQKEY: recall_key(handle.topic, handle.unique_key),
            UNIQ_KEY: handle.unique_key,
            TAGS: RECALL_TAG,
            PGROUP: producer_group or "",
        }
        try:
            text = encode_properties(properties)
        except ValueError as error:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, f"recall handle is invalid: {error}") from error
        message = InnerMessage(handle.topic, 0, _BODY, text, 0, 0, self._clock.now_ms(), born_host)
        return parked(message, handle.due_ms)

    def _stored(self, answer: OneAnswer, unique_key: str, outcome: Stored | RefusedError) -> None:
        if isinstance(outcome, RefusedError):
            answer.respond(outcome.response(self._ext))
        else:
            answer.respond(Response(header=RecallMessageResponseHeader(msg_id=unique_key), ext=self._ext))

    @property
    def _ext(self) -> dict[str, str]:
        return {"MSG_REGION": self._live.current.region_id}
