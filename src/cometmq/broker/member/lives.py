"""The lives of a member's broker, one after the other: as a slave or as a master, on the same ports and store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from cometmq.broker.config import SLAVE, SYNC_MASTER, BrokerConfig
from cometmq.broker.controller import Broker
from cometmq.broker.failover.epochs import EpochLog
from cometmq.broker.failover.events import LogState
from cometmq.broker.hooks.message_hooks import BrokerHooks
from cometmq.broker.membership import Membership
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.hosts import format_address
from cometmq.message.names import MASTER_ID
from cometmq.remoting.codes import ResponseCode
from cometmq.store.cut import cut_log
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError

_log = logging.getLogger(__name__)

FIRST_SLAVE_ID: Final = 1
"""The broker id of a slave until the set's document gives it one; it registers only then."""

Extend = Callable[[Broker], Awaitable[None]]
"""Adds a part to a master that serves clients, such as the gRPC endpoint; ``Broker.on_stop`` ends it."""


@dataclass(frozen=True, slots=True)
class LifeOptions:
    """The options of each life of a member's broker; see :class:`~cometmq.broker.controller.Broker`."""

    clock: Clock = SYSTEM_CLOCK
    hooks: BrokerHooks | None = None
    disk: Disk | None = None
    begin_anew: bool = False
    extend: Extend | None = None


class Lives:
    """A member's broker, of which at most one life is open.

    ``member`` must be set before the first life is opened.
    """

    member: Membership

    def __init__(self, config: BrokerConfig, options: LifeOptions) -> None:
        self._config = config
        self._options = options
        self.broker: Broker
        """The present life, or the last one."""
        self.epochs: EpochLog
        """The epochs in the present life's log."""
        self.is_open = False
        """True while the store of the present life is open, and its parts are built."""
        self.master_epoch = 0
        """The epoch for which the present life was opened as a master; 0 if it is a slave."""
        self.is_confirmed = False
        """True once the set has confirmed something in the present life."""
        self.closed_end: int | None = None
        """The end of the log when the last life was closed; ``None`` if a life is open, or could not be opened."""
        self._registration: asyncio.Task[None] | None = None
        self._flush_failure: StoreError | None = None

    @property
    def flush_failure(self) -> StoreError | None:
        """The first failed flush in this process: the kernel may have dropped bytes, and a later flush proves nothing,
        even if the store was opened again.
        """
        if self._flush_failure is None and self.is_open:
            self._flush_failure = self.broker.store.flush_failure
        return self._flush_failure

    @property
    def config(self) -> BrokerConfig:
        """The configuration of the present life, without its role."""
        return self._config

    @property
    def ha_address(self) -> str:
        """This member's ``host:port`` for followers."""
        return format_address(self._config.broker_ip2, self._config.ha_listen_port)

    async def open(self, epoch: int = 0) -> None:
        """Open a life as the master of an epoch, or as a slave if the epoch is 0; nobody can connect yet.

        :raises StoreError: the store cannot be opened.
        :raises OSError: the port is in use.
        """
        options, self.closed_end = self._options, None
        role, broker_id = (SYNC_MASTER, MASTER_ID) if epoch else (SLAVE, self._config.broker_id or FIRST_SLAVE_ID)
        self.broker = Broker(
            replace(self._config, broker_role=role, broker_id=broker_id),
            hooks=options.hooks,
            clock=options.clock,
            disk=options.disk,
            begin_anew=options.begin_anew,
            member=self.member,
        )
        try:
            await self.broker.open()
        except BaseException:
            await self.broker.stop(leaves=False)
            raise
        self._options = replace(options, begin_anew=False)
        self.epochs = EpochLog(self.broker.store)
        self.is_open, self.master_epoch, self.is_confirmed = True, epoch, False
        if not self._config.listen_port:  # a free port was chosen, which remains for all later lives
            self._config = replace(self._config, listen_port=self.broker.server.port)

    async def begin_epoch(self) -> int:
        """Append the marker of the master's epoch, unless the log has it, and flush it; return the end of the log.

        :raises StoreError: the marker cannot be written or flushed.
        """
        if self.epochs.last_epoch < self.master_epoch:
            return await self.epochs.begin(self.master_epoch)
        store = self.broker.store
        await store.wait_flushed(store.max_physical_offset)
        return store.max_physical_offset

    async def listen_for_members(self) -> None:
        """Open the port for followers.

        :raises ReplicationError: the port is in use.
        """
        await self.broker.listen_for_slaves()
        if not self._config.ha_listen_port:
            self._config = replace(self._config, ha_listen_port=self.broker.ha.port)

    async def serve(self) -> None:
        """Serve clients."""
        await self.broker.serve()
        if self.master_epoch and self._options.extend is not None:
            await self._options.extend(self.broker)

    @property
    def is_registered(self) -> bool:
        """Return whether the present life registers with the nameservers."""
        return self._registration is not None

    def register(self, broker_id: int) -> None:
        """Register with the nameservers in a task, once in each life."""
        live = self.broker.live
        if live.current.broker_id != broker_id:
            live.replace(replace(live.current, broker_id=broker_id))
        self._registration = asyncio.get_running_loop().create_task(self._register(), name="register")

    async def _register(self) -> None:
        try:
            await self.broker.register()
        except Exception:
            _log.exception("cannot register with the nameservers")

    def give_up(self) -> None:
        """Answer waiting sends with an error, and let nothing wait any more for what is not confirmed."""
        if self.is_open and self.master_epoch:
            self.broker.confirms.give_up(ResponseCode.SERVICE_NOT_AVAILABLE)
            self.broker.store.give_up()

    async def leave(self) -> None:
        """Leave the nameservers, because this member serves nobody until a person has acted."""
        if self._registration is not None:
            await asyncio.gather(self._registration, return_exceptions=True)
            await self.broker.registration.stop()

    async def close(self, *, leaves: bool = False) -> None:
        """Close the present life.

        :param leaves: True to leave the nameservers; otherwise another life registers instead.
        """
        self.give_up()
        if self.is_open and not self.master_epoch:
            self.broker.slave.leave()  # also if it was not started
        was_open, self.is_open = self.is_open, False
        if self._registration is not None:
            self._registration.cancel()
            await asyncio.gather(self._registration, return_exceptions=True)
            self._registration = None
        ports = self._config.listen_port, self._config.ha_listen_port
        changed = self.broker.live.current  # at run time
        self._config = replace(changed, listen_port=ports[0], ha_listen_port=ports[1])
        try:
            await self.broker.stop(leaves=leaves)
        finally:
            if was_open:
                store = self.broker.store
                self._flush_failure = self._flush_failure or store.flush_failure
                self.closed_end = store.max_physical_offset

    def cut(self, offset: int, epoch: int) -> None:
        """Set aside and remove the log's bytes from an offset on; the life is closed. Blocking.

        :raises StoreError: the bytes cannot be copied or cut.
        """
        cut_log(self._config, offset, epoch, clock=self._options.clock, disk=self._options.disk)

    def log_state(self) -> LogState:
        """Return the ends of the log."""
        store = self.broker.store
        return LogState(store.max_physical_offset, store.flushed_position, self.epochs.last_epoch)
