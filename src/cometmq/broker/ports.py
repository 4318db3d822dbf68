"""The ports of a broker for clients. Both have the same handlers, guard, quotas and end of a turn.

The main port (``remotingServer``) is the broker's address. Clients with ``vipChannelEnabled`` send everything but pulls
to the port :data:`FAST_PORT_DISTANCE` before it (``fastRemotingServer``).
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.broker.access import BrokerAccess
from cometmq.broker.config import LiveConfig
from cometmq.broker.hooks.message_hooks import BrokerHooks
from cometmq.broker.stops import Stops
from cometmq.clock import Clock
from cometmq.message.listeners import EVERY_CLIENT, Advertised
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.processors import ProcessorTable
from cometmq.remoting.rpc_latency import RpcLatency
from cometmq.remoting.server import RemotingServer

_log = logging.getLogger(__name__)

FAST_PORT_DISTANCE: Final = 2
"""The port for clients with ``vipChannelEnabled`` is so far before the main one."""


class ClientPorts:
    """First ``bind``, then ``listen``; :class:`~cometmq.broker.stops.Stops` closes them.

    :param latency: counts how long requests take.
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
        self.main: Final = self._server(processors)
        self.servers: Final = [self.main]
        """The main one, and the one for ``vipChannelEnabled`` once it listens."""
        access.limiter.table.on_change.append(self._use_quotas)

    @property
    def address(self) -> str:
        """The ``host:port`` of this broker for clients that ask at no listener."""
        return self.addresses[EVERY_CLIENT]

    @property
    def addresses(self) -> dict[str, str]:
        """The ``host:port`` of this broker for clients, by the listener at which they ask a nameserver."""
        config = self._live.current
        advertised = {EVERY_CLIENT: Advertised(config.broker_ip1, 0), **config.advertised}
        return {name: address.at(self.main.port) for name, address in advertised.items()}

    async def bind(self, stops: Stops) -> None:
        """Take the main port: records and ids of messages have it.

        :raises OSError: the port is taken or not allowed.
        """
        config = self._live.current
        await self.main.bind(config.bind_address, config.listen_port)
        stops.add("connections", self.main.stop)

    async def listen(self, stops: Stops) -> None:
        """Serve clients."""
        self.main.listen()
        config = self._live.current
        port = config.listen_port - FAST_PORT_DISTANCE
        if port <= 0:
            return
        fast = self._server(self._processors.without(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
        fast.turn_hooks += self.main.turn_hooks
        fast.new_taker = self.main.new_taker
        self.servers.append(fast)
        try:
            await fast.start(config.bind_address, port)
        except OSError as error:
            _log.warning("cannot listen on port %d for clients with vipChannelEnabled: %s", port, error)
        else:
            stops.add("connections of old clients", fast.stop)

    def cut_off(self) -> None:
        """End every connection at once and answer nobody."""
        for server in self.servers:
            server.cut_off()

    def _server(self, processors: ProcessorTable) -> RemotingServer:
        config, access = self._live.current, self._access
        server = RemotingServer(
            processors,
            hooks=self._hooks.for_server(lambda: self.address, config.region_id),
            guard=access.guard,
            clock=self._clock,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
            max_connections=config.server_max_connections,
            tls=access.tls,
        )
        server.on_answer = None if access.audit is None else access.audit.answered
        server.limiter = access.limiter if access.limiter.is_active else None
        server.latency = self._latency
        return server

    def _use_quotas(self) -> None:
        """Ask for quotas only while there are some."""
        limiter = self._access.limiter if self._access.limiter.is_active else None
        for server in self.servers:
            if server.limiter is not limiter:
                server.limiter = limiter
                server.renew_takers()
