"""Questions of administrators that clients answer over Telemetry (``GrpcClientChannel``).

GET_CONSUMER_RUNNING_INFO (307) with ``jstackEnable`` asks a client for the stacks of its threads, and
CONSUME_MESSAGE_DIRECTLY (309) lets a push consumer consume one message. Each command has a nonce, which comes back with
the answer. The broker waits for the answer some seconds; one that comes later, or from another client, is dropped.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Final

from cometmq.clock import TimerHandle
from cometmq.message.message import split_records
from cometmq.message.record import RecordError
from cometmq.proxy.backend.backend import Answer
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.limits import COMMAND_SECONDS, MAX_WAITING_COMMANDS
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.sessions import ClientSession
from cometmq.proxy.stored_message import to_proto
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import Header, to_ext
from cometmq.remoting.processors import Response

_log = logging.getLogger(__name__)

_RESULTS: Final = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
"""Java's ``CMResult`` by the status of a client."""


class ClientCommands:
    """The commands that clients have not answered yet."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context
        self._waiting: dict[str, tuple[ClientSession, Answer, TimerHandle]] = {}

    def ask(
        self, session: ClientSession, broker: str, code: int, fields: Header | dict[str, str], body: bytes, give: Answer
    ) -> None:
        """Ask a client on behalf of a broker.

        :param give: takes the answer for the broker.
        """
        texts = to_ext(fields) if isinstance(fields, Header) else fields
        if code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            if texts.get("jstackEnable") != "true":
                give(Response(body=encode_body(_running_info(session))))
                return
            self._send(session, give, _stack_command)
            return
        try:
            (message,) = split_records(body, broker)
        except (RecordError, ValueError) as error:
            give(Response(ResponseCode.SYSTEM_ERROR, remark=f"the body is not one message: {error}"))
            return
        found = to_proto(message, topic=message.topic)
        self._send(session, give, lambda nonce: _verify_command(nonce, found))

    def answered(self, session: ClientSession | None, command: v2.TelemetryCommand) -> None:
        """Take the answer of a client: stacks, the result of a message, or that it does not do that."""
        kind = command.WhichOneof("command")
        nonce = getattr(command, kind or "status").nonce
        waiting = self._waiting.get(nonce)
        if session is None or waiting is None or waiting[0] is not session:
            _log.debug("an answer that nobody waits for: %s", kind)
            return
        _, give, timer = waiting
        del self._waiting[nonce]
        timer.cancel()
        code = command.status.code
        if kind == "thread_stack_trace" and code == Code.OK:
            info = _running_info(session)
            info.jstack = command.thread_stack_trace.thread_stack_trace
            give(Response(body=encode_body(info)))
        elif kind == "verify_message_result" and code in _RESULTS:
            remark = command.status.message or None
            result = ConsumeMessageDirectlyResult(consume_result=_RESULTS[Code(code)], remark=remark)
            give(Response(body=encode_body(result)))
        elif code == Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
            give(Response(ResponseCode.NO_PERMISSION, remark="the client verifies no ordered messages"))
        else:
            words = command.status.message or f"status {code}"
            give(Response(ResponseCode.SYSTEM_ERROR, remark=f"the client does not do that: {words}"))

    def _send(self, session: ClientSession, give: Answer, make: Callable[[str], v2.TelemetryCommand]) -> None:
        if len(self._waiting) >= MAX_WAITING_COMMANDS:
            give(Response(ResponseCode.SYSTEM_BUSY, remark="too many commands wait for clients"))
            return
        nonce = secrets.token_hex(16)
        if session.stream is None or not session.stream.command(make(nonce)):
            give(Response(ResponseCode.SYSTEM_ERROR, remark=f"the client {session.client_id} has no Telemetry stream"))
            return
        timer = self._context.clock.call_later(COMMAND_SECONDS, self._waiting.pop, nonce, None)
        self._waiting[nonce] = session, give, timer


def _stack_command(nonce: str) -> v2.TelemetryCommand:
    return v2.TelemetryCommand(print_thread_stack_trace_command=v2.PrintThreadStackTraceCommand(nonce=nonce))


def _verify_command(nonce: str, message: v2.Message) -> v2.TelemetryCommand:
    return v2.TelemetryCommand(verify_message_command=v2.VerifyMessageCommand(nonce=nonce, message=message))


def _running_info(session: ClientSession) -> ConsumerRunningInfo:
    """The state of a consumer that the endpoint knows itself."""
    groups = [] if session.heartbeat is None else session.heartbeat.consumer_data_set
    properties = {"PROP_CLIENT_VERSION": f"gRPC, {session.language}"}
    for group in groups:
        properties["PROP_CONSUME_TYPE"] = group.consume_type
    subscriptions = [subscription for group in groups for subscription in group.subscription_data_set]
    return ConsumerRunningInfo(properties=properties, subscription_set=subscriptions)
