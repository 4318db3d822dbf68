"""A TCP relay between clients and a server, with faults that a test can inject.

The link does not know frames; it passes bytes on as they arrive. A fault affects all connections of the link, including
future ones, until :meth:`Link.restore`. Fault model: an end stops answering (:meth:`Link.pause`); the network loses all
bytes in one direction or both (:meth:`Link.drop`), is slow (:meth:`Link.delay`), breaks (:meth:`Link.cut`), or breaks
in the middle of a frame (:meth:`Link.cut_after`). Like TCP, the link never loses or reorders single bytes.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import cast

from cometmq.clock import Clock
from cometmq.loop import TaskSet, close_server

Address = tuple[str, int]


class Direction(Enum):
    """The direction in which bytes flow."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


BOTH = (Direction.TO_SERVER, Direction.TO_CLIENT)


class Link:
    """A relay from ``listen`` to ``target`` on the running event loop; ``clock`` is used to time delays."""

    def __init__(self, listen: Address, target: Address, *, clock: Clock) -> None:
        self._listen = listen
        self._target = target
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._tasks = TaskSet()
        self._paused = False
        self._dropped: frozenset[Direction] = frozenset()
        self._delay_s = 0.0
        self._cut_after: dict[Direction, int] = {}

    @property
    def port(self) -> int:
        """The port on which the link listens."""
        assert self._server is not None, "the link has not been started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._pairs)

    async def start(self) -> None:
        """Start listening.

        :raises OSError: the port is taken.
        """
        self._server = await asyncio.get_running_loop().create_server(lambda: _Pair(self).client, *self._listen)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._server is None:
            return
        await close_server(self._server)
        self.cut()
        await self._tasks.stop()
        await self._server.wait_closed()
        self._server = None

    # --- faults -------------------------------------------------------------------------------
    def pause(self) -> None:
        """Hold back all bytes in both directions. Connections remain open, new ones are accepted, and nothing is
        lost.
        """
        self._paused = True
        self._apply_pause()

    def resume(self) -> None:
        """End a pause and pass on the bytes that were held back."""
        self._paused = False
        self._apply_pause()

    def drop(self, *directions: Direction) -> None:
        """Drop all bytes in the given directions, by default in both; connections remain open."""
        self._dropped = frozenset(directions or BOTH)

    def delay(self, seconds: float) -> None:
        """Delay all bytes in both directions by ``seconds`` on the clock."""
        self._delay_s = seconds

    def cut_after(self, size_bytes: int, direction: Direction) -> None:
        """Let ``size_bytes`` more bytes pass in one direction, then break the connection that carries the next byte."""
        self._cut_after[direction] = size_bytes

    def cut(self) -> None:
        """Break every connection immediately; new connections are accepted."""
        for pair in list(self._pairs):
            pair.abort()

    def restore(self) -> None:
        """End all faults. Bytes that were held back are passed on; dropped bytes remain lost."""
        self._dropped, self._delay_s = frozenset(), 0.0
        self._cut_after.clear()
        self.resume()

    def _apply_pause(self) -> None:
        for pair in self._pairs:
            pair.pause_reading(paused=self._paused)

    # --- bytes --------------------------------------------------------------------------------
    def opened(self, pair: _Pair) -> None:
        """Connect to the server on behalf of a new client."""
        self._pairs.add(pair)
        self._tasks.start(self._connect(pair))

    async def _connect(self, pair: _Pair) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: pair.server, *self._target)
        except OSError:
            pair.abort()
            return
        pair.pause_reading(paused=self._paused)

    def ended(self, pair: _Pair) -> None:
        """Forget a connection that is closed or about to close at both ends."""
        self._pairs.discard(pair)

    def take(self, pair: _Pair, direction: Direction, data: bytes | None) -> None:
        """Handle the bytes received at one end; None means end of file."""
        if direction in self._dropped:
            return
        if data is not None and direction in self._cut_after:
            left = self._cut_after[direction]
            if len(data) > left:
                del self._cut_after[direction]
                pair.pass_on(direction, data[:left])
                pair.pass_on(direction, None)
                return
            self._cut_after[direction] = left - len(data)
        now = self._clock.monotonic()
        due = pair.due[direction] = max(pair.due.get(direction, 0.0), now + self._delay_s)
        if due > now:
            self._clock.call_later(due - now, pair.pass_on, direction, data)
        else:
            pair.pass_on(direction, data)


class _Pair:
    def __init__(self, link: Link) -> None:
        self.link = link
        self.client = _End(self, Direction.TO_SERVER)
        self.server = _End(self, Direction.TO_CLIENT)
        self.due: dict[Direction, float] = {}
        """Arrival time of the last delayed bytes by direction, so that later bytes do not overtake them."""

    def pass_on(self, direction: Direction, data: bytes | None) -> None:
        """Write to the receiving end of a direction; None closes the connection after all earlier bytes are written."""
        end = self.server if direction is Direction.TO_SERVER else self.client
        if end.transport is None or end.transport.is_closing():
            return
        if data is not None:
            end.transport.write(data)
        else:
            end.transport.close()
            (self.client if end is self.server else self.server).abort()
            self.link.ended(self)

    def abort(self) -> None:
        self.client.abort()
        self.server.abort()
        self.link.ended(self)

    def pause_reading(self, *, paused: bool) -> None:
        """Stop or resume reading from both ends; reading from the client starts once the server is connected."""
        self.client.pause_reading(paused=paused or self.server.transport is None)
        self.server.pause_reading(paused=paused)


class _End(asyncio.Protocol):
    def __init__(self, pair: _Pair, direction: Direction) -> None:
        self._pair = pair
        self._direction = direction
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self is self._pair.client:
            # the loops of Python 3.11.2 and older begin to read after this call in any case
            asyncio.get_running_loop().call_soon(self.transport.pause_reading)
            self._pair.link.opened(self._pair)

    def data_received(self, data: bytes) -> None:
        self._pair.link.take(self._pair, self._direction, data)

    def eof_received(self) -> bool:
        self._pair.link.take(self._pair, self._direction, None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._pair.link.take(self._pair, self._direction, None)

    def pause_writing(self) -> None:
        self._other.pause_reading(paused=True)

    def resume_writing(self) -> None:
        self._other.pause_reading(paused=False)

    @property
    def _other(self) -> _End:
        return self._pair.server if self is self._pair.client else self._pair.client

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def pause_reading(self, *, paused: bool) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if paused and self.transport.is_reading():
            self.transport.pause_reading()
        elif not paused and not self.transport.is_reading():
            self.transport.resume_reading()
