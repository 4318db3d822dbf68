"""A link that misbehaves on purpose: a TCP relay between clients and a server.

It knows nothing of frames. What passes is passed on as it comes; a fault holds for all connections of the
link, those to come included, until it is taken back. Fault model: an end that stops answering
(:meth:`Link.pause`), a network that loses everything in one direction or both (:meth:`Link.drop`), that is
slow (:meth:`Link.delay`), that breaks (:meth:`Link.cut`), that breaks in the middle of a frame
(:meth:`Link.cut_after`). TCP never loses or turns round single bytes, and so neither does the link.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import cast

from cometmq.clock import Clock

Address = tuple[str, int]


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


BOTH = (Direction.TO_SERVER, Direction.TO_CLIENT)


class Link:
    """A relay from ``listen`` to ``target``, on the running event loop; delays go by ``clock``."""

    def __init__(self, listen: Address, target: Address, *, clock: Clock) -> None:
        self._listen = listen
        self._target = target
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused = False
        self._dropped: frozenset[Direction] = frozenset()
        self._delay_s = 0.0
        self._cut_after: dict[Direction, int] = {}

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._server is not None, "the link is not started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many connections go through it now."""
        return len(self._pairs)

    async def start(self) -> None:
        """Listen.

        :raises OSError: the port is taken.
        """
        self._server = await asyncio.get_running_loop().create_server(lambda: _Pair(self).client, *self._listen)

    async def stop(self) -> None:
        """Listen no more and end every connection."""
        if self._server is None:
            return
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    # --- faults -------------------------------------------------------------------------------
    def pause(self) -> None:
        """Let nothing pass in either direction; connections stay, new ones are taken, nothing is lost."""
        self._paused = True
        self._apply_pause()

    def resume(self) -> None:
        """End a pause: what came meanwhile passes now."""
        self._paused = False
        self._apply_pause()

    def drop(self, *directions: Direction) -> None:
        """Lose everything that goes in these directions, by default in both; connections stay."""
        self._dropped = frozenset(directions or BOTH)

    def delay(self, seconds: float) -> None:
        """Pass everything on so many seconds of the clock later, in both directions."""
        self._delay_s = seconds

    def cut_after(self, size_bytes: int, direction: Direction) -> None:
        """Break the connection that carries the byte after the next ``size_bytes`` in a direction; once."""
        self._cut_after[direction] = size_bytes

    def cut(self) -> None:
        """End every connection at once; new ones are taken."""
        for pair in list(self._pairs):
            pair.abort()

    def restore(self) -> None:
        """Take back every fault; what was paused passes now, what was dropped is lost."""
        self._dropped, self._delay_s = frozenset(), 0.0
        self._cut_after.clear()
        self.resume()

    def _apply_pause(self) -> None:
        for pair in self._pairs:
            pair.pause_reading(paused=self._paused)

    # --- what passes --------------------------------------------------------------------------
    def opened(self, pair: _Pair) -> None:
        """A client has connected: connect to the server for it."""
        self._pairs.add(pair)
        task = asyncio.get_running_loop().create_task(self._connect(pair))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, pair: _Pair) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: pair.server, *self._target)
        except OSError:
            pair.abort()
            return
        pair.pause_reading(paused=self._paused)

    def ended(self, pair: _Pair) -> None:
        """Both ends of a pair are closed, or will be."""
        self._pairs.discard(pair)

    def take(self, pair: _Pair, direction: Direction, data: bytes | None) -> None:
        """Bytes have come from one end; None is its end of file."""
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
    """One connection: the client's end and the server's."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.client = _End(self, Direction.TO_SERVER)
        self.server = _End(self, Direction.TO_CLIENT)
        self.due: dict[Direction, float] = {}
        """When the last bytes that are under way in a direction arrive: none overtakes another."""

    def pass_on(self, direction: Direction, data: bytes | None) -> None:
        """Write to the end that a direction leads to; None ends the connection after what was written before."""
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
        """End both ends at once."""
        self.client.abort()
        self.server.abort()
        self.link.ended(self)

    def pause_reading(self, *, paused: bool) -> None:
        """Read from neither end, or from both again; the client is not read before the server is there."""
        self.client.pause_reading(paused=paused or self.server.transport is None)
        self.server.pause_reading(paused=paused)


class _End(asyncio.Protocol):
    """One socket of a pair; ``direction`` is where its bytes go."""

    def __init__(self, pair: _Pair, direction: Direction) -> None:
        self._pair = pair
        self._direction = direction
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self.transport = cast(asyncio.Transport, transport)
        if self is self._pair.client:
            self.transport.pause_reading()
            self._pair.link.opened(self._pair)

    def data_received(self, data: bytes) -> None:
        """Hand on."""
        self._pair.link.take(self._pair, self._direction, data)

    def eof_received(self) -> bool:
        """Hand on that this end has closed."""
        self._pair.link.take(self._pair, self._direction, None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """This end was reset: so is the other, unless the link loses what goes there."""
        if exc is not None:
            self._pair.link.take(self._pair, self._direction, None)

    def pause_writing(self) -> None:
        """This end reads slowly: so is the other read."""
        self._other.pause_reading(paused=True)

    def resume_writing(self) -> None:
        """This end has caught up."""
        self._other.pause_reading(paused=False)

    @property
    def _other(self) -> _End:
        return self._pair.server if self is self._pair.client else self._pair.client

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def pause_reading(self, *, paused: bool) -> None:
        """Stop reading, or go on."""
        if self.transport is None or self.transport.is_closing():
            return
        if paused and self.transport.is_reading():
            self.transport.pause_reading()
        elif not paused and not self.transport.is_reading():
            self.transport.resume_reading()
