"""One call of a client: its metadata, the messages of both sides, and its end.

A message has a prefix of five bytes: whether it is compressed, and its length. The handler of a call with one request
runs in a task, which is cancelled when the client gives the call up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cometmq.clock import Clock
from cometmq.proxy.http2.stream import Stream
from cometmq.proxy.limits import MAX_GRPC_MESSAGE_BYTES
from cometmq.proxy.rpc.pace import Pace
from cometmq.proxy.rpc.status import HEADERS, OK_TRAILERS, GrpcError, GrpcStatus, trailers
from cometmq.remoting.permissions import Caller

_log = logging.getLogger(__name__)

_PREFIX_BYTES: Final = 5
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
"""Of ``grpc-timeout``."""
_TIMEOUT_DIGITS: Final = 8
_CALL_BYTES: Final = 1_000
"""Bytes that an open call takes beside its metadata and messages."""


class Message(Protocol):
    """A message of protobuf."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Encode it."""


class Conversation(Protocol):
    """The handler's side of a call whose client sends many messages."""

    def received(self, message: Any) -> None:
        """Take a message of the client.

        :raises GrpcError: the call ends with it.
        """

    def ended(self) -> None:
        """The client sends nothing more, or is gone."""


@dataclass(frozen=True)
class Method:
    """One method of a service."""

    decode: Callable[[bytes], Any]
    """Decodes a request; raises any exception for what is none."""
    handler: Callable[[Call, Any], Awaitable[Message | None]] | None = None
    """Answers one request; ``None`` when it has sent its messages by :meth:`Call.send`."""
    converse: Callable[[Call], Conversation] | None = None
    """Begins a call whose client sends many messages; it has this instead of a handler."""


class CallOwner(Protocol):
    """The server, as its calls see it."""

    clock: Clock
    pace: Pace

    def started(self, work: asyncio.Task[None]) -> None:
        """Keep a task of a call."""


class Peer(Protocol):
    """The connection of a call."""

    account: Caller | None
    """The account of the last call whose signature was accepted."""
    peer_ip: str
    peer_port: int
    remote_address: str
    local_address: tuple[str, int]

    def unfinished(self, change: int) -> None:
        """Note that more, or fewer, bytes of what is not complete are here."""


class Call:
    """One call; see the module's docstring.

    :param metadata_bytes: the size of the metadata, which stays as long as the call.
    """

    __slots__ = (
        "_buffer",
        "_conversation",
        "_has_headers",
        "_is_done",
        "_method",
        "_owner",
        "_stream",
        "_task",
        "_weight",
        "arrived",
        "metadata",
        "peer",
    )

    def __init__(
        self,
        owner: CallOwner,
        peer: Peer,
        stream: Stream,
        metadata: dict[str, str],
        method: Method,
        metadata_bytes: int,
    ) -> None:
        self._owner = owner
        self._stream = stream
        self._method = method
        self._buffer: bytes | bytearray = b""
        self._task: asyncio.Task[None] | None = None
        self._conversation: Conversation | None = None
        self._has_headers = False
        self._is_done = False
        self.peer: Final = peer
        self.metadata: Final = metadata
        self.arrived: Final = owner.clock.monotonic()
        self._weight: Final = _CALL_BYTES + metadata_bytes
        peer.unfinished(self._weight)
        if method.converse is not None:
            self._conversation = method.converse(self)

    @property
    def name(self) -> str:
        """The name of the method, such as ``SendMessage``."""
        return self.metadata.get(":path", "").rpartition("/")[2]

    @property
    def timeout_s(self) -> float | None:
        """Seconds that the client gave the call when it began; ``None`` for ever."""
        text = self.metadata.get("grpc-timeout", "")
        unit = _UNITS.get(text[-1:])
        if unit is None or not text[:-1].isdecimal() or len(text) > _TIMEOUT_DIGITS + 1:
            return None
        return int(text[:-1]) * unit

    @property
    def left_s(self) -> float | None:
        """Seconds that are left of them."""
        timeout_s = self.timeout_s
        return None if timeout_s is None else timeout_s - (self._owner.clock.monotonic() - self.arrived)

    @property
    def is_done(self) -> bool:
        """The call has ended, or the client is gone."""
        return self._is_done

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the client does not read."""
        return self._stream.waiting_bytes

    # --- what comes -----------------------------------------------------------------------------
    def data(self, chunk: bytes) -> None:
        """Take bytes of messages."""
        if self._is_done:
            return
        if not self._buffer:
            self._buffer = chunk
        else:
            if isinstance(self._buffer, bytes):  # a message of many frames is not copied for each of them
                self._buffer = bytearray(self._buffer)
            self._buffer += chunk
        self.peer.unfinished(len(chunk))
        try:
            if len(self._buffer) >= _PREFIX_BYTES:
                self._check(self._buffer)
            if self._conversation is not None:
                self._take_messages()
        except GrpcError as error:
            self.fail(error)

    @staticmethod
    def _check(buffer: bytes | bytearray) -> int:
        """Check the prefix of a message; return its length."""
        if buffer[0]:
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, "messages are not compressed here: send them as identity")
        length = int.from_bytes(buffer[1:_PREFIX_BYTES], "big")
        if length > MAX_GRPC_MESSAGE_BYTES:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"gRPC message exceeds maximum size {MAX_GRPC_MESSAGE_BYTES}: {length}",
            )
        return length

    def _take_messages(self) -> None:
        assert self._conversation is not None
        while len(self._buffer) >= _PREFIX_BYTES and not self._is_done:
            end = _PREFIX_BYTES + self._check(self._buffer)
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_PREFIX_BYTES:end])
            self._buffer = self._buffer[end:]
            self.peer.unfinished(-end)
            self._conversation.received(self._decoded(payload))

    def _decoded(self, payload: bytes) -> Any:
        try:
            return self._method.decode(payload)
        except Exception as error:
            raise GrpcError(GrpcStatus.INTERNAL, "Invalid protobuf byte sequence") from error

    def ended(self) -> None:
        """Begin with the request, which is complete."""
        if self._is_done:
            return
        if self._conversation is not None:
            self._conversation.ended()
            self.finish()
            return
        buffer = self._free_buffer()
        try:
            if len(buffer) < _PREFIX_BYTES or len(buffer) != _PREFIX_BYTES + self._check(buffer):
                raise GrpcError(GrpcStatus.INTERNAL, "Half-closed without a request")
            request = self._decoded(bytes(memoryview(buffer)[_PREFIX_BYTES:]))
        except GrpcError as error:
            self.fail(error)
            return
        self._task = asyncio.get_running_loop().create_task(self._run(request))
        self._owner.started(self._task)

    def _free_buffer(self) -> bytes | bytearray:
        buffer, self._buffer = self._buffer, b""
        if buffer:
            self.peer.unfinished(-len(buffer))
        return buffer

    def _done(self) -> None:
        self._is_done = True
        self._conversation = None
        self._free_buffer()
        self.peer.unfinished(-self._weight)

    def cancelled(self) -> None:
        """Stop: the client is gone."""
        if self._is_done:
            return
        conversation, task = self._conversation, self._task
        self._task = None
        self._done()
        if task is not None:
            task.cancel()
        if conversation is not None:
            conversation.ended()

    async def _run(self, request: Any) -> None:
        assert self._method.handler is not None
        try:
            await self._owner.pace.wait_for_time()
            answer = await self._method.handler(self, request)
            if answer is not None:
                self.send(answer)
            self.finish()
        except GrpcError as error:
            self.fail(error)
        except Exception as error:
            _log.exception("a call of %s failed", self.peer.remote_address)
            self.fail(GrpcError(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}"))
        finally:
            self._task = None  # no circle of task and call for the collector

    async def wait_for_time(self, size: int, large: int) -> None:
        """Wait until a piece of work may begin; meanwhile its bytes count as held by the connection.

        :param large: a piece with more bytes is large work.
        """
        pace = self._owner.pace
        if size <= large:
            await pace.wait_for_time()
            return
        self.peer.unfinished(size)
        try:
            await pace.wait_for_large_time()
        finally:
            self.peer.unfinished(-size)

    # --- what goes ------------------------------------------------------------------------------
    def send(self, message: Message) -> None:
        """Send a message to the client."""
        if self._is_done:
            return
        payload = message.SerializeToString()
        if not self._has_headers:
            self._has_headers = True
            self._stream.send_headers(HEADERS)
        self._stream.send_data(b"\0" + len(payload).to_bytes(4, "big") + payload)

    def finish(self) -> None:
        """End the call with OK."""
        self._end(OK_TRAILERS)

    def fail(self, error: GrpcError) -> None:
        """End the call with a status that is not OK."""
        if self._conversation is not None and not self._is_done:
            self._conversation.ended()
        self._end(trailers(error.status, str(error)))

    def _end(self, block: bytes) -> None:
        if self._is_done:
            return
        self._done()
        self._stream.end(block if self._has_headers else HEADERS + block)
