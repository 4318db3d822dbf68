"""Sends brokers' requests to clients over Telemetry (``GrpcClientChannel``).

CHECK_TRANSACTION_STATE (request code 39) asks a producer about a half message. NOTIFY_UNSUBSCRIBE_LITE (request code
200073) tells a consumer that it has lost a lite topic. GET_CONSUMER_RUNNING_INFO (request code 307) with
``jstackEnable`` asks a client for the stacks of its threads, and CONSUME_MESSAGE_DIRECTLY (request code 309) lets a
push consumer consume one message. The commands for the last two contain a nonce, which the client's answer repeats. The
broker waits some seconds for the answer; a later answer, or an answer from another client, is dropped.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from cometmq.clock import Clock, TimerHandle
from cometmq.message.message import split_records
from cometmq.message.record import RecordError
from cometmq.proxy.backend.backend import BrokerRequest
from cometmq.proxy.limits import COMMAND_SECONDS, MAX_PENDING_COMMANDS
from cometmq.proxy.message_bytes import to_proto
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.services.transactions import check_transaction
from cometmq.proxy.sessions import ClientSession, Sessions
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.admin_headers import GetConsumerRunningInfoRequestHeader
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.lite.headers import NotifyUnsubscribeLiteRequestHeader
from cometmq.remoting.processors import Response

_log = logging.getLogger(__name__)

_RESULTS: Final = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
"""Java's ``CMResult`` for each status that a client can return."""


class _PendingCommand(NamedTuple):
    """A command that waits for the client's response."""

    session: ClientSession
    request: BrokerRequest
    timer: TimerHandle


class ClientCommands:
    """Passes brokers' requests on to clients, and the clients' responses back to the brokers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[str, _PendingCommand] = {}
        """The pending commands by nonce."""

    def pass_on(self, sessions: Sessions, session: ClientSession, request: BrokerRequest) -> None:
        """Pass a broker's request on to its client; discard requests that have no command."""
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            check_transaction(sessions, session, request)
        elif request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            self._get_running_info(session, request)
        elif request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            self._consume_directly(session, request)
        elif request.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
            _unsubscribe_lite(session, request)

    def _get_running_info(self, session: ClientSession, request: BrokerRequest) -> None:
        assert isinstance(request.header, GetConsumerRunningInfoRequestHeader)
        if request.header.jstack_enable:
            self._send(session, request, _stack_command)
        else:
            request.respond(Response(body=encode_body(_running_info(session))))

    def _consume_directly(self, session: ClientSession, request: BrokerRequest) -> None:
        try:
            (message,) = split_records(request.body, request.broker)
        except (RecordError, ValueError) as error:
            remark = f"the body does not contain exactly one message: {error}"
            request.respond(Response(ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        self._send(session, request, partial(_verify_command, to_proto(message, topic=message.topic)))

    def _send(
        self, session: ClientSession, request: BrokerRequest, make_command: Callable[[str], v2.TelemetryCommand]
    ) -> None:
        if len(self._pending) >= MAX_PENDING_COMMANDS:
            request.respond(Response(ResponseCode.SYSTEM_BUSY, remark="too many commands are waiting for clients"))
            return
        nonce = secrets.token_hex(16)
        if session.stream is None or not session.stream.send_command(make_command(nonce)):
            remark = f"the client {session.identity.client_id} has no Telemetry stream"
            request.respond(Response(ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        timer = self._clock.call_later(COMMAND_SECONDS, self._pending.pop, nonce, None)
        self._pending[nonce] = _PendingCommand(session, request, timer)

    def handle_answer(self, session: ClientSession | None, answer: v2.TelemetryCommand) -> None:
        """Pass a client's response to the broker: thread stacks, the result of consuming a message, or an error."""
        kind = answer.WhichOneof("command")
        nonce = getattr(answer, kind or "status").nonce
        pending = self._pending.get(nonce)
        if session is None or pending is None or pending.session is not session:
            _log.debug("dropped a response without a pending request: %s", kind)
            return
        del self._pending[nonce]
        pending.timer.cancel()
        pending.request.respond(_response(session, kind, answer))


def _response(session: ClientSession, kind: str | None, answer: v2.TelemetryCommand) -> Response:
    """Return the response for the broker."""
    code = answer.status.code
    if kind == "thread_stack_trace" and code == Code.OK:
        info = _running_info(session)
        info.jstack = answer.thread_stack_trace.thread_stack_trace
        return Response(body=encode_body(info))
    if kind == "verify_message_result" and code in _RESULTS:
        remark = answer.status.message or None
        result = ConsumeMessageDirectlyResult(consume_result=_RESULTS[Code(code)], remark=remark)
        return Response(body=encode_body(result))
    if code == Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
        return Response(ResponseCode.NO_PERMISSION, remark="the client cannot verify ordered messages")
    reason = answer.status.message or f"status {code}"
    return Response(ResponseCode.SYSTEM_ERROR, remark=f"the client rejected the command: {reason}")


def _unsubscribe_lite(session: ClientSession, request: BrokerRequest) -> None:
    """Tell a client that another client of its exclusive group has taken a lite topic."""
    assert isinstance(request.header, NotifyUnsubscribeLiteRequestHeader)
    command = v2.NotifyUnsubscribeLiteCommand(lite_topic=request.header.lite_topic)
    if session.stream is None or not session.stream.send_command(
        v2.TelemetryCommand(notify_unsubscribe_lite_command=command)
    ):
        _log.info("client %s has no Telemetry stream to be told of a lite topic", session.identity.client_id)


def _stack_command(nonce: str) -> v2.TelemetryCommand:
    return v2.TelemetryCommand(print_thread_stack_trace_command=v2.PrintThreadStackTraceCommand(nonce=nonce))


def _verify_command(message: v2.Message, nonce: str) -> v2.TelemetryCommand:
    return v2.TelemetryCommand(verify_message_command=v2.VerifyMessageCommand(nonce=nonce, message=message))


def _running_info(session: ClientSession) -> ConsumerRunningInfo:
    """Return the parts of a consumer's state that the endpoint knows."""
    groups = [] if session.heartbeat is None else session.heartbeat.consumer_data_set
    properties = {"PROP_CLIENT_VERSION": f"gRPC, {session.identity.language}"}
    for group in groups:
        properties["PROP_CONSUME_TYPE"] = group.consume_type
    subscriptions = [subscription for group in groups for subscription in group.subscription_data_set]
    return ConsumerRunningInfo(properties=properties, subscription_set=subscriptions)
