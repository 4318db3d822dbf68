"""The core writes the answers of plain sends to their sockets: whole, in order, and never to another connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import pytest
from tests.broker.wire import Wire, send_header
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.turn import answers
from cometmq.core import CORE
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.server_connection import ServerConnection

pytestmark = pytest.mark.skipif(
    not hasattr(CORE, "write_answers"), reason="the compiled core is not installed (make test builds it)"
)
SENDS = 4_000
AT_ONCE = 20


class Written:
    """What the core wrote itself, and what it left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole = self.left = self.begun = 0
        monkeypatch.setattr(answers, "_write_direct", self._write)

    def _write(self, rows: list[Any]) -> Iterable[tuple[int, int]]:
        left: list[tuple[int, int]] = CORE.write_answers(rows)
        self.whole += len(rows) - len(left)
        self.left += len(left)
        self.begun += sum(written > 0 for _, written in left)
        return left

    def has(self, rows: int) -> bool:
        """Return whether the answers of so many turns have been passed to the core."""
        return self.whole + self.left >= rows


async def connect_narrow(broker: Broker) -> tuple[Wire, ServerConnection]:
    """A connection whose sockets take few answers, and the broker's end of it, which has made a send."""
    known = set(broker.server.connections)
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    taken.setblocking(False)
    await asyncio.get_running_loop().sock_connect(taken, ("127.0.0.1", broker.server.port))
    wire = Wire(*await asyncio.open_connection(sock=taken, limit=1_024))
    await wire.send("T")
    (connection,) = broker.server.connections - known
    assert connection._transport is not None
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    return wire, connection


async def test_answers_that_a_client_does_not_read_arrive_later_whole_and_in_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(monkeypatch)
    wire, connection = await connect_narrow(broker)
    cast(asyncio.Transport, wire.writer.transport).pause_reading()
    posted = [wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"hello") for _ in range(SENDS)]
    for at in range(0, SENDS, AT_ONCE):
        wire.writer.write(b"".join(command.encode() for command in posted[at : at + AT_ONCE]))
        await wire.writer.drain()
        if written.begun:
            break
        await until(partial(written.has, at // AT_ONCE + 1))
    assert written.whole, "the core wrote as long as there was room"
    assert written.begun, "then a socket took a part of an answer"
    assert connection.direct_fd < 0, "the rest is queued, so the next answers are queued behind it"
    rest = b"".join(command.encode() for command in posted[at + AT_ONCE :])
    wire.writer.write(rest)
    cast(asyncio.Transport, wire.writer.transport).resume_reading()
    for command in posted:
        answer = await wire.answer(command.opaque)
        assert answer.code == 0
    whole = written.whole
    await until(lambda: connection.unsent_bytes == 0)
    await wire.send("T")
    await wire.send("T")
    assert written.whole > whole, "once all is sent, the core writes again"
    await wire.close()


async def test_an_answer_never_goes_to_a_descriptor_that_is_used_again(broker: Broker, wire: Wire) -> None:
    await wire.send("T")
    await wire.send("T")
    (connection,) = broker.server.connections
    descriptor = connection._socket_fd
    assert connection.direct_fd == descriptor >= 0
    await wire.close()
    await until(lambda: connection.closed)
    assert CORE.write_answers([(connection, b"late", b"", 1, 0)]) == [(0, 0)]


async def test_a_connection_that_is_being_closed_gets_nothing_more(broker: Broker, wire: Wire) -> None:
    await wire.send("T")
    await wire.send("T")
    (connection,) = broker.server.connections
    connection.close()
    assert CORE.write_answers([(connection, b"late", b"", 1, 0)]) == [(0, 0)]


async def test_what_is_queued_goes_first(broker: Broker, wire: Wire) -> None:
    await wire.send("T")
    await wire.send("T")
    (connection,) = broker.server.connections
    assert connection.direct_fd >= 0
    connection.write(b"first")
    assert CORE.write_answers([(connection, b"second", b"", 1, 0)]) == [(0, 0)]


class _Narrow:
    """A connection whose socket takes a part of a large answer, and all once it is read."""

    def __init__(self, writes: socket.socket, reads: socket.socket) -> None:
        self._reads = reads
        self._descriptor = writes.fileno()
        self.read = b""

    @property
    def direct_fd(self) -> int:
        """The core asks for it before each answer."""
        with contextlib.suppress(BlockingIOError):
            while data := self._reads.recv(65_536):
                self.read += data
        return self._descriptor

    @direct_fd.setter
    def direct_fd(self, descriptor: int) -> None:
        self._descriptor = descriptor


def test_an_answer_does_not_follow_a_part_of_another() -> None:
    writes, reads = socket.socketpair()
    with writes, reads:
        reads.setblocking(False)
        connection = _Narrow(writes, reads)
        large = b"a" * 4_000_000
        (row, written), second = CORE.write_answers([(connection, large, b"", 1, 0), (connection, b"b", b"", 1, 0)])
        assert row == 0
        assert 0 < written < len(large)
        assert second == (1, 0)
        assert connection.direct_fd < 0
        assert connection.read == large[:written]
