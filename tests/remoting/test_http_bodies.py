"""Bodies of HTTP requests: each has a limit, all together have one, and slow clients keep nobody out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from cometmq.remoting.http_bodies import RequestBodies

ONE, ALL = 100_000, 150_000


async def _size(scope: object, receive: object, send: object) -> None:
    """Answer with the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()  # type: ignore[operator]
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    text = str(size).encode()
    headers = [(b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": text})  # type: ignore[operator]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = RequestBodies(_size, lambda _: ONE, ALL)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server._serve([listening]))
        yield listening.getsockname()[1]
        server.should_exit = True
        await serving
    assert (app._bytes, app._arriving) == (0, set())


class Request:
    """A request whose body arrives in parts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def begin(cls, port: int, size: int | None) -> Request:
        request = cls(*await asyncio.open_connection("127.0.0.1", port))
        how = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
        request.send(f"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{how}\r\n\r\n".encode())
        return request

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, str]:
        async with asyncio.timeout(20):
            answer = await self._reader.read()
        self._writer.close()
        return int(answer.split()[1]), answer.rpartition(b"\r\n\r\n")[2].decode()


async def test_the_largest_of_those_that_still_arrive_is_refused(port: int) -> None:
    """A client that begins large requests and does not end them keeps nobody out."""
    slow = [await Request.begin(port, ONE) for _ in range(2)]
    slow[0].send(bytes(60_000))
    slow[1].send(bytes(80_000))
    assert (await (await Request.begin(port, 0)).answer()) == (200, "0")
    third = await Request.begin(port, 50_000)
    third.send(bytes(50_000))
    assert await third.answer() == (200, "50000")
    slow[1].send(bytes(20_000))
    status, text = await slow[1].answer()
    assert (status, "send this one again" in text) == (503, True)
    slow[0].send(bytes(40_000))
    assert await slow[0].answer() == (200, "100000")


async def test_a_body_counts_while_its_request_is_handled_and_no_longer(port: int) -> None:
    for _ in range(5):
        request = await Request.begin(port, ONE)
        request.send(bytes(ONE))
        assert await request.answer() == (200, str(ONE))


@pytest.mark.parametrize("size", [ONE + 1, None])
async def test_a_body_above_the_limit_is_refused(port: int, size: int | None) -> None:
    request = await Request.begin(port, size)
    body = bytes(ONE + 1)
    request.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if size is None else body)
    assert (await request.answer())[0] == 413


async def test_a_client_that_leaves_frees_its_part(port: int) -> None:
    for _ in range(5):
        request = await Request.begin(port, ONE)
        request.send(bytes(90_000))
        assert (await (await Request.begin(port, 0)).answer()) == (200, "0")
        request._writer.transport.abort()
