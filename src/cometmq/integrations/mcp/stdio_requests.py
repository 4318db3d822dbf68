"""Reads a client's requests from stdin, one a line, with the limits of HTTP requests.

A client need not read an answer before it writes its next request. So stdin is read only while the requests under way,
which have not been answered, are few and small enough; further ones wait in the pipe.

A client waits for the answer to a request that is refused. So its id is looked for at the beginning and at the end of
the line, where clients write it, without parsing what is between.
"""

from __future__ import annotations

import re
from functools import partial
from typing import BinaryIO, Final, Protocol, Self

import anyio
from anyio.to_thread import run_sync
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse, RequestId
from mcp_types import jsonrpc_message_adapter

from cometmq.integrations.mcp.options import MAX_ALL_REQUESTS_BYTES, MAX_REQUEST_BYTES, MAX_STDIO_REQUESTS
from cometmq.remoting.json_size import MAX_JSON_DEPTH, MAX_JSON_VALUES, is_small_json

_PART_BYTES: Final = 64 * 1024
_END_BYTES: Final = 1024
"""Length of the parts of a refused line in which its id is looked for."""
_ID: Final = rb'"id"\s*:\s*(?:(\d{1,18})|"([^"\\]{0,100})")'
_FIRST_ID: Final = re.compile(rb"\s*\{[^][{}]*?" + _ID)
"""An id before any other object or list, which is that of the request."""
_LAST_ID: Final = re.compile(_ID + rb"[^][{}]*\}\s*$")
"""An id after all other objects and lists."""


class Answers(Protocol):
    """A stream of messages to the client."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""

    async def aclose(self) -> None:
        """Send no more messages."""


class _Stream:
    """A stream that the MCP package closes when it has ended."""

    async def aclose(self) -> None:
        """Do nothing: the process ends with its client."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class StdioRequests(_Stream):
    """The messages on stdin. A line that is too large is answered with an error, and left out.

    :param answers: sends the errors.
    """

    def __init__(self, stdin: BinaryIO, answers: Answers) -> None:
        self._stdin = stdin
        self._answers = answers
        self._under_way: dict[RequestId, list[int]] = {}
        """The sizes of the requests under way by id; a client may use an id again before it is answered."""
        self._number = self._bytes = 0
        self._has_room = anyio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message, or the error of a line that is none, when there is room for it.

        :raises anyio.EndOfStream: stdin has ended.
        """
        line = await self._next_line()
        try:
            message = jsonrpc_message_adapter.validate_json(line.decode(errors="replace"), by_name=False)
        except ValueError as error:
            return error
        if not isinstance(message, JSONRPCRequest):
            return SessionMessage(message)
        self._under_way.setdefault(message.id, []).append(len(line))
        self._number += 1
        self._bytes += len(line)
        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=partial(self.ended, message.id)))

    async def ended(self, asked: RequestId | None) -> None:
        """Make room for further requests, because a request was answered or cancelled."""
        sizes = None if asked is None else self._under_way.get(asked)
        if asked is None or sizes is None:
            return
        self._number -= 1
        self._bytes -= sizes.pop()
        if not sizes:
            del self._under_way[asked]
        self._has_room.set()

    async def _next_line(self) -> bytes:
        """Wait for room, and return the next line that can be parsed."""
        while self._number >= MAX_STDIO_REQUESTS or self._bytes + MAX_REQUEST_BYTES > MAX_ALL_REQUESTS_BYTES:
            self._has_room = anyio.Event()
            await self._has_room.wait()
        while line := await run_sync(self._stdin.readline, MAX_REQUEST_BYTES + 1):
            if len(line) > MAX_REQUEST_BYTES and not line.endswith(b"\n"):
                end = await run_sync(self._skip)
                await self._refuse(line, end, f"a request has at most {MAX_REQUEST_BYTES:,} bytes")
            elif not is_small_json(line):
                most = f"at most {MAX_JSON_VALUES:,} values and {MAX_JSON_DEPTH} levels of nesting"
                await self._refuse(line, line[-_END_BYTES:], f"the JSON of a request has {most}")
            else:
                return line
        raise anyio.EndOfStream

    def _skip(self) -> bytes:
        """Read up to the end of the line, and return its last bytes."""
        end = b""
        while part := self._stdin.readline(_PART_BYTES):
            end = (end + part)[-_END_BYTES:]
            if part.endswith(b"\n"):
                break
        return end

    async def _refuse(self, line: bytes, end: bytes, why: str) -> None:
        found = _FIRST_ID.match(line, 0, _END_BYTES) or _LAST_ID.search(end)
        number, text = (None, None) if found is None else found.groups()
        asked = int(number) if number is not None else None if text is None else text.decode(errors="replace")
        error = JSONRPCError(jsonrpc="2.0", id=asked, error=ErrorData(code=INVALID_REQUEST, message=why))
        await self._answers.send(SessionMessage(error))


class StdioAnswers(_Stream):
    """The messages to stdout; those that are answers make room for further requests."""

    def __init__(self, answers: Answers, requests: StdioRequests) -> None:
        self._answers = answers
        self._requests = requests

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message; return when it is being written."""
        await self._answers.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            await self._requests.ended(item.message.id)

    async def aclose(self) -> None:
        """Send no more messages."""
        await self._answers.aclose()
