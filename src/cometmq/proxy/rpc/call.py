"""One gRPC call: its metadata, the messages in both directions, and its end.

A message has a five-byte prefix: a compression flag and the length. The handler of a call with one request runs in a
task, which is cancelled when the client cancels the call. A direct handler runs without a task, and without message
objects: it gets the bytes of the request, and returns those of the response, or passes them to :meth:`Call.answer`
later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cometmq.clock import Clock
from cometmq.proxy.http2.connection import Http2Connection
from cometmq.proxy.http2.stream import Stream
from cometmq.proxy.limits import MAX_GRPC_MESSAGE_BYTES
from cometmq.proxy.rpc.pace import Pace
from cometmq.proxy.rpc.status import HEADERS, OK_TRAILERS, GrpcError, GrpcStatus, trailers
from cometmq.remoting.permissions import Caller

_log = logging.getLogger(__name__)

_PREFIX_BYTES: Final = 5
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
"""Number of seconds for each unit of ``grpc-timeout``."""
_TIMEOUT_DIGITS: Final = 8
_CALL_BYTES: Final = 1_000
"""Memory used by an open call, in addition to its metadata and messages."""


class Message(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Encode the message."""


class Conversation(Protocol):
    """The handler's view of a call in which the client sends many messages."""

    def received(self, message: Any) -> None:
        """Handle a message from the client.

        :raises GrpcError: the call ends with this error.
        """

    def ended(self) -> None:
        """Record that the client will send no more messages."""


@dataclass(frozen=True)
class Method:
    """A gRPC method."""

    decode: Callable[[bytes], Any]
    """Decodes a request; any exception means that the request is malformed."""
    handler: Callable[[Call, Any], Awaitable[Message | None]] | None = None
    """Handles one request; returns ``None`` if it has already sent its responses with :meth:`Call.send`."""
    direct: Callable[[Call, bytes], bytes | None] | None = None
    """Handles one encoded request without a task; returns the encoded response, or ``None`` if :meth:`Call.answer` or
    :meth:`Call.finish` ends the call, now or later. It is used instead of ``handler``, and decodes the request itself.
    """
    converse: Callable[[Call], Conversation] | None = None
    """Starts a call in which the client sends many messages; such a method has no handler."""


class CallOwner(Protocol):
    """The server methods that calls use."""

    clock: Clock

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""

    @property
    def pace(self) -> Pace:
        """Decides when a piece of work can start."""

    def hold_task(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a call's task until the task ends."""


class Peer(Protocol):
    """The connection on which a call was made."""

    account: Caller | None
    """The account of the last call whose signature was accepted."""
    peer_ip: str
    peer_port: int
    remote_address: str
    local_address: tuple[str, int]

    @property
    def http2(self) -> Http2Connection:
        """The connection's streams."""

    def write_now(self, data: bytes) -> None:
        """Write bytes to the socket, behind those that are queued."""

    def count_incomplete(self, change: int) -> None:
        """Adjust the number of bytes held by the connection's incomplete calls."""


class Call:
    """A gRPC call from a client.

    :param metadata_bytes: the size of the metadata, which is stored until the call ends.
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
        "on_cancel",
        "on_stop",
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
        self.on_cancel: Callable[[], None] | None = None
        """Called when the client cancels a call whose direct handler has not answered yet."""
        self.on_stop: Callable[[], None] | None = None
        """Answers a call that waits for something to happen, because the server stops."""
        self.peer: Final = peer
        self.metadata: Final = metadata
        self.arrived: Final = owner.clock.monotonic()
        self._weight: Final = _CALL_BYTES + metadata_bytes
        peer.count_incomplete(self._weight)
        if method.converse is not None:
            self._conversation = method.converse(self)

    @property
    def name(self) -> str:
        """The method's name, for example ``SendMessage``."""
        return self.metadata.get(":path", "").rpartition("/")[2]

    @property
    def timeout_s(self) -> float | None:
        """The client's time limit for the call in seconds, or ``None`` if there is no limit."""
        text = self.metadata.get("grpc-timeout", "")
        unit = _UNITS.get(text[-1:])
        if unit is None or not text[:-1].isdecimal() or len(text) > _TIMEOUT_DIGITS + 1:
            return None
        return int(text[:-1]) * unit

    @property
    def left_s(self) -> float | None:
        """The remaining time for the call, in seconds."""
        timeout_s = self.timeout_s
        return None if timeout_s is None else timeout_s - (self._owner.clock.monotonic() - self.arrived)

    @property
    def is_done(self) -> bool:
        """True once the call has ended or the client has cancelled it."""
        return self._is_done

    @property
    def unsent_bytes(self) -> int:
        """Number of response bytes that the client has not read yet."""
        return self._stream.unsent_bytes

    # --- the request ----------------------------------------------------------------------------
    def receive_data(self, chunk: bytes) -> None:
        """Handle the next bytes of the client's messages."""
        if self._is_done:
            return
        if not self._buffer:
            self._buffer = chunk
        else:
            if isinstance(self._buffer, bytes):  # if a message has many frames, it is not copied for each of them
                self._buffer = bytearray(self._buffer)
            self._buffer += chunk
        self.peer.count_incomplete(len(chunk))
        try:
            if len(self._buffer) >= _PREFIX_BYTES:
                self._check_prefix(self._buffer)
            if self._conversation is not None:
                self._receive_messages()
        except GrpcError as error:
            self.fail(error)

    @staticmethod
    def _check_prefix(buffer: bytes | bytearray) -> int:
        """Check a message's prefix and return the message's length."""
        if buffer[0]:
            raise GrpcError(
                GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported: use the identity encoding"
            )
        length = int.from_bytes(buffer[1:_PREFIX_BYTES], "big")
        if length > MAX_GRPC_MESSAGE_BYTES:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"gRPC message exceeds maximum size {MAX_GRPC_MESSAGE_BYTES}: {length}",
            )
        return length

    def _receive_messages(self) -> None:
        assert self._conversation is not None
        while len(self._buffer) >= _PREFIX_BYTES and not self._is_done:
            end = _PREFIX_BYTES + self._check_prefix(self._buffer)
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_PREFIX_BYTES:end])
            self._buffer = self._buffer[end:]
            self.peer.count_incomplete(-end)
            self._conversation.received(self._decode(payload))

    def _decode(self, payload: bytes) -> Any:
        try:
            return self._method.decode(payload)
        except Exception as error:
            raise GrpcError(GrpcStatus.INTERNAL, "Invalid protobuf byte sequence") from error

    def receive_end(self) -> None:
        """Start the handler because the request is complete."""
        if self._is_done:
            return
        if self._conversation is not None:
            self._conversation.ended()
            self.finish()
            return
        buffer = self._free_buffer()
        try:
            if len(buffer) < _PREFIX_BYTES or len(buffer) != _PREFIX_BYTES + self._check_prefix(buffer):
                raise GrpcError(GrpcStatus.INTERNAL, "Half-closed without a request")
            payload = bytes(memoryview(buffer)[_PREFIX_BYTES:])
            direct = self._method.direct
            if direct is not None and self._owner.pace.has_time():
                self._run_direct(direct, payload)
                return
            work = self._run(self._decode(payload)) if direct is None else self._run_later(direct, payload)
        except GrpcError as error:
            self.fail(error)
            return
        self._task = self._owner.loop.create_task(work)
        self._owner.hold_task(self._task)

    def _free_buffer(self) -> bytes | bytearray:
        buffer, self._buffer = self._buffer, b""
        if buffer:
            self.peer.count_incomplete(-len(buffer))
        return buffer

    def _release(self) -> None:
        self._is_done = True
        self._conversation = None
        self.on_cancel = self.on_stop = None
        self._free_buffer()
        self.peer.count_incomplete(-self._weight)

    def cancel(self) -> None:
        """Cancel the handler because the client has cancelled the call."""
        if self._is_done:
            return
        conversation, task, on_cancel = self._conversation, self._task, self.on_cancel
        self._task = None
        self._release()
        if task is not None:
            task.cancel()
        if on_cancel is not None:
            on_cancel()
        if conversation is not None:
            conversation.ended()

    def stop_waiting(self) -> None:
        """End the call if it waits for something to happen, because the server stops."""
        if self._conversation is not None:
            self._conversation.ended()
            self.finish()
        elif self.on_stop is not None:
            self.on_stop()

    async def _run(self, request: Any) -> None:
        assert self._method.handler is not None
        try:
            await self._owner.pace.wait_for_time()
            answer = await self._method.handler(self, request)
            if answer is not None:
                self.send(answer)
            self.finish()
        except Exception as error:
            self._fail_with(error)
        finally:
            self._task = None  # otherwise, the cycle of task and call would be left to the garbage collector

    def _fail_with(self, error: Exception) -> None:
        if not isinstance(error, GrpcError):
            _log.error("a call from %s failed", self.peer.remote_address, exc_info=error)
            error = GrpcError(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")
        self.fail(error)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of a direct handler in a task, which is cancelled when the client cancels the call."""
        self._task = self._owner.loop.create_task(self._run_work(work))
        self._task.add_done_callback(lambda _: work.close())  # for a task that is cancelled before it starts
        self._owner.hold_task(self._task)

    async def _run_work(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._fail_with(error)
        finally:
            self._task = None

    def _run_direct(self, direct: Callable[[Call, bytes], bytes | None], payload: bytes) -> None:
        try:
            answer = direct(self, payload)
            if answer is not None:
                self.answer(answer)
        except Exception as error:
            self._fail_with(error)

    async def _run_later(self, direct: Callable[[Call, bytes], bytes | None], payload: bytes) -> None:
        """Run a direct handler once the round has time for it; until then, the request counts as incomplete."""
        self.peer.count_incomplete(len(payload))
        try:
            await self._owner.pace.wait_for_time()
        finally:
            self.peer.count_incomplete(-len(payload))
            self._task = None
        self._run_direct(direct, payload)

    def has_time(self, size: int, large: int) -> bool:
        """Return whether a piece of work can start without :meth:`wait_for_time`."""
        return size <= large and self._owner.pace.has_time()

    async def wait_for_time(self, size: int, large: int) -> None:
        """Wait until a piece of work can start; until then, its bytes count as held by the connection.

        :param large: size in bytes above which a piece is large.
        """
        pace = self._owner.pace
        if size <= large:
            await pace.wait_for_time()
            return
        self.peer.count_incomplete(size)
        try:
            await pace.wait_for_large_time()
        finally:
            self.peer.count_incomplete(-size)

    # --- the answer -----------------------------------------------------------------------------
    def send(self, message: Message) -> None:
        """Send a message to the client."""
        if self._is_done:
            return
        if not self._has_headers:
            self._has_headers = True
            self._stream.send_headers(HEADERS)
        payload = message.SerializeToString()
        self._stream.send_data(_prefix(payload) + payload)

    def answer(self, *payloads: bytes) -> None:
        """Send encoded messages to the client as the only ones, and end the call with OK."""
        if self._is_done:
            return
        data = b"".join([_prefix(payload) + payload for payload in payloads])
        if self._has_headers:
            self._stream.send_data(data)
            self.finish()
        else:
            self._release()
            self._stream.answer(HEADERS, data, OK_TRAILERS)

    def finish(self) -> None:
        """End the call with OK."""
        self._end(OK_TRAILERS)

    def fail(self, error: GrpcError) -> None:
        """End the call with a status other than OK."""
        if self._conversation is not None and not self._is_done:
            self._conversation.ended()
        self._end(trailers(error.status, str(error)))

    def _end(self, block: bytes) -> None:
        if self._is_done:
            return
        self._release()
        self._stream.end(block if self._has_headers else HEADERS + block)


def _prefix(payload: bytes) -> bytes:
    return len(payload).to_bytes(_PREFIX_BYTES, "big")  # the flag is 0: not compressed
