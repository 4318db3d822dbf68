"""Reads a client's requests from stdin, one a line, with the limits of an HTTP request.

A client waits for the answer to a request that is refused. So its id is looked for at the beginning and at the end of
the line, where clients write it, without parsing what is between.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import BinaryIO, Final

from anyio.to_thread import run_sync
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError

from cometmq.integrations.mcp.options import MAX_REQUEST_BYTES
from cometmq.remoting.json_size import MAX_JSON_DEPTH, MAX_JSON_VALUES, is_small_json

_PART_BYTES: Final = 64 * 1024
_END_BYTES: Final = 1024
"""Length of the parts of a refused line in which its id is looked for."""
_ID: Final = rb'"id"\s*:\s*(?:(\d{1,18})|"([^"\\]{0,100})")'
_FIRST_ID: Final = re.compile(rb"\s*\{[^][{}]*?" + _ID)
"""An id before any other object or list, which is that of the request."""
_LAST_ID: Final = re.compile(_ID + rb"[^][{}]*\}\s*$")
"""An id after all other objects and lists."""


class StdioLines:
    """The lines of stdin. A line that is too large is answered with an error, and left out."""

    def __init__(self, stdin: BinaryIO) -> None:
        self._stdin = stdin
        self.answer: Callable[[SessionMessage], Awaitable[None]] | None = None
        """Sends the errors; set it before the first line."""

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield each line that can be parsed."""
        while line := await run_sync(self._stdin.readline, MAX_REQUEST_BYTES + 1):
            if len(line) > MAX_REQUEST_BYTES and not line.endswith(b"\n"):
                end = await run_sync(self._skip)
                await self._refuse(line, end, f"a request has at most {MAX_REQUEST_BYTES:,} bytes")
            elif not is_small_json(line):
                most = f"at most {MAX_JSON_VALUES:,} values and {MAX_JSON_DEPTH} levels of nesting"
                await self._refuse(line, line[-_END_BYTES:], f"the JSON of a request has {most}")
            else:
                yield line.decode(errors="replace")

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
        assert self.answer is not None
        error = JSONRPCError(jsonrpc="2.0", id=asked, error=ErrorData(code=INVALID_REQUEST, message=why))
        await self.answer(SessionMessage(error))
