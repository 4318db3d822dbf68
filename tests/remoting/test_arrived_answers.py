"""An answer that has arrived counts, although the event loop was too busy to read it before the end of its time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.helpers.waiting import until

from cometmq.remoting.client import RemotingClient
from cometmq.remoting.command import FLAG_RESPONSE, RemotingCommand, decode_command
from cometmq.remoting.errors import RemotingTimeoutError
from cometmq.remoting.frame import FrameDecoder
from cometmq.testing import VirtualClock

CODE = 30


class Peer:
    """A server without an event loop: it answers while the loop of the client stands still."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._decoder = FrameDecoder()
        self._socket: socket.socket | None = None
        self.asked: list[int] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def has_heard(self, count: int) -> bool:
        """Read what is there; tell whether there were so many requests."""
        if self._socket is None:
            self._socket, _ = self._listener.accept()
            self._socket.settimeout(10)
        self._decoder.push(self._socket.recv(1 << 20))
        while (frame := self._decoder.next()) is not None:
            self.asked.append(decode_command(frame).opaque)
        return len(self.asked) >= count

    def answer(self, opaques: list[int]) -> None:
        assert self._socket is not None
        commands = (RemotingCommand(0, opaque, FLAG_RESPONSE, remark="x" * 100) for opaque in opaques)
        self._socket.sendall(b"".join(command.encode() for command in commands))

    def close(self) -> None:
        self._listener.close()
        if self._socket is not None:
            self._socket.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
async def client(clock: VirtualClock) -> AsyncIterator[RemotingClient]:
    async with RemotingClient(clock=clock) as client:
        yield client


async def asked(client: RemotingClient, peer: Peer, count: int) -> list[asyncio.Task[RemotingCommand]]:
    """Send requests that may take three seconds each; return when the peer has them."""
    deadline = client.clock.monotonic() + 3
    await client.ready(peer.address, deadline)
    tasks = [asyncio.ensure_future(client.invoke(peer.address, CODE, timeout_s=3)) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    await until(lambda: peer.has_heard(count))
    return tasks


@pytest.mark.parametrize("count", [1, 3000])
async def test_answers_that_wait_in_the_socket_count_at_the_end_of_their_time(
    client: RemotingClient, peer: Peer, clock: VirtualClock, count: int
) -> None:
    tasks = await asked(client, peer, count)
    peer.answer(peer.asked)
    clock.advance(60)
    answers = await asyncio.gather(*tasks)
    assert [answer.code for answer in answers] == [0] * count


async def test_only_what_has_no_answer_is_overdue(client: RemotingClient, peer: Peer, clock: VirtualClock) -> None:
    tasks = await asked(client, peer, 1000)
    peer.answer(peer.asked[:-1])
    clock.advance(60)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes.pop(), RemotingTimeoutError)
    assert all(isinstance(outcome, RemotingCommand) for outcome in outcomes)
    assert (await client.ready(peer.address, clock.monotonic())).in_flight == 0, "a peer that was heard stays connected"


async def test_a_request_is_overdue_although_other_answers_never_end(
    client: RemotingClient, peer: Peer, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.remoting.connections.client_connection.UNREAD_BYTES", 20_000)
    (task,) = await asked(client, peer, 1)
    clock.advance(60)
    for _ in range(1000):
        peer.answer([7_000_000])  # whom nobody waits for
        await asyncio.sleep(0)
        if task.done():
            break
    with pytest.raises(RemotingTimeoutError):
        await asyncio.wait_for(task, 0)
