"""The port for monitoring answers what monitors ask, and strangers do no harm."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.helpers.hosts import link_local
from tests.helpers.waiting import real_time

from cometmq.limits import MAX_MONITOR_CONNECTIONS, MAX_MONITOR_HEAD_BYTES, MONITOR_SECONDS, STALLED_MONITOR_SECONDS
from cometmq.metrics.http import MonitorServer
from cometmq.testing import VirtualClock


class Monitored:
    """A server whose metrics and readiness a test sets."""

    def __init__(self, clock: VirtualClock) -> None:
        self.pieces: list[bytes] = [b"a 1\n", b"", b"b 2\n"]
        self.not_ready = ""
        self.collections = 0
        self.server = MonitorServer(self._metrics, lambda: self.not_ready, clock=clock)

    def _metrics(self) -> Iterator[bytes]:
        self.collections += 1
        yield from self.pieces

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    async def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        answer = await self.ask(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@pytest.fixture
async def monitored(clock: VirtualClock) -> AsyncIterator[Monitored]:
    monitored = Monitored(clock)
    await monitored.server.start("127.0.0.1", 0)
    yield monitored
    await monitored.server.stop()


async def test_metrics_come_in_pieces(monitored: Monitored) -> None:
    assert await monitored.get("/metrics?x=1") == (200, b"4\r\na 1\n\r\n4\r\nb 2\n\r\n0\r\n\r\n")
    assert monitored.server.url == f"http://127.0.0.1:{monitored.server.port}/metrics"


@pytest.mark.skipif(not link_local(), reason="this machine has no link-local address")
async def test_the_address_of_a_link_local_host_has_its_zone(clock: VirtualClock) -> None:
    server = Monitored(clock).server
    await server.start(link_local(), 0)
    assert server.url == f"http://[{link_local()}]:{server.port}/metrics"
    await server.stop()


async def test_a_host_that_can_be_no_name_is_an_error_in_the_log(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Monitored(clock).server
    await server.start("a..b", 0)
    assert server.url == ""
    assert "metrics are not served" in caplog.text


async def test_a_server_is_alive_before_it_is_ready(monitored: Monitored) -> None:
    monitored.not_ready = "the broker starts"
    assert await monitored.get("/healthz") == (200, b"ok\n")
    assert await monitored.get("/readyz") == (503, b"the broker starts\n")
    monitored.not_ready = ""
    assert await monitored.get("/readyz") == (200, b"ready\n")


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/", "/nothing"])
async def test_a_head_has_no_body(monitored: Monitored, path: str) -> None:
    assert (await monitored.get(path, "HEAD"))[1] == b""


async def test_anything_else_is_refused(monitored: Monitored) -> None:
    assert await monitored.get("/nothing") == (404, b"use /metrics, /healthz or /readyz\n")
    assert (await monitored.get("/metrics", "POST"))[0] == 405
    assert (await monitored.ask(b"\x16\x03\x01" + b"\x00" * 600)).startswith(b"HTTP/1.1 400 ")
    body = b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    assert (await monitored.ask(body)).startswith(b"HTTP/1.1 413 ")
    head = b"GET / HTTP/1.1\r\nHost: " + b"x" * (MAX_MONITOR_HEAD_BYTES + 1)
    assert (await monitored.ask(head)).startswith(b"HTTP/1.1 431 ")
    assert (await monitored.get("/healthz"))[0] == 200


async def test_one_connection_serves_many_requests(monitored: Monitored) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", monitored.server.port)
    for _ in range(3):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


async def test_a_request_that_does_not_come_ends(monitored: Monitored, clock: VirtualClock) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", monitored.server.port)
    writer.write(b"GET /metr")
    await writer.drain()
    await clock.run_for(MONITOR_SECONDS + 1)
    assert await reader.read() == b""
    writer.close()


async def test_an_answer_that_nobody_reads_ends_and_the_next_monitor_is_served(
    monitored: Monitored, clock: VirtualClock
) -> None:
    monitored.pieces = [b"x" * 1_000_000] * 20
    reader, writer = await asyncio.open_connection("127.0.0.1", monitored.server.port, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readexactly(1)
    waiting = asyncio.ensure_future(monitored.get("/metrics"))
    await clock.run_for(MONITOR_SECONDS + 1)
    monitored.pieces = [b"a 1\n"]
    assert (await waiting)[0] == 200
    writer.transport.abort()


async def test_a_storm_of_scrapes_costs_one_collection_and_one_for_all_that_came_meanwhile(
    monitored: Monitored,
) -> None:
    monitored.pieces = [b"a 1\n"] * 50
    answers = await asyncio.gather(*(monitored.get("/metrics") for _ in range(MAX_MONITOR_CONNECTIONS)))
    assert {status for status, _ in answers} == {200}
    assert {body.count(b"a 1") for _, body in answers} == {50}
    assert monitored.collections <= 3, "some of the connections may be accepted later"


async def test_a_monitor_that_does_not_read_holds_up_the_others_of_a_storm_for_a_second(
    monitored: Monitored, clock: VirtualClock
) -> None:
    monitored.pieces = [b"x" * 1_000_000] * 20
    first = asyncio.ensure_future(monitored.get("/metrics"))
    reader, writer = await asyncio.open_connection("127.0.0.1", monitored.server.port, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readexactly(1)
    others = asyncio.gather(*(monitored.get("/metrics") for _ in range(3)))
    waited_s = 0.0
    while not others.done():
        await clock.run_for(STALLED_MONITOR_SECONDS / 4)
        waited_s += STALLED_MONITOR_SECONDS / 4
        await real_time(0.01)
        assert waited_s < 2 * MONITOR_SECONDS
    assert {len(body) > 20_000_000 for _, body in await others} == {True}
    assert (await first)[0] == 200
    writer.transport.abort()


async def test_connections_are_bounded(monitored: Monitored) -> None:
    opened = [await asyncio.open_connection("127.0.0.1", monitored.server.port) for _ in range(MAX_MONITOR_CONNECTIONS)]
    for reader, writer in opened:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"ok\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", monitored.server.port)
    with contextlib.suppress(ConnectionError):  # or an end without an error
        assert await reader.read() == b""
    writer.close()
    for _, writer in opened:
        writer.close()
