"""Attackers at the gRPC port of a running broker: each gets a clear end, and another client is answered meanwhile."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median

import grpc
import pytest
import pytest_asyncio
from tests.helpers.pace import is_in_time
from tests.proxy.client import SERVICE, Client
from tests.proxy.wire import GRPC, HELLO, data, headers, prefixed

from cometmq.client.admin import Admin
from cometmq.limits import HANDSHAKE_SECONDS
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ErrorCode, frame
from cometmq.proxy.http2.hpack import HpackDecoder, encode_headers
from cometmq.proxy.limits import MAX_GRPC_MESSAGE_BYTES, MAX_STREAMS
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.rpc.status import GrpcStatus
from cometmq.testing import Cluster, ProcessCluster, VirtualClock, free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

BROKER = v2.Broker(name="broker-0")
FLOOD = 10_000
ANSWER_SECONDS = 0.15
GROWTH_BYTES = 64 * 1024 * 1024


class Server:
    """A broker in a process of its own, with a client that is no attacker."""

    def __init__(self, port: int, pid: int, client: Client) -> None:
        self.port = port
        self.client = client
        self._status = Path(f"/proc/{pid}/statm")

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(self._status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def answers(self, calls: int = 5) -> None:
        """Check that the other client is answered soon."""
        took = []
        for _ in range(calls):
            began = time.perf_counter()
            route = await self.client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="T")))
            took.append(time.perf_counter() - began)
            assert route.status.code == Code.OK
        assert is_in_time(median(took), ANSWER_SECONDS), took

    async def queue_with_messages(self) -> int:
        """The number of a queue of T that has messages."""
        policy = v2.QueryOffsetPolicy.END
        for number in range(16):
            queue = v2.MessageQueue(topic=v2.Resource(name="T"), id=number, broker=BROKER)
            request = v2.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
            if (await self.client.ask("QueryOffset", request)).offset:
                return number
        raise AssertionError("T has no message")

    @asynccontextmanager
    async def attacker(self, first: bytes = HELLO) -> AsyncIterator[Attacker]:
        """A connection that has sent some bytes."""
        attacker = Attacker(*await asyncio.open_connection("127.0.0.1", self.port))
        attacker.send(first)
        try:
            yield attacker
        finally:
            attacker.close()


class Attacker:
    """A connection that sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self._decoder = HpackDecoder(65_536)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.transport.abort()

    async def frame(self) -> tuple[int, int, bytes]:
        """The next frame: type, stream, payload."""
        head = await asyncio.wait_for(self.reader.readexactly(frames.HEAD_BYTES), 10)
        high, low, kind, _, stream = frames.HEAD.unpack(head)
        return kind, stream, await self.reader.readexactly(high << 8 | low)

    async def goaway(self) -> tuple[ErrorCode, str]:
        """The reason why the server ends the connection, which it then does."""
        while True:
            kind, _, payload = await self.frame()
            if kind == frames.GOAWAY:
                while await asyncio.wait_for(self.reader.read(65_536), 10):
                    pass
                return ErrorCode(int.from_bytes(payload[4:8], "big")), payload[8:].decode()

    async def begun(self, number: int) -> None:
        """Wait for the first headers of an answer."""
        while (await self.frame())[:2] != (frames.HEADERS, number):
            pass

    async def status(self, number: int, call: bytes = b"") -> tuple[GrpcStatus, str]:
        """Make a call, or take one that is made, and return its status."""
        self.send(call)
        while True:
            kind, stream, payload = await self.frame()
            if kind == frames.HEADERS:
                headers, _ = self._decoder.decode(payload)
                if stream == number and "grpc-status" in headers:
                    return GrpcStatus(int(headers["grpc-status"])), headers.get("grpc-message", "")


@pytest.fixture(scope="module")
def process() -> Iterator[tuple[int, ProcessCluster]]:
    """The port of a broker, and the broker."""
    port = free_port("127.0.0.1")
    with ProcessCluster(broker_keys={"grpcServerPort": str(port)}) as cluster:
        yield port, cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(process: tuple[int, ProcessCluster]) -> AsyncIterator[Server]:
    port, cluster = process
    async with Admin(cluster.namesrv_address) as admin:
        await admin.create_topic("T")
        await admin.create_topic("Empty")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = Client(channel)
        assert (await client.send("T", b"x" * 1024 * 1024)).status.code == Code.OK
        running = Server(port, cluster.brokers[0].pid or 0, client)
        await running.answers()
        yield running


BOMB = b"\x40" + encode_headers(("x-large", "x" * 3_900))[1:]
"""A header that the table keeps; 0xbe is its number then."""


def headers_frame(block: bytes, stream: int = 1) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, stream, block)


GARBAGE = {
    "http-1": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "remoting": (b"\0\0\0\x6a\0\0\0\x5f" + b"{" * 98, ErrorCode.PROTOCOL_ERROR),
    "noise": (bytes(range(255, 100, -1)) * 20, ErrorCode.PROTOCOL_ERROR),
    "frame-too-large": (HELLO + b"\xff\xff\xff\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
    "data-of-no-stream": (HELLO + frame(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data-of-an-idle-stream": (HELLO + frame(frames.DATA, 0, 7, b"x"), ErrorCode.PROTOCOL_ERROR),
    "continuation-of-nothing": (HELLO + frame(frames.CONTINUATION, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "push": (HELLO + frame(frames.PUSH_PROMISE, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "even-stream": (HELLO + headers(2, "Heartbeat"), ErrorCode.PROTOCOL_ERROR),
    "bomb-of-headers": (HELLO + headers_frame(BOMB + b"\xbe" * 12_000), ErrorCode.COMPRESSION_ERROR),
    "sizes-of-the-table": (HELLO + headers_frame(b"\x20\x3f\xe1\x1f" * 4_000), ErrorCode.COMPRESSION_ERROR),
    "bad-headers": (HELLO + frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff" * 40), ErrorCode.COMPRESSION_ERROR),
    "padding": (HELLO + frame(frames.HEADERS, frames.PADDED, 1, b"\xff"), ErrorCode.PROTOCOL_ERROR),
    "window-of-0": (HELLO + frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "window-too-large": (HELLO + frames.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "settings-cut": (HELLO + frame(frames.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
    "settings-window": (HELLO + frames.settings({4: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
    "reset-of-an-idle-stream": (HELLO + frames.reset(9, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "ping-cut": (HELLO + frame(frames.PING, 0, 0, b"1234567"), ErrorCode.PROTOCOL_ERROR),
    "headers-between-headers": (
        HELLO + frame(frames.HEADERS, 0, 1, b"") + frame(frames.PING, 0, 0, b"12345678"),
        ErrorCode.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_garbage_gets_a_goaway_with_its_reason(server: Server, case: str) -> None:
    garbage, code = GARBAGE[case]
    async with server.attacker(garbage) as attacker:
        found, words = await attacker.goaway()
    assert found == code
    assert words


def _resets() -> bytes:
    return b"".join(
        headers(number, "Heartbeat", flags=frames.END_STREAM) + frames.reset(number, ErrorCode.CANCEL)
        for number in range(1, 2 * FLOOD, 2)
    )


FLOODS: dict[str, Callable[[], bytes]] = {
    "pings": lambda: frame(frames.PING, 0, 0, b"12345678") * FLOOD,
    "settings": lambda: frames.settings({4: 1_000}) * FLOOD,
    "resets": _resets,
    "priorities": lambda: frame(frames.PRIORITY, 0, 1, b"12345") * FLOOD,
    "empty-data": lambda: headers(1, "Telemetry") + frame(frames.DATA, 0, 1) * FLOOD,
    "data-after-the-answer": lambda: headers(1, "None") + frame(frames.DATA, 0, 1, b"x") * FLOOD,
    "continuations": lambda: frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 1, b"x" * 1_000) * FLOOD,
    "empty-continuations": lambda: frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 1) * FLOOD,
    "streams": lambda: b"".join(headers(number, "Telemetry") for number in range(1, 2 * FLOOD, 2)),
}


@pytest.mark.parametrize("case", FLOODS)
async def test_a_flood_is_ended_while_others_are_served(server: Server, case: str) -> None:
    flood = FLOODS[case]()
    before = server.memory
    async with server.attacker() as attacker:
        attacker.send(flood)
        served = asyncio.ensure_future(server.answers())
        try:
            code, words = await attacker.goaway()
        except ConnectionError:  # the system drops what was not read when the server closes first
            code, words = ErrorCode.ENHANCE_YOUR_CALM, "lost"
        await served
    assert (code, bool(words)) == (ErrorCode.ENHANCE_YOUR_CALM, True)
    assert server.memory - before < GROWTH_BYTES


async def test_a_ping_after_each_answer_as_javas_client_sends_it_is_no_flood(server: Server) -> None:
    ping = frame(frames.PING, 0, 0, b"12345678") + frame(frames.WINDOW_UPDATE, 0, 0, (4_096).to_bytes(4, "big"))
    async with server.attacker() as client:
        for number in range(1, 6_001, 2):
            status, _ = await client.status(number, headers(number, "Heartbeat") + data(number, prefixed(b"")) + ping)
            assert status is GrpcStatus.OK


async def test_windows_that_change_a_thousand_times_in_a_frame_hold_nobody_up(server: Server) -> None:
    streams = b"".join(headers(number, "Telemetry") for number in range(1, 2 * MAX_STREAMS, 2))
    settings = b"".join(frames.SETTING.pack(4, 1_000 + number % 2) for number in range(2_700))
    async with server.attacker() as attacker:
        attacker.send(streams + frame(frames.SETTINGS, 0, 0, settings) * 100)
        await server.answers()


async def test_a_header_list_that_is_too_large_is_the_status_of_its_call(server: Server) -> None:
    async with server.attacker() as attacker:
        block = encode_headers((":method", "POST"), (":path", f"{SERVICE}Heartbeat"), *GRPC, ("x-large", "x" * 30_000))
        attacker.send(frame(frames.HEADERS, 0, 1, block[:16_000]))
        attacker.send(frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[16_000:]))
        status = await attacker.status(1)
        assert status == (GrpcStatus.RESOURCE_EXHAUSTED, "the call's metadata is too large")
        attacker.send(headers(3, "Heartbeat") + data(3, prefixed(b"")))
        assert (await attacker.status(3))[0] == GrpcStatus.OK  # the connection goes on


async def test_a_client_with_a_megabyte_of_metadata_gets_an_error(server: Server) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        client = Client(channel)
        client.metadata = (*client.metadata, ("x-large", "x" * 1024 * 1024))
        with pytest.raises(grpc.aio.AioRpcError):
            await client.ask("Heartbeat", v2.HeartbeatRequest(), timeout=5)
    await server.answers(1)


BODIES = {
    "too-large": (
        b"\0" + (MAX_GRPC_MESSAGE_BYTES + 1).to_bytes(4, "big"),
        GrpcStatus.RESOURCE_EXHAUSTED,
        "gRPC message exceeds maximum size 16777216: 16777217",
    ),
    "compressed": (
        b"\1\0\0\0\1x",
        GrpcStatus.UNIMPLEMENTED,
        "compressed messages are not supported: use the identity encoding",
    ),
    "no-protobuf": (prefixed(b"\xff" * 100), GrpcStatus.INTERNAL, "Invalid protobuf byte sequence"),
    "cut": (b"\0\0\0\0\x09x", GrpcStatus.INTERNAL, "Half-closed without a request"),
    "empty": (b"", GrpcStatus.INTERNAL, "Half-closed without a request"),
    "two": (prefixed(b"") * 2, GrpcStatus.INTERNAL, "Half-closed without a request"),
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_wrong_message_is_the_status_of_its_call(server: Server, case: str) -> None:
    body, status, words = BODIES[case]
    async with server.attacker() as attacker:
        attacker.send(headers(1, "SendMessage") + data(1, body))
        assert await attacker.status(1) == (status, words)


async def test_data_after_the_end_ends_the_connection(server: Server) -> None:
    async with server.attacker() as attacker:
        receive = v2.ReceiveMessageRequest(
            group=v2.Resource(name="G"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name="Empty"), broker=BROKER),
            auto_renew=True,
        )
        attacker.send(headers(1, "ReceiveMessage") + data(1, prefixed(receive.SerializeToString())) + data(1, b"more"))
        code, words = await attacker.goaway()
    assert (code, words) == (ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")


async def test_a_call_without_a_client_id_is_refused(server: Server) -> None:
    nobody = Client(server.client.channel, metadata=())
    answer = await nobody.send("T", b"body")
    assert (answer.status.code, answer.status.message) == (Code.CLIENT_ID_REQUIRED, "client id cannot be empty")


async def test_messages_that_never_end_cost_their_sender_the_connection(server: Server) -> None:
    part = prefixed(b"")[:1] + MAX_GRPC_MESSAGE_BYTES.to_bytes(4, "big") + bytes(MAX_GRPC_MESSAGE_BYTES - 1)
    async with server.attacker() as attacker:
        for number in range(1, 39, 2):
            attacker.send(headers(number, "SendMessage") + data(number, part, ends=False))
            await asyncio.sleep(0)
        served = asyncio.ensure_future(server.answers())
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await attacker.status(1)
        await served
    assert (await server.client.send("T", b"mine")).status.code == Code.OK


async def test_calls_with_large_metadata_that_stay_open_cost_their_sender_the_connection(server: Server) -> None:
    call = encode_headers((":method", "POST"), (":path", f"{SERVICE}Telemetry"), *GRPC) + b"\xbe" * 4
    calls = headers_frame(BOMB + call) + b"".join(headers_frame(call, stream) for stream in range(3, 2_001, 2))
    before = server.memory
    async with AsyncExitStack() as stack:
        attackers = [await stack.enter_async_context(server.attacker(HELLO + calls)) for _ in range(20)]
        ends = [asyncio.ensure_future(attacker.goaway()) for attacker in attackers]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await server.answers()
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
    assert server.memory - before < GROWTH_BYTES


async def test_answers_that_are_never_read_are_bounded(server: Server) -> None:
    await server.client.send("T", b"x" * 1024 * 1024)
    queue_id = await server.queue_with_messages()
    pull = prefixed(
        v2.PullMessageRequest(
            group=v2.Resource(name="G"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name="T"), id=queue_id, broker=BROKER),
            offset=0,
            batch_size=1,
        ).SerializeToString()
    )
    before = server.memory
    async with server.attacker(frames.PREFACE + frames.settings({4: 0})) as attacker:
        for number in range(1, 101, 2):
            attacker.send(headers(number, "PullMessage") + data(number, pull))
            await attacker.begun(number)
        await server.answers()
        status, words = await attacker.status(101, headers(101, "PullMessage") + data(101, pull))
        assert (status, "does not read the responses" in words) == (GrpcStatus.RESOURCE_EXHAUSTED, True)
        assert server.memory - before < 2 * GROWTH_BYTES


async def test_telemetry_that_never_sends_settings_or_a_thousand_times(server: Server) -> None:
    settings = v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=v2.Publishing(topics=[v2.Resource(name="T")]))
    command = prefixed(v2.TelemetryCommand(settings=settings).SerializeToString())
    async with server.attacker() as attacker:
        attacker.send(b"".join(headers(number, "Telemetry") for number in range(1, 1_601, 2)))
        await server.answers(1)
        attacker.send(headers(1_601, "Telemetry") + data(1_601, command * 1_000, ends=False))
        assert await attacker.status(1_601) == (GrpcStatus.RESOURCE_EXHAUSTED, "too many settings are pending")
        streams = range(1_603, 2_003, 2)
        for number in streams:
            attacker.send(headers(number, "Telemetry") + data(number, command, ends=False))
        assert await attacker.status(streams[-2]) == (GrpcStatus.OK, "")  # the last stream takes its place
        await server.answers()


async def test_connections_that_say_nothing_or_half_a_preface_leave_room_for_others(server: Server) -> None:
    before = server.memory
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(600)]
    for number, (_, writer) in enumerate(silent):
        writer.write((b"", b"PRI", frames.PREFACE[:-1], b"\x16\x03\x01")[number % 4])
    await server.answers()
    assert server.memory - before < GROWTH_BYTES
    for _, writer in silent:
        writer.transport.abort()


@pytest.mark.parametrize("first", [b"", b"P", frames.PREFACE[:-1], b"\x16\x03"], ids=["none", "one", "most", "tls"])
async def test_a_connection_without_a_preface_is_closed_in_time(first: bytes) -> None:
    clock = VirtualClock()
    async with Cluster(grpc=True, clock=clock) as cluster:
        host, port = cluster.grpc_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        await clock.run_for(2 * HANDSHAKE_SECONDS)
        await asyncio.wait_for(reader.read(), 5)  # until the server closes it
        writer.close()
