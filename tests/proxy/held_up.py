"""Measures how long a client of the gRPC port is held up while others send it something, in processor time.

All connections are without sockets and in one thread: each round of the event loop gives every one of them what it may
read. So a busy machine changes nothing, and what attackers take to make their bytes is not counted. A slow machine
changes nothing either: work that never changes is measured again and again between the rounds, and their times are
divided by what it takes longer than on the machine of the limits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.helpers.pace import slowness_of_thread
from tests.proxy.client import message
from tests.proxy.wire import HELLO, data, headers, prefixed

from cometmq.proxy.http2 import frames
from cometmq.proxy.protocol import v2
from cometmq.proxy.rpc.server import GrpcConnection, GrpcServer

Attack = Callable[[str], Iterator[bytes]]
"""The bytes of one attacker, whose client id is given."""

_READ_BYTES = 65_536
_PART_S = 0.02
"""Processor time of rounds after which the machine is measured again."""


class WithoutSocket(asyncio.Transport):
    """A transport of the server."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.is_paused = self.is_closed = False
        self.written = bytearray()
        self._keeps = keeps

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._keeps:
            self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Peer:
    """A connection of the server."""

    def __init__(self, server: GrpcServer, *, keeps: bool = False) -> None:
        self.transport = WithoutSocket(keeps=keeps)
        self.connection = GrpcConnection(server)
        self.connection.connection_made(self.transport)

    def lose(self) -> None:
        self.transport.is_closed = True
        self.connection.connection_lost(None)

    def has_answer(self, stream: int) -> bool:
        """An answer has ended."""
        written, at = self.transport.written, 0
        while len(written) - at >= frames.HEAD_BYTES:
            high, low, kind, flags, number = frames.HEAD.unpack_from(written, at)
            if (kind, number) == (frames.HEADERS, stream) and flags & frames.END_STREAM:
                return True
            at += frames.HEAD_BYTES + (high << 8 | low)
        return False

    async def ask(self, stream: int, method: str, request: Any) -> None:
        """Make a call, and wait until it is answered."""
        first = HELLO if stream == 1 else b""
        payload = prefixed(request.SerializeToString())
        self.connection.data_received(first + headers(stream, method) + data(stream, payload))
        while not self.has_answer(stream):
            await asyncio.sleep(0)
        self.transport.written.clear()


@dataclass(frozen=True)
class HeldUp:
    """Seconds of the processor on the machine of the limits."""

    rounds: list[float]
    """Each round of the event loop."""
    waits: list[float]
    """Between a send of the other client and its answer, one after the other; the last one may be unanswered."""


class _Attacker:
    def __init__(self, server: GrpcServer, attack: Attack, name: str) -> None:
        self._server, self._attack, self._name = server, attack, name
        self._begin()

    def _begin(self) -> None:
        self._peer, self._bytes = Peer(self._server), self._attack(self._name)

    def read(self) -> bytes:
        """The bytes of the next read; a connection that was closed is opened again."""
        if self._peer.transport.is_closed:
            self._peer.lose()
            self._begin()
        read = bytearray()
        while not self._peer.transport.is_paused and len(read) < _READ_BYTES and (more := next(self._bytes, b"")):
            read += more
        return bytes(read)

    def give(self, read: bytes) -> None:
        if read:
            self._peer.connection.data_received(read)

    def lose(self) -> None:
        self._peer.lose()


class _Rounds:
    """The times of rounds, each beside what this machine took for some work before and after it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """What the rounds took here."""
        self._times: list[float] = []
        self._part: list[float] = []
        self._slowness = slowness_of_thread()

    def add(self, took_s: float) -> None:
        self.seconds += took_s
        self._part.append(took_s)
        if sum(self._part) >= _PART_S:
            self.end_part()

    def end_part(self) -> None:
        before, self._slowness = self._slowness, slowness_of_thread()
        self._times += [took_s / max(before, self._slowness) for took_s in self._part]
        self._part.clear()

    def times(self) -> list[float]:
        """Return what the rounds take on the machine of the limits."""
        self.end_part()
        return self._times


async def held_up(server: GrpcServer, attack: Attack, *, attackers: int, seconds: float) -> HeldUp:
    """Attack a server for some processor time, while another client sends one message after the other."""
    crowd = [_Attacker(server, attack, f"attacker-{number}") for number in range(attackers)]
    victim, stream, is_asked = Peer(server, keeps=True), 1, False
    request = prefixed(v2.SendMessageRequest(messages=[message("T", b"x")]).SerializeToString())
    victim.connection.data_received(HELLO)
    rounds, count, answered = _Rounds(), 0, [0]
    while rounds.seconds < seconds:
        reads = [attacker.read() for attacker in crowd]
        began = time.thread_time()
        for attacker, read in zip(crowd, reads, strict=True):
            attacker.give(read)
        if not is_asked:
            victim.connection.data_received(headers(stream, "SendMessage", client="victim") + data(stream, request))
            is_asked = True
        await asyncio.sleep(0)
        rounds.add(time.thread_time() - began)
        count += 1
        if victim.has_answer(stream):
            answered.append(count)
            victim.transport.written.clear()
            stream, is_asked = stream + 2, False
    for attacker in crowd:
        attacker.lose()
    victim.lose()
    times = rounds.times()
    return HeldUp(times, [sum(times[first:end]) for first, end in pairwise([*answered, count])])
