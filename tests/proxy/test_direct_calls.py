"""Direct handlers: calls without a task, whose answers are the same frames as those of other handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.helpers.waiting import until
from tests.proxy.client import SERVICE
from tests.proxy.wire import HELLO, data, headers, prefixed

from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ErrorCode
from cometmq.proxy.protocol import v2
from cometmq.proxy.rpc.call import Call, Method
from cometmq.proxy.rpc.server import GrpcServer
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls

Direct = Callable[[Call, bytes], bytes | None]
PATH = f"{SERVICE}Heartbeat"
ANSWER = v2.HeartbeatResponse(status=v2.Status(code=v2.Code.OK, message="OK"))


async def _usual(_call: Call, _request: bytes) -> v2.HeartbeatResponse:
    return ANSWER


async def _answer_of(method: Method, sent: bytes, *, end: Callable[[], bool] | None = None) -> bytes:
    """Send these bytes to a server with one method; return what it sends until it is silent."""
    server = GrpcServer({PATH: method}, tls=ServerTls(TlsOptions()))
    await server.start("127.0.0.1", 0)
    received = bytearray()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HELLO + sent + frames.frame(frames.PING, 0, 0, b"end of c"))
        while b"end of c" not in received:
            received += await reader.read(65_536)
        if end is not None:
            await until(end)
        writer.write(frames.frame(frames.PING, 0, 0, b"end of d"))
        while b"end of d" not in received:
            received += await reader.read(65_536)
        writer.transport.abort()
    finally:
        await server.stop()
    found = bytes(received)
    for ping in (b"end of c", b"end of d"):
        found = found.replace(frames.frame(frames.PING, frames.ACK, 0, ping), b"")
    return found


def _call(stream: int, payload: bytes) -> bytes:
    return headers(stream, "Heartbeat") + data(stream, prefixed(payload))


async def test_a_direct_answer_has_the_frames_of_any_other() -> None:
    usual = await _answer_of(Method(bytes, _usual), _call(1, b"x"))
    direct = Method(bytes, direct=lambda _call, _payload: ANSWER.SerializeToString())
    assert await _answer_of(direct, _call(1, b"x")) == usual


async def test_a_direct_handler_gets_the_bytes_of_the_request_and_may_answer_later() -> None:
    got: list[bytes] = []

    def later(call: Call, payload: bytes) -> None:
        got.append(payload)
        asyncio.get_running_loop().call_later(0.01, call.answer, ANSWER.SerializeToString())
        asyncio.get_running_loop().call_later(0.02, got.append, b"answered")

    found = await _answer_of(Method(bytes, direct=later), _call(1, b"request"), end=lambda: b"answered" in got)
    assert got == [b"request", b"answered"]
    assert found == await _answer_of(Method(bytes, _usual), _call(1, b""))


async def test_an_answer_waits_for_a_small_window() -> None:
    small = frames.settings({frames.INITIAL_WINDOW_SIZE: 3})
    more = frames.window_update(1, 1_000)
    direct = Method(bytes, direct=lambda _call, _payload: ANSWER.SerializeToString())
    whole = await _answer_of(direct, _call(1, b"x"))
    body = prefixed(ANSWER.SerializeToString())
    found = await _answer_of(direct, small + _call(1, b"x") + more)
    first, rest = frames.frame(frames.DATA, 0, 1, body[:3]), frames.frame(frames.DATA, 0, 1, body[3:])
    acknowledged = frames.frame(frames.SETTINGS, frames.ACK, 0)
    assert found.count(acknowledged) == 2
    assert found.replace(acknowledged, b"").replace(first, b"").replace(rest, b"") == whole.replace(
        acknowledged, b""
    ).replace(frames.frame(frames.DATA, 0, 1, body), b"")


async def test_a_direct_handler_hears_that_its_call_is_cancelled() -> None:
    heard: list[str] = []

    def wait(call: Call, _payload: bytes) -> None:
        call.on_cancel = lambda: heard.append("cancelled")

    await _answer_of(
        Method(bytes, direct=wait), _call(1, b"x") + frames.reset(1, ErrorCode.CANCEL), end=lambda: bool(heard)
    )
    assert heard == ["cancelled"]


async def test_a_failure_of_a_direct_handler_ends_only_its_call() -> None:
    def fail(_call: Call, payload: bytes) -> bytes:
        if payload == b"bad":
            raise ValueError("no")
        return ANSWER.SerializeToString()

    found = await _answer_of(Method(bytes, direct=fail), _call(1, b"bad") + _call(3, b"good"))
    assert b"ValueError: no" in found
    assert frames.frame(frames.DATA, 0, 3, prefixed(ANSWER.SerializeToString())) in found


async def test_calls_beyond_the_time_of_a_round_wait_for_the_next() -> None:
    done: list[bytes] = []

    def work(_call: Call, payload: bytes) -> bytes:
        until_s = asyncio.get_running_loop().time() + 0.003
        while asyncio.get_running_loop().time() < until_s:
            pass
        done.append(payload)
        return ANSWER.SerializeToString()

    payloads = [b"%d" % number for number in range(12)]
    calls = b"".join(_call(2 * number + 1, payload) for number, payload in enumerate(payloads))
    found = await _answer_of(Method(bytes, direct=work), calls, end=lambda: len(done) == len(payloads))
    assert done == payloads
    assert found.count(prefixed(ANSWER.SerializeToString())) == len(payloads)
