"""The gRPC endpoint of a broker in the same process (``proxyMode=LOCAL`` in Apache's proxy)."""

from __future__ import annotations

import logging

from cometmq.broker.controller import Broker
from cometmq.message.hosts import format_address
from cometmq.proxy.backend.local import LocalBackend
from cometmq.proxy.call_accounts import checker_of
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.endpoint import ALPN, GrpcEndpoint
from cometmq.proxy.rpc.server import GrpcServer
from cometmq.proxy.sessions import Sessions
from cometmq.remoting.tls.server import ServerTls

_log = logging.getLogger(__name__)


class BrokerEndpoint:
    """A running broker's gRPC endpoint."""

    def __init__(self, broker: Broker) -> None:
        """Create the components of the endpoint.

        :raises TlsError: a TLS file cannot be used.
        """
        config = broker.config
        self.is_open = False
        """True while the endpoint is listening."""
        self._broker = broker
        self._endpoint = GrpcEndpoint(
            LocalBackend(broker, EndpointConfig().call_limits),
            tls=ServerTls(config, clock=broker.clock, protocols=ALPN),
            checker=checker_of(
                broker.access, broker.audit, clock=broker.clock, requires_fresh=config.require_fresh_signatures
            ),
            max_connections=config.server_max_connections,
            clock=broker.clock,
        )

    @property
    def sessions(self) -> Sessions:
        """The endpoint's client sessions."""
        return self._endpoint.sessions

    @property
    def server(self) -> GrpcServer:
        """The server for the endpoint's connections and calls."""
        return self._endpoint.server

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return format_address(self._broker.config.broker_ip1, self._endpoint.port)

    async def start(self, port: int) -> None:
        """Listen on the broker's address; port 0 selects a free port.

        If the port is in use, an error is logged, and the broker continues to serve remoting clients.
        """
        try:
            await self._endpoint.start(self._broker.config.bind_address, port)
        except OSError as error:
            _log.error(
                "clients of RocketMQ 5 are not served: %s; choose another port with --grpc-port or grpcServerPort",
                error.strerror or error,
            )
        else:
            self.is_open = True

    async def stop(self) -> None:
        """Stop listening and end all calls."""
        await self._endpoint.stop()

    def cut_off(self) -> None:
        """Close all connections immediately, as happens when a process is killed."""
        self._endpoint.cut_off()
