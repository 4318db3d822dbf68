"""TCP relays between members, clients, nameservers and the engine, with faults of the network in each direction.

Each party has a name. A member is reached through relays only, at the address that it advertises; the relay finds out
which process connects, so that faults concern pairs of parties although all use the same address.

Fault model: like TCP, a relay never loses or reorders bytes of a connection. A *cut* of one direction holds its bytes,
the end of the connection included, so that connections stay half open. When the cut is healed, the bytes arrive late,
or the connection is reset. A *delay* is added to each block of bytes. A party that *refuses* has no listening port. If
a server closes a connection while bytes for it are under way, the client finds a reset, as without a relay: after a
plain end, some clients would wait for the answer.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from cometmq.loop import close_server

T = TypeVar("T")
Direction = tuple[str, str]
"""The names of the sender and the receiver."""

_BLOCK: Final = 1 << 16
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_TCP_CLOSE: Final = 7
"""The state of a socket whose peer has reset the connection."""
CLIENT: Final = "client"
"""The name of every process that is not a party."""


@dataclass(frozen=True, slots=True)
class Route:
    """A way to a party.

    :param source: the only party that uses it; "" to find out for each connection.
    """

    listen: tuple[str, int]
    target: tuple[str, int]
    to: str
    source: str = ""


def owner_of(port: int, listening: int, processes: dict[str, int]) -> str:
    """Return the name of the process that has connected from a port of this machine to a listening port.

    :param processes: process ids by name.
    """
    inode = _inode(port, listening)
    for name, pid in processes.items():
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        return name
    return CLIENT


def _inode(port: int, listening: int) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and int(fields[2].rpartition(":")[2], 16) == listening:
            return fields[9]
    return ""


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as TCP does when a process has gone: with a reset instead of an end."""
    peer = writer.get_extra_info("socket")
    if peer is not None and not writer.transport.is_closing():
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


def _is_unread(reader: asyncio.StreamReader, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> bool:
    """Whether a server that has ended a connection has not read all bytes of a client that has not."""
    if reader.at_eof():
        return False
    waiting = bytearray(4)
    fcntl.ioctl(client.get_extra_info("socket").fileno(), termios.FIONREAD, waiting)
    state = server.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return any(waiting) or state == _TCP_CLOSE


class Relays:
    """All relays of a test, on an event loop in a thread; every method may be called from any thread.

    :param processes: returns the process ids of the parties by name.
    """

    def __init__(self, processes: Callable[[], dict[str, int]]) -> None:
        self._processes = processes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._routes: dict[Route, asyncio.Server | None] = {}
        self._cuts: set[Direction] = set()
        self._delays: dict[Direction, float] = {}
        self._changed = asyncio.Event()
        self._running: dict[asyncio.Task[None], Direction] = {}

    @contextmanager
    def running(self) -> Iterator[Relays]:
        """Relay inside the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._call(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def open(self, routes: Iterable[Route]) -> None:
        """Listen on routes.

        :raises OSError: a port is taken.
        """
        for route in routes:
            self._call(self._listen(route))

    # --- faults ---------------------------------------------------------------------------------
    def cut(self, *directions: Direction) -> None:
        """Hold the bytes of these directions."""
        self._check(directions)
        self._call(self._change(lambda: self._cuts.update(directions)))

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Delay each block of bytes of these directions."""
        self._check(directions)
        self._call(self._change(lambda: self._delays.update(dict.fromkeys(directions, seconds))))

    def _check(self, directions: Iterable[Direction]) -> None:
        """Refuse names that no party has: such a fault would test nothing."""
        known = {CLIENT, *self._processes(), *(name for route in self._routes for name in (route.to, route.source))}
        unknown = sorted({name for direction in directions for name in direction} - known)
        if unknown:
            raise ValueError(f"no party has the name {', '.join(unknown)}")

    def heal(self, *, resets: bool) -> None:
        """End all cuts and delays.

        :param resets: True to reset the connections that were cut, False to deliver what was held.
        """

        self._call(self._heal(resets))

    def reset(self, *directions: Direction) -> None:
        """Reset the connections between these parties."""
        self._check(directions)

        self._call(self._reset(set(directions)))

    def refuse(self, name: str) -> None:
        """Close the listening ports of a party whose process has ended."""
        self._call(self._refuse(name))

    def accept(self, name: str) -> None:
        """Open the listening ports of a party again."""
        for route in [route for route, server in self._routes.items() if route.to == name and server is None]:
            self._call(self._listen(route))

    # --- on the loop ----------------------------------------------------------------------------
    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _change(self, change: Callable[[], object]) -> None:
        change()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _heal(self, resets: bool) -> None:
        if resets:
            await self._reset(self._cuts)
        await self._change(self._cuts.clear)
        self._delays.clear()

    async def _reset(self, directions: set[Direction]) -> None:
        tasks = [task for task, (a, b) in self._running.items() if {(a, b), (b, a)} & directions]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, route: Route) -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = writer.get_extra_info("peername")
            if peer is None:  # it has already reset the connection
                writer.transport.abort()
                return
            source = route.source or owner_of(peer[1], route.listen[1], self._processes())
            task = asyncio.ensure_future(self._relayed(source, route, reader, writer))
            self._running[task] = source, route.to
            task.add_done_callback(partial(self._has_ended, writer))

        self._routes[route] = await asyncio.start_server(accepted, *route.listen)

    async def _refuse(self, name: str) -> None:
        for route, server in list(self._routes.items()):
            if route.to == name and server is not None:
                self._routes[route] = None
                await close_server(server)

    async def _stop(self) -> None:
        for server in list(self._routes.values()):
            if server is not None:
                await close_server(server)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _has_ended(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if task.cancelled():  # perhaps before it began
            _reset(writer)

    async def _relayed(
        self, source: str, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await self._passable(source, route.to)
            await self._relay(source, route, reader, writer)
        except OSError:
            _reset(writer)

    async def _relay(
        self, source: str, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        target_reader, target_writer = await asyncio.open_connection(*route.target)
        is_unread = partial(_is_unread, reader, writer, target_writer)
        pumps = [
            asyncio.ensure_future(self._pump((source, route.to), reader, target_writer)),
            asyncio.ensure_future(self._pump((route.to, source), target_reader, writer, is_unread)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for pump in pumps:
                pump.cancel()
            has_ended = False
            try:
                has_ended = await asyncio.gather(*pumps, return_exceptions=True) == [None, None]
            finally:  # this task may be cancelled while it waits for the pumps
                for one in (writer, target_writer):
                    one.close() if has_ended else _reset(one)

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_unread: Callable[[], bool] = lambda: False,
    ) -> None:
        """Pass on bytes and the sender's end.

        :param is_unread: for the sender's end, whether it has not read all that was sent to it.
        :raises OSError: the sender has reset the connection, or the receiver has, and the other one may know it.
        """
        sender, receiver = direction
        while True:
            try:
                data = await reader.read(_BLOCK)
            except OSError:
                await self._passable(sender, receiver)
                raise
            await self._passable(sender, receiver)
            if not data:
                await asyncio.sleep(0)  # the other pump passes on what has arrived
                if is_unread():
                    raise ConnectionResetError
            try:
                writer.write(data)
                await writer.drain()
                if not data:
                    writer.write_eof()
                    return
            except OSError:
                await self._passable(receiver, sender)
                raise

    async def _passable(self, sender: str, receiver: str) -> None:
        """Wait while the direction is cut, and for its delay."""
        delay = self._delays.get((sender, receiver))
        if delay is not None:
            await asyncio.sleep(delay)
        while (sender, receiver) in self._cuts:
            await self._changed.wait()
