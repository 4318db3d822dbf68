"""The gRPC endpoint: its components, and the order in which they start and stop."""

from __future__ import annotations

from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import MAX_CONNECTIONS
from cometmq.proxy.backend.backend import Backend
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.server import GrpcServer
from cometmq.proxy.service import methods_of
from cometmq.proxy.services.commands import ClientCommands
from cometmq.proxy.sessions import Checker, Sessions
from cometmq.remoting.connections.listener import ConnectionLimit
from cometmq.remoting.tls.server import ServerTls

ALPN: Final = ("h2",)
"""HTTP/2's protocol name in TLS handshakes."""


class GrpcEndpoint:
    """The gRPC endpoint for one or more brokers."""

    def __init__(
        self,
        backend: Backend,
        *,
        tls: ServerTls,
        checker: Checker | None,
        config: EndpointConfig | None = None,
        max_connections: int = MAX_CONNECTIONS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        commands = ClientCommands(clock)
        self.sessions: Final = Sessions(backend, checker, clock, commands.pass_on)
        context = EndpointContext(config or EndpointConfig(), backend, self.sessions, clock)
        self._backend = backend
        self._renewals = Renewals(context.config, clock)
        self.server: Final = GrpcServer(
            methods_of(context, self._renewals, commands),
            tls=tls,
            clock=clock,
            connection_limit=ConnectionLimit(max_connections),
        )

    @property
    def port(self) -> int:
        """The endpoint's port."""
        return self.server.port

    async def start(self, host: str, port: int) -> None:
        """Connect to the brokers and listen; port 0 selects a free port.

        :raises OSError: the port is in use or not allowed.
        """
        await self._backend.start()
        await self.server.start(host, port)
        self.sessions.start()
        self._renewals.start()

    async def stop(self) -> None:
        """End all calls and disconnect from the brokers."""
        await self.server.stop()
        await self._renewals.stop()
        await self.sessions.stop()
        await self._backend.stop()

    def cut_off(self) -> None:
        """Close all connections immediately, as happens when a process is killed."""
        self.server.cut_off()
