"""A slave's connection to its master's HA port: bytes, reports, heartbeats and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import Final, cast

from cometmq.broker.replication.frames import ReplicationError, encode_report
from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.message.hosts import format_address, parse_address, unmapped
from cometmq.periodic import Alarm
from cometmq.remoting.connections.connecting import connect
from cometmq.remoting.tls.contexts import connection_error

_PAUSED_S: Final = 0.1
"""An alarm that rings so late says that this process was paused, and that bytes may wait to be read."""

Receive = Callable[[bytes], None]
"""Callback that handles received bytes; it raises a CometMQError to end the connection."""


class MasterConnection(asyncio.Protocol):
    """A connection to the master's HA port.

    :param heartbeat_s: seconds without a report after which the last one is repeated.
    :param silence_s: seconds without bytes from the master after which the connection is considered lost.
    """

    def __init__(self, receive: Receive, *, clock: Clock, heartbeat_s: float, silence_s: float) -> None:
        self._receive = receive
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._beat = Alarm(lambda: self.report(self._reported), clock=clock)
        self._silence = Alarm(self._end_if_silent, clock=clock)
        self._silent_at = 0.0
        """The time at which the alarm for silence rings."""
        self._reported = 0
        self.is_refused = False
        """True if no process listens at the master's port."""
        self.is_closed_by_master = False
        """True if the master, or the kernel of its dead process, has closed the connection."""
        self.ended: Final[asyncio.Future[Exception]] = asyncio.get_running_loop().create_future()
        """The reason why the connection ended."""

    async def open(self, address: str, limit_s: float, tls: SSLContext | None) -> None:
        """Connect to ``host:port``.

        :raises ReplicationError: TLS failed, or could not be used.
        :raises TimeoutError: no connection was made within ``limit_s`` seconds.
        :raises OSError: the connection was refused, or the name has no address.
        :raises ValueError: the address is malformed.
        """
        host, port = parse_address(address)
        try:
            await connect(self, host, port, self._clock, limit_s, tls=tls)
        except OSError as error:
            self.is_refused = isinstance(error, ConnectionRefusedError)
            self.is_closed_by_master = isinstance(error, ConnectionError) and not self.is_refused
            if tls is None or isinstance(error, TimeoutError):
                raise
            message, next_step = connection_error(address, error, tls=True)
            raise ReplicationError(message, next_step=next_step) from error

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the owner sends the first bytes."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = cast(asyncio.Transport, transport)

    @property
    def local_address(self) -> str:
        """Return ``host:port`` of this side, or an empty text before the connection is open."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return format_address(unmapped(str(name[0])), int(name[1])) if name else ""

    def connection_lost(self, error: Exception | None) -> None:
        """Record the reason why the connection ended."""
        if not self.ended.done():
            self.is_closed_by_master = error is None or isinstance(error, ConnectionError)
        self.end(error or ReplicationError("the master closed the connection; see the master's log for the reason"))

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the owner."""
        if self.ended.done():
            return
        self.listen()
        try:
            self._receive(data)
        except CometMQError as error:
            self.end(error)

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def report(self, end: int) -> None:
        """Report the end of the slave's log, or the last reported end if that is larger."""
        if self._transport is None or self._transport.is_closing():
            return
        self._reported = max(end, self._reported)
        self._transport.write(encode_report(self._reported))
        self._beat.after(self._heartbeat_s)

    def listen(self, silence_s: float | None = None) -> None:
        """Expect bytes from the master from now on.

        :param silence_s: another time limit than before.
        """
        self._silence_s = silence_s or self._silence_s
        self._silent_at = self._clock.monotonic() + self._silence_s
        self._silence.after(self._silence_s)

    def expect_nothing(self) -> None:
        """Expect no bytes from the master until :meth:`listen`."""
        self._silence.cancel()

    def _end_if_silent(self) -> None:
        if self._clock.monotonic() - self._silent_at > _PAUSED_S:
            self.listen()
        else:
            self.end(ReplicationError(f"the master sent nothing for {self._silence_s:g} s"))

    def end(self, why: Exception) -> None:
        """Close the connection; if this is called several times, only the first reason is kept."""
        if not self.ended.done():
            self.ended.set_result(why)
        self.abort()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._beat.close()
        self._silence.close()
        if self._transport is not None:
            self._transport.abort()
