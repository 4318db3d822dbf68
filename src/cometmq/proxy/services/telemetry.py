"""The method Telemetry, which exchanges settings with clients and sends them commands (``ClientActivity``).

A client opens the stream and sends its settings; the answer contains the merged settings. Then the stream carries
commands. A client's second stream replaces its first. Errors end the stream with a gRPC status, as in Apache's proxy.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import full_name
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.limits import LARGE_SETTINGS_BYTES, MAX_TELEMETRY_UNSENT_BYTES
from cometmq.proxy.lite import LITE_CLIENTS, check_group
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.rpc.status import GrpcError, GrpcStatus
from cometmq.proxy.services.commands import ClientCommands
from cometmq.proxy.services.settings import check_settings, heartbeat_of, merge_settings
from cometmq.proxy.sessions import ClientSession
from cometmq.remoting.permissions import Action, Need, on_group, on_topic

_log = logging.getLogger(__name__)

_ANSWERS: Final = ("thread_stack_trace", "verify_message_result", "verify_message_command")
"""Responses to commands, including commands that Node's client sends back because it does not support them."""
_CLIENT_ERRORS: Final = range(40_000, 50_000)
_MAX_WAITING_SETTINGS: Final = 16
"""Maximum number of pending settings on a stream; a client sends its settings again every few minutes."""


class TelemetryService:
    """The method that opens Telemetry streams."""

    def __init__(self, context: EndpointContext, commands: ClientCommands) -> None:
        self._context = context
        self._commands = commands
        self._work: set[asyncio.Task[None]] = set()

    def open_stream(self, call: Call) -> TelemetryStream:
        """Open a stream. The account is checked when the settings arrive."""
        return TelemetryStream(self._context, self._commands, call, self._work)


class TelemetryStream:
    """A Telemetry stream, which handles the client's commands one at a time."""

    __slots__ = ("_call", "_commands", "_context", "_session", "_task", "_waiting", "_work")

    def __init__(
        self, context: EndpointContext, commands: ClientCommands, call: Call, work: set[asyncio.Task[None]]
    ) -> None:
        self._context = context
        self._commands = commands
        self._call = call
        self._work = work
        self._waiting: list[tuple[v2.Settings, int]] = []
        """Settings that have not been handled yet, with their sizes."""
        self._task: asyncio.Task[None] | None = None
        self._session: ClientSession | None = None

    # --- from the client -----------------------------------------------------------------------
    def received(self, message: v2.TelemetryCommand) -> None:
        """Handle a command from the client.

        :raises GrpcError: the client may not send this command.
        """
        kind = message.WhichOneof("command")
        if kind == "settings":
            if len(self._waiting) >= _MAX_WAITING_SETTINGS:
                raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "too many settings are pending")
            size = message.ByteSize()
            self._call.peer.count_incomplete(size)
            self._waiting.append((message.settings, size))
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._handle_settings())
                self._work.add(self._task)
                self._task.add_done_callback(self._work.discard)
        elif kind in _ANSWERS:
            self._commands.handle_answer(self._session, message)
        else:
            words = "the telemetry command is empty" if kind is None else f"clients must not send {kind}"
            raise GrpcError(GrpcStatus.INVALID_ARGUMENT, f"process client telemetryCommand failed. {words}")

    def ended(self) -> None:
        """Record that the client will send no more commands."""
        if self._session is not None:
            self._session.stream_ended(self, self._context.clock.monotonic())

    async def _handle_settings(self) -> None:
        try:
            while self._waiting and not self._call.is_done:
                settings, size = self._waiting.pop(0)
                self._call.peer.count_incomplete(-size)
                await self._call.wait_for_time(size, LARGE_SETTINGS_BYTES)
                await self._use_settings(settings)
        except ProxyError as error:
            status = GrpcStatus.INVALID_ARGUMENT if error.code in _CLIENT_ERRORS else GrpcStatus.INTERNAL
            self._call.fail(GrpcError(status, f"process client telemetryCommand failed. {error}"))
        except Exception as error:
            _log.exception("cannot handle the settings from %s", self._call.peer.remote_address)
            self._call.fail(GrpcError(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}"))
        finally:
            self._task = None
            self._call.peer.count_incomplete(-sum(size for _, size in self._waiting))
            self._waiting.clear()

    async def _use_settings(self, settings: v2.Settings) -> None:
        context = self._context
        group = check_settings(settings)
        session = context.sessions.admit(self._call, _needs(settings, group))
        info = await context.backend.group(group) if group else None
        if info is not None:
            topics = [full_name(entry.topic) for entry in settings.subscription.subscriptions]
            check_group(group, info, topics, is_lite=settings.client_type in LITE_CLIENTS)
        answer = merge_settings(settings, info, context.config)
        heartbeat = heartbeat_of(session.identity.client_id, settings, context.clock.now_ms())
        if heartbeat != session.heartbeat:
            try:
                await session.link.register(heartbeat)
            except ProxyError as error:
                raise ProxyError(Code.INTERNAL_SERVER_ERROR, str(error)) from error
            session.heartbeat = heartbeat
        if self._call.is_done:
            return
        self._session = session
        session.use_stream(self, answer)
        self.send_command(v2.TelemetryCommand(status=OK, settings=answer))

    # --- to the client --------------------------------------------------------------------------
    def send_command(self, command: v2.TelemetryCommand) -> bool:
        """Send a command; return False if the client does not read its stream."""
        if self._call.is_done:
            return False
        if self._call.unsent_bytes > MAX_TELEMETRY_UNSENT_BYTES:
            self._call.fail(GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "the client does not read its Telemetry stream"))
            return False
        self._call.send(command)
        return True

    def close(self) -> None:
        """End the stream."""
        self._call.finish()


def _needs(settings: v2.Settings, group: str) -> list[Need]:
    if not group:
        return [on_topic(full_name(topic), Action.PUB) for topic in settings.publishing.topics]
    topics = [full_name(entry.topic) for entry in settings.subscription.subscriptions]
    return [on_group(group, Action.SUB), *(on_topic(topic, Action.SUB) for topic in topics)]
