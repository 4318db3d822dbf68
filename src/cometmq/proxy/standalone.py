"""The gRPC endpoint for a fleet of brokers, as a separate process."""

from __future__ import annotations

from pathlib import Path

from cometmq.auth.access_control import open_access, open_audit, own_security
from cometmq.client.route import namesrv_addresses
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.hosts import format_address
from cometmq.proxy.backend.fleet import FleetBackend
from cometmq.proxy.call_accounts import checker_of
from cometmq.proxy.endpoint import ALPN, GrpcEndpoint
from cometmq.proxy.proxy_config import ProxyConfig
from cometmq.remoting.security import Security
from cometmq.remoting.tls.server import ServerTls


class FleetProxy:
    """A gRPC endpoint, its accounts, and its connections to the brokers.

    :raises AuthError: the accounts cannot be read.
    :raises ConfigError: options contradict each other.
    :raises TlsError: a TLS file cannot be used.
    """

    def __init__(self, config: ProxyConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config = config
        users = Path(config.auth_config_path or "auth.json")
        self._audit = open_audit(config, Path("audit.log"), "proxy", clock=clock)
        self._access = open_access(config, users, config.rocketmq_cluster_name, self._audit, clock=clock)
        security = Security(own_security(config).credentials, config.outgoing_tls)
        self._endpoint = GrpcEndpoint(
            FleetBackend(namesrv_addresses(config.namesrv_addr), security=security, clock=clock),
            tls=ServerTls(config, clock=clock, protocols=ALPN),
            checker=checker_of(self._access, self._audit, clock=clock, requires_fresh=config.require_fresh_signatures),
            config=config.endpoint,
            clock=clock,
        )

    @property
    def address(self) -> str:
        """``host:port`` for clients on this machine."""
        host = self._config.bind_address
        return format_address("127.0.0.1" if host in ("", "0.0.0.0", "::") else host, self._endpoint.port)

    async def start(self) -> None:
        """Start listening.

        :raises AuthError: the audit log cannot be opened.
        :raises OSError: the port is in use or not allowed.
        """
        if self._audit is not None:
            self._audit.start()
        if self._access is not None:
            self._access.start()
        await self._endpoint.start(self._config.bind_address, self._config.grpc_server_port)

    async def stop(self) -> None:
        """End all calls and disconnect from the brokers."""
        await self._endpoint.stop()
        if self._access is not None:
            await self._access.stop()
        if self._audit is not None:
            await self._audit.stop()
