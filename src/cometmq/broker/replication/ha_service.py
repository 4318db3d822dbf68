"""The master's side of replication: slaves connect, and get every byte of the log as it is stored (``HAService``).

At the end of a turn that stored something, every slave is sent it, on the same loop: without a slave that costs
nothing. A slave that is behind is sent the rest in pieces, turn by turn. While nothing is stored, it gets a
heartbeat every ``haSendHeartbeatInterval``; one that reports nothing for ``haHousekeepingInterval`` is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.group_transfer import GroupTransferService
from cometmq.broker.replication.ha_connection import HAConnection
from cometmq.clock import Clock, TimerHandle
from cometmq.errors import reason_of
from cometmq.limits import MAX_SLAVES, SLAVE_STILL_SECONDS, SLAVES_CATCH_UP_SECONDS
from cometmq.remoting.closing import close_all
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 1.0
_PAUSE_S: Final = 0.01


class HAService:
    """Listens for slaves, and keeps them fed and looked after."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, transfers: GroupTransferService, *, clock: Clock
    ) -> None:
        self.store: Final = store
        self.clock: Final = clock
        self.batch_bytes: Final = config.ha_transfer_batch_size
        self.slaves: dict[HAConnection, None] = {}
        """The connections of slaves, in the order in which they came."""
        self._heartbeat_s = config.ha_send_heartbeat_interval / 1000
        self._housekeeping_s = config.ha_housekeeping_interval / 1000
        self._transfers = transfers
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one.

        :raises ReplicationError: the port is taken or not allowed.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self._server = await self._loop.create_server(lambda: HAConnection(self), host, port)
        except (OSError, OverflowError) as error:  # the port after 65535
            why = reason_of(error) if isinstance(error, OSError) else "there is no such port"
            raise ReplicationError(
                f"cannot listen on port {port} for slaves: {why}",
                next_step="stop the program that listens there, or choose another port with haListenPort",
            ) from error

    async def stop(self) -> None:
        """Take no more slaves, send those that are there what is stored and wait until they have it, close."""
        if self._server is None:
            return
        self._server.close()
        await self._catch_up()
        await close_all(self.slaves)
        await self._server.wait_closed()
        self._server = None

    async def _catch_up(self) -> None:
        """Wait while slaves come nearer to the end of the log, but not for ever."""
        self.end_turn()
        before: dict[HAConnection, tuple[int, int, int]] = {}
        still = 0
        for _ in range(int(SLAVES_CATCH_UP_SECONDS / _PAUSE_S)):
            behind = {slave: slave.progress for slave in self.slaves if slave.behind}
            still = still + 1 if behind == before else 0
            if not behind or still * _PAUSE_S >= SLAVE_STILL_SECONDS:
                break
            before = behind
            await asyncio.sleep(_PAUSE_S)
        for slave in self.slaves:
            if slave.behind:
                _log.warning("this master stops, and slave %s lacks %d bytes of its log", slave.address, slave.behind)

    def cut_off(self) -> None:
        """End every connection at once and listen no more."""
        if self._server is not None:
            self._server.close()
        for slave in list(self.slaves):
            slave.abort()

    def end_turn(self) -> None:
        """Something may have been stored: let every slave have it."""
        for slave in self.slaves:
            slave.transfer()

    # --- called by connections ------------------------------------------------------------------
    def opened(self, slave: HAConnection) -> None:
        """Count a new connection in. When there are too many the oldest without a report gives way, or else it."""
        if len(self.slaves) >= MAX_SLAVES:
            refused = next((other for other in self.slaves if not other.has_begun), slave)
            _log.warning("refusing slave %s: %d are connected", refused.address, len(self.slaves))
            refused.abort()
            if refused is slave:
                return
            del self.slaves[refused]
        self.slaves[slave] = None
        if self._sweeper is None:
            self._sweeper = self.clock.call_later(_SWEEP_SECONDS, self._sweep)

    def reported(self, slave: HAConnection, *, is_first: bool) -> None:
        """A slave has reported how far it is."""
        if is_first:
            self._transfers.joined()
        self._transfers.reported(slave.ack_offset)

    def lost(self, slave: HAConnection) -> None:
        """Count a connection out."""
        if slave in self.slaves:
            del self.slaves[slave]
            if slave.has_begun:
                _log.info("slave %s is gone, which had the log up to %d", slave.address, slave.ack_offset)
                self._transfers.left(max((other.ack_offset for other in self.slaves), default=0))
            if not self.slaves and self._sweeper is not None:
                self._sweeper.cancel()
                self._sweeper = None

    def call_soon(self, work: Callable[[], None]) -> None:
        """Do something in the next turn of the loop."""
        assert self._loop is not None
        self._loop.call_soon(work)

    # --- housekeeping ---------------------------------------------------------------------------
    def _sweep(self) -> None:
        now = self.clock.monotonic()
        for slave in list(self.slaves):
            slave.bytes_per_s, slave.sent_bytes = slave.sent_bytes, 0
            if now - slave.read_at > self._housekeeping_s:
                _log.warning("closing the connection of slave %s: silent for %g s", slave.address, now - slave.read_at)
                slave.abort()
            elif now - slave.wrote_at >= self._heartbeat_s:
                slave.heartbeat()
        self._sweeper = self.clock.call_later(_SWEEP_SECONDS, self._sweep)
