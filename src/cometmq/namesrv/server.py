"""NamesrvController: the nameserver, with its tables, its request handlers and the scan for silent brokers."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cometmq import __version__
from cometmq.auth.access_control import guard_of, open_access, open_audit
from cometmq.auth.metrics import of_access
from cometmq.auth.user_admin import UserAdmin
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.hosts import address_here
from cometmq.message.listeners import EVERY_CLIENT
from cometmq.metrics.family import Sample
from cometmq.namesrv.config import NamesrvConfig, Settings
from cometmq.namesrv.gone import SILENT
from cometmq.namesrv.kv import KvConfig
from cometmq.namesrv.monitor import NamesrvMonitor
from cometmq.namesrv.requests import NamesrvRequests
from cometmq.namesrv.routes import RouteTable
from cometmq.periodic import Periodic
from cometmq.remoting.processors import ProcessorTable
from cometmq.remoting.rpc_latency import RpcLatency
from cometmq.remoting.server import RemotingServer, RequestGuard, RequestPath, ServerLimits
from cometmq.remoting.server_connection import ServerConnection
from cometmq.remoting.tls.server import ServerTls

log = logging.getLogger(__name__)

_FIRST_SCAN_S: Final = 5.0


class NameServer:
    """A nameserver. The nameservers in a cluster do not know each other.

    ``await start()`` starts it, ``await stop()`` stops it.
    """

    def __init__(self, config: NamesrvConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Create a nameserver and load its KV configuration; a damaged file is renamed.

        :raises AuthError: the accounts cannot be read.
        :raises TlsError: a TLS file cannot be used.
        """
        self.routes: Final = RouteTable()
        self.kv: Final = KvConfig(Path(config.kv_config_path))
        self._settings = Settings(config)
        self._clock = clock
        self.processors: Final = ProcessorTable()
        self._requests = NamesrvRequests(self.routes, self.kv, self._settings, clock)
        self.processors.add(self._requests)
        users = Path(config.auth_config_path or Path(config.kv_config_path).with_name("auth.json"))
        audit_file = Path(config.kv_config_path).with_name("audit.log")
        self.audit = open_audit(config, audit_file, "nameserver", clock=clock)
        self.access = open_access(config, users, "", self.audit, clock=clock)
        if self.access is not None and self.access.users is not None:
            self.processors.add(UserAdmin(self.access.users))
        guard, tls = guard_of(self.access, self.audit), ServerTls(config, clock=clock)
        ports = {EVERY_CLIENT: config.listen_port, **self._requests.listeners.ports}
        self._latency = RpcLatency(clock) if config.has_metrics else None
        self._servers: Final = [self._new_server(name, guard, tls) for name in ports]
        self._ports: Final = tuple(ports.values())
        interval_s = config.scan_not_active_broker_interval / 1000
        self._scans = Periodic("removing silent brokers", interval_s, self._scan, clock=clock, first_s=_FIRST_SCAN_S)
        self.monitor: NamesrvMonitor | None = None
        if self._latency is not None:
            self.monitor = NamesrvMonitor(
                config, self.routes, self._servers, self._latency, self._access_samples, clock=clock
            )

    def _new_server(self, listener: str, guard: RequestGuard | None, tls: ServerTls) -> RemotingServer:
        config = self.config
        return RemotingServer(
            self.processors,
            RequestPath(guard, on_failure=None if self.audit is None else self.audit.answered, latency=self._latency),
            ServerLimits(
                idle_timeout_s=config.server_channel_max_idle_time_seconds,
                max_connections=config.server_max_connections,
            ),
            clock=self._clock,
            tls=tls,
            listener=listener,
        )

    def _access_samples(self) -> Iterator[Sample]:
        return of_access(None if self.access is None else self.access.guard, None, self.audit)

    @property
    def config(self) -> NamesrvConfig:
        """The current configuration."""
        return self._settings.config

    @property
    def port(self) -> int:
        """The port in use, even if the configured port is 0."""
        return self._servers[0].port

    @property
    def address(self) -> str:
        """``host:port`` for clients on this machine."""
        return address_here(self.config.bind_address, self.port)

    @property
    def listener_addresses(self) -> dict[str, str]:
        """``host:port`` of each listener by name, for clients on this machine."""
        return {server.listener: address_here(self.config.bind_address, server.port) for server in self._servers[1:]}

    async def start(self) -> None:
        """Start listening and scanning for silent brokers.

        :raises OSError: the port is in use or not allowed.
        """
        if self.audit is not None:
            self.audit.start()
        for server, port in zip(self._servers, self._ports, strict=True):
            await server.start(self.config.bind_address, port)
        for name, address in self.listener_addresses.items():
            log.info("nameserver serves clients of listener %s at %s", name, address)
        log.info(
            "nameserver serves at %s: CometMQ %s, Python %s, KV configuration %s",
            *(self.address, __version__, platform.python_version(), self.config.kv_config_path),
        )
        self._scans.start()
        if self.access is not None:
            self.access.start()
        if self.monitor is not None:
            await self.monitor.start(self.address)

    async def stop(self) -> None:
        """Stop the scan, and close all connections and the port."""
        self._scans.close()
        began = self._clock.monotonic()
        if self.monitor is not None:
            await self.monitor.stop()
        for server in self._servers:
            await server.stop()
        if self.access is not None:
            await self.access.stop()
        await self._requests.stop()
        if self.audit is not None:
            await self.audit.stop()
        log.info("nameserver stopped in %.2f s", self._clock.monotonic() - began)

    def _scan(self) -> None:
        """Remove brokers that have been silent for too long (``scanNotActiveBroker``)."""
        oldest = self._clock.monotonic() - self.config.broker_channel_expired_time / 1000
        for live in self.routes.expire(oldest):
            self._requests.record_departure(live.identity, SILENT)
            if isinstance(live.connection, ServerConnection):
                live.connection.close()
