"""The nameserver process: tables, requests, and the watch over silent brokers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock, TimerHandle
from cometmq.message.hosts import format_address
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.configuration_requests import ConfigurationRequests
from cometmq.namesrv.kv import KvConfig
from cometmq.namesrv.requests import NamesrvRequests
from cometmq.namesrv.routes import RouteTable
from cometmq.namesrv.settings import Settings
from cometmq.remoting.processors import ProcessorTable
from cometmq.remoting.server import RemotingServer
from cometmq.remoting.server_connection import ServerConnection

log = logging.getLogger(__name__)

_FIRST_SCAN_S: Final = 5.0


class NameServer:
    """One nameserver (``NamesrvController``); several run side by side and know nothing of each other.

    ``await start()`` listens, ``await stop()`` ends it. ``port`` is the port in use, also when the
    configuration asked for a free one.
    """

    def __init__(self, config: NamesrvConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Read the KV configuration; a file that cannot be used is set aside."""
        self.routes: Final = RouteTable()
        self.kv: Final = KvConfig(Path(config.kv_config_path))
        self._settings = Settings(config)
        self._clock = clock
        self.processors: Final = ProcessorTable()
        self._requests = NamesrvRequests(self.routes, self.kv, self._settings, clock)
        self._requests.register(self.processors)
        self._configuration = ConfigurationRequests(self.kv, self._settings)
        self._configuration.register(self.processors)
        self._server = RemotingServer(
            self.processors,
            clock=clock,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
            max_connections=config.server_max_connections,
        )
        self._scan_timer: TimerHandle | None = None

    @property
    def config(self) -> NamesrvConfig:
        """The configuration in force."""
        return self._settings.config

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._server.port

    @property
    def address(self) -> str:
        """``host:port`` that clients on this machine can use."""
        host = self.config.bind_address
        return format_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), self.port)

    async def start(self) -> None:
        """Listen and begin to watch the brokers.

        :raises OSError: the port is taken or not allowed.
        """
        await self._server.start(self.config.bind_address, self.config.listen_port)
        self._scan_timer = self._clock.call_later(_FIRST_SCAN_S, self._scan)

    async def stop(self) -> None:
        """Stop watching, close every connection and the port."""
        if self._scan_timer is not None:
            self._scan_timer.cancel()
            self._scan_timer = None
        await self._server.stop()
        await self._requests.stop()
        await self._configuration.stop()

    def _scan(self) -> None:
        """Take out brokers that fell silent (``scanNotActiveBroker``)."""
        config = self.config
        oldest = self._clock.monotonic() - config.broker_channel_expired_time / 1000
        for live in self.routes.expire(oldest):
            log.warning("broker %s at %s is gone: silent for too long", live.identity.name, live.identity.address)
            if isinstance(live.connection, ServerConnection):
                live.connection.close()
        self._scan_timer = self._clock.call_later(config.scan_not_active_broker_interval / 1000, self._scan)
