"""Limits HTTP requests' bodies: the size of each and of all together, and the values of JSON. ASGI middleware of the
console and of the MCP server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from cometmq.remoting.json_size import MAX_JSON_DEPTH, MAX_JSON_VALUES, is_small_json

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]


class _RefusedError(Exception):
    """A request is not handled, because of the size of its body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status: Final = status


class _Body:
    """The received part of one request's body."""

    def __init__(self) -> None:
        self.bytes = 0
        self.reading: asyncio.Future[_Message] | None = None
        """The next part, while it is awaited."""
        self.is_dropped = self.is_complete = False


class RequestBodies:
    """Middleware that refuses requests with large bodies.

    Bytes count from their arrival until the response is complete. If all bodies together are too large, the largest of
    those that are still arriving is refused: a client that sends slowly cannot keep others out.

    :param most_of_one: returns the maximum number of bytes of a request's body, given the request's headers.
    :param most_of_all: maximum number of bytes in all bodies.
    :param is_json: all bodies are JSON, which must be small enough to be parsed (:mod:`cometmq.remoting.json_size`).
    """

    def __init__(
        self,
        app: _App,
        most_of_one: Callable[[Mapping[bytes, bytes]], int],
        most_of_all: int,
        *,
        is_json: bool = False,
    ) -> None:
        self._app = app
        self._most_of_one = most_of_one
        self._most_of_all = most_of_all
        self._is_json = is_json
        self._arriving: set[_Body] = set()
        self._bytes = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Pass a request on, and answer it with status 413 or 503 if its body does not fit."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = int(headers.get(b"content-length", 0))
        most, body = self._most_of_one(headers), _Body()

        async def counted() -> _Message:
            message = await self._part(body, receive)
            if message["type"] == "http.request":
                body.is_complete = not message.get("more_body", False)
                self._count(body, len(message.get("body", b"")), most)
                if body.is_complete:
                    self._arriving.discard(body)
            return message

        try:
            if declared > most:
                raise _too_large(most)
            await self._app(scope, await _read_json(counted) if self._is_json else counted, send)
        except _RefusedError as refused:
            self._forget(body)
            if not body.is_complete and declared <= self._most_of_all:
                await self._skip(receive)
            await _answer(send, refused.status, str(refused))
        finally:
            self._forget(body)

    async def _part(self, body: _Body, receive: _Receive) -> _Message:
        if body.is_dropped:
            raise _too_many(self._most_of_all)
        body.reading = asyncio.ensure_future(receive())
        try:
            return await body.reading
        except asyncio.CancelledError:
            if body.is_dropped:
                raise _too_many(self._most_of_all) from None
            raise
        finally:
            body.reading = None

    async def _skip(self, receive: _Receive) -> None:
        """Read the rest of a body: many clients see an answer only when they have sent their request."""
        left, more = self._most_of_all, True
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message.get("more_body", False)

    def _count(self, body: _Body, size: int, most: int) -> None:
        self._arriving.add(body)
        body.bytes += size
        self._bytes += size
        if body.bytes > most:
            raise _too_large(most)
        if self._bytes > self._most_of_all:
            largest = max(self._arriving, key=lambda one: one.bytes)
            self._forget(largest)
            largest.is_dropped = True
            if largest.reading is not None:
                largest.reading.cancel()
        if body.is_dropped:
            raise _too_many(self._most_of_all)

    def _forget(self, body: _Body) -> None:
        self._arriving.discard(body)
        self._bytes -= body.bytes
        body.bytes = 0


async def _read_json(receive: _Receive) -> _Receive:
    """Read a whole body of JSON and check it; return a function that passes it on."""
    parts, message = [], await receive()
    while message["type"] == "http.request" and message.get("more_body", False):
        parts.append(message.get("body", b""))
        message = await receive()
    first: _Message | None = message
    if message["type"] == "http.request":
        body = b"".join((*parts, message.get("body", b"")))
        if not is_small_json(body):
            raise _RefusedError(
                413,
                f"the JSON of this request has at most {MAX_JSON_VALUES:,} values and {MAX_JSON_DEPTH} levels of "
                "nesting\n",
            )
        first = {"type": "http.request", "body": body, "more_body": False}

    async def pass_on() -> _Message:
        nonlocal first
        passed, first = first, None
        return await receive() if passed is None else passed

    return pass_on


def _too_large(most: int) -> _RefusedError:
    return _RefusedError(413, f"the body of this request has at most {most:,} bytes\n")


def _too_many(most: int) -> _RefusedError:
    return _RefusedError(503, f"all requests together have at most {most:,} bytes at a time; send this one again\n")


async def _answer(send: _Send, status: int, text: str) -> None:
    body = text.encode()
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": f"{len(body)}", "retry-after": "1"}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
