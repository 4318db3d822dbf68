"""A broker's two client ports, which share handlers, guard, quotas and turns.

The main port (``remotingServer``) is the broker's address. Clients with ``vipChannelEnabled`` send everything but pulls
to the port :data:`FAST_PORT_DISTANCE` below it (``fastRemotingServer``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.config import LiveConfig
from cometmq.broker.hooks.message_hooks import BrokerHooks
from cometmq.broker.port_security import BrokerAccess
from cometmq.broker.stops import Stops
from cometmq.clock import Clock
from cometmq.message.listeners import EVERY_CLIENT, Advertised
from cometmq.message.ports import FAST_PORT_DISTANCE
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.processors import ProcessorTable
from cometmq.remoting.rpc_latency import RpcLatency
from cometmq.remoting.server import RemotingServer, RequestPath, ServerLimits
from cometmq.remoting.server_connection import NewTaker

_log = logging.getLogger(__name__)


class ClientPorts:
    """The client ports of a broker. Call ``bind``, then ``listen``; in the end ``halt``, then ``stop``.

    :param latency: measures how long requests take.
    """

    def __init__(
        self,
        live: LiveConfig,
        processors: ProcessorTable,
        access: BrokerAccess,
        hooks: BrokerHooks,
        latency: RpcLatency | None,
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._processors = processors
        self._access = access
        self._hooks = hooks
        self._latency = latency
        self._clock = clock
        self._has_quotas = access.limiter.is_active
        self.main: Final = self._server(processors)
        self.servers: Final = [self.main]
        """The server for the main port, and the one for the ``vipChannelEnabled`` port once it is listening."""
        access.limiter.table.on_change.append(self._quotas_changed)

    @property
    def address(self) -> str:
        """Return the broker's ``host:port`` for clients that use no listener."""
        return self.addresses[EVERY_CLIENT]

    @property
    def addresses(self) -> dict[str, str]:
        """Return the broker's ``host:port`` for clients, by the nameserver listener that the clients use."""
        config = self._live.current
        advertised = {EVERY_CLIENT: Advertised(config.broker_ip1, 0), **config.advertised}
        return {name: address.at(self.main.port) for name, address in advertised.items()}

    async def bind(self, stops: Stops) -> None:
        """Bind the main port, whose number is part of records and message IDs.

        :raises OSError: the port is in use or not allowed.
        """
        config = self._live.current
        await self.main.bind(config.bind_address, config.listen_port)
        stops.add("port", self.main.stop)

    async def listen(self, end_of_round: Sequence[Callable[[], None]], new_taker: NewTaker | None) -> None:
        """Start serving clients.

        :param end_of_round: called at the end of each round of the loop, in this order.
        """
        self.main.listen(end_of_round, new_taker)
        config = self._live.current
        port = config.listen_port - FAST_PORT_DISTANCE
        if port <= 0:
            return
        fast = self._server(self._processors.without(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
        self.servers.append(fast)
        try:
            await fast.start(config.bind_address, port, end_of_round, new_taker)
        except OSError as error:
            _log.warning("cannot listen on port %d for clients with vipChannelEnabled: %s", port, error)

    def halt(self) -> None:
        """Accept no more connections, and no more sends that clients then send to another broker."""
        for server in self.servers:
            server.halt()

    async def stop(self) -> None:
        """End all connections behind their last responses."""
        await asyncio.gather(*(server.stop() for server in self.servers))

    def cut_off(self) -> None:
        """Close every connection immediately, without responses."""
        for server in self.servers:
            server.cut_off()

    def _server(self, processors: ProcessorTable) -> RemotingServer:
        config, access = self._live.current, self._access
        path = RequestPath(
            access.guard,
            access.limiter,
            self._hooks.for_server(lambda: self.address, config.region_id),
            None if access.audit is None else access.audit.answered,
            self._latency,
        )
        return RemotingServer(
            processors,
            path,
            ServerLimits(
                idle_timeout_s=config.server_channel_max_idle_time_seconds,
                max_connections=config.server_max_connections,
            ),
            clock=self._clock,
            tls=access.tls,
        )

    def _quotas_changed(self) -> None:
        """Start checking quotas on connections when the first quota is set, and stop when the last one is removed."""
        if self._has_quotas != self._access.limiter.is_active:
            self._has_quotas = self._access.limiter.is_active
            for server in self.servers:
                server.renew_takers()
