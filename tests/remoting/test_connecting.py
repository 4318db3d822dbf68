"""All addresses of a name are tried within one time limit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import uvloop

from cometmq.clock import SYSTEM_CLOCK
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.connections.connecting import connect, connected_in_time, connected_socket, places
from cometmq.remoting.errors import RemotingConnectError

SILENT, REFUSING, TAKING = "127.0.0.2", "127.0.0.3", "127.0.0.1"
NAME = "brokers.test"
LIMIT_S = 1.0

Connect = Callable[[str, int, float], socket.socket]


@pytest.fixture
def port() -> Iterator[int]:
    """A port that one address serves, one refuses, and at one answers nothing: its queue of connections is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((TAKING, 0)))
        number: int = server.getsockname()[1]
        silent = stack.enter_context(socket.socket())
        silent.bind((SILENT, number))
        silent.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((SILENT, number))
        yield number


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the name its addresses, as a resolver of the system does."""
    resolve = socket.getaddrinfo

    def set_to(*addresses: str) -> None:
        def found(host: str, port: int, **options: int) -> list[object]:
            hosts = addresses if host == NAME else (host,)
            return [one for each in hosts for one in resolve(each, port, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", found)

    return set_to


def in_loop(host: str, port: int, limit_s: float) -> socket.socket:
    return asyncio.run(connected_socket(host, port, SYSTEM_CLOCK, limit_s))


def without_loop(host: str, port: int, limit_s: float) -> socket.socket:
    return connected_in_time(host, port, SYSTEM_CLOCK, limit_s)


@pytest.mark.parametrize("connect", [in_loop, without_loop])
@pytest.mark.parametrize(
    "addresses",
    [
        (TAKING,),
        (REFUSING, TAKING),
        (SILENT, TAKING),
        (SILENT, REFUSING, SILENT, TAKING),
        ("::1", TAKING),
        (TAKING, SILENT),
    ],
)
def test_the_address_that_takes_connections_is_found(
    connect: Connect, addresses: tuple[str, ...], port: int, names: Callable[..., None]
) -> None:
    names(*addresses)
    with connect(NAME, port, LIMIT_S) as connected:
        assert connected.getpeername() == (TAKING, port)


@pytest.mark.parametrize("connect", [in_loop, without_loop])
def test_one_limit_is_for_all_addresses(connect: Connect, port: int, names: Callable[..., None]) -> None:
    names(*[SILENT] * 2, REFUSING, SILENT)
    began = time.monotonic()
    with pytest.raises(OSError, match=r"took longer|timed out|refused"):
        connect(NAME, port, 0.4)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("connect", [in_loop, without_loop])
def test_a_name_whose_addresses_all_refuse_is_refused(connect: Connect, port: int, names: Callable[..., None]) -> None:
    names(REFUSING, "127.0.0.4")
    with pytest.raises(ConnectionRefusedError):
        connect(NAME, port, LIMIT_S)


def test_families_take_turns_and_addresses_come_once(names: Callable[..., None]) -> None:
    names("::1", "::2", TAKING, TAKING)
    assert [address[0] for _, address in places(NAME, 1)] == ["::1", TAKING, "::2"]


async def test_clients_find_the_address(port: int, names: Callable[..., None]) -> None:
    names(SILENT, REFUSING, TAKING)
    async with RemotingClient() as client:
        await client.ready(f"{NAME}:{port}", SYSTEM_CLOCK.monotonic() + 3)
    BlockingConnection(f"{NAME}:{port}", 1.0).close()


async def test_a_failed_connect_and_a_broken_connection_are_told(port: int, names: Callable[..., None]) -> None:
    failed: list[str] = []
    names(TAKING)
    async with RemotingClient() as client:
        client.on_failure.append(failed.append)
        with pytest.raises(RemotingConnectError):
            await client.ready(f"{REFUSING}:{port}", SYSTEM_CLOCK.monotonic() + 3)
        connection = await client.ready(f"{TAKING}:{port}", SYSTEM_CLOCK.monotonic() + 3)
        assert failed == [f"{REFUSING}:{port}"]
        connection.abort("it broke")
        assert failed == [f"{REFUSING}:{port}", f"{TAKING}:{port}"]
        await client.ready(f"{TAKING}:{port}", SYSTEM_CLOCK.monotonic() + 3)
    assert len(failed) == 2, "closing is no failure"


@pytest.mark.parametrize("loop_type", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_cancellation_in_any_round_of_the_opening_leaves_no_connection_open(
    loop_type: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def cancelled_after(rounds: int, port: int) -> bool:
        protocol = asyncio.Protocol()
        opening = asyncio.create_task(connect(protocol, TAKING, port, SYSTEM_CLOCK, LIMIT_S, tls=None))
        for _ in range(rounds):
            await asyncio.sleep(0)
        opening.cancel()
        (outcome,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            return True
        assert not isinstance(outcome, BaseException)
        outcome.abort()
        return False

    async def cancelled_in_every_round(listener: socket.socket) -> int:
        rounds = 0
        while await cancelled_after(rounds, listener.getsockname()[1]):
            rounds += 1
        await asyncio.sleep(0)
        return rounds

    with asyncio.Runner(loop_factory=loop_type) as runner, socket.create_server((TAKING, 0)) as listener:
        assert runner.run(cancelled_in_every_round(listener)) > 2
        gc.collect()
        listener.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                peer, _ = listener.accept()
                peer.settimeout(LIMIT_S)
                with peer, contextlib.suppress(ConnectionResetError):
                    assert peer.recv(1) == b""
