"""A member's port for metrics and health checks, which stays open while a life of its broker follows another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cometmq.broker.member.lives import Lives
from cometmq.broker.metrics.monitor import BrokerMonitor
from cometmq.clock import Clock
from cometmq.metrics.http import MonitorServer


class Monitoring:
    """Serves the metrics of the present life; between two lives it has none, and the member is not ready.

    :param serves: returns whether the present life has begun to serve.
    """

    def __init__(self, lives: Lives, serves: Callable[[], bool], *, clock: Clock) -> None:
        self._lives = lives
        self._serves = serves
        self._server = MonitorServer(self._metrics, self._not_ready, clock=clock)

    async def start(self) -> None:
        """Listen, if the configuration asks for metrics."""
        config = self._lives.config
        if config.has_metrics:
            host = config.metrics_prom_exporter_host or config.bind_address
            await self._server.start(host, config.metrics_prom_exporter_port)

    async def stop(self) -> None:
        """Close the port."""
        await self._server.stop()

    @property
    def url(self) -> str:
        """The URL of the metrics; empty if they are not served."""
        return self._server.url

    @property
    def _monitor(self) -> BrokerMonitor | None:
        return self._lives.broker.monitor if self._serves() else None

    def _metrics(self) -> Iterator[bytes]:
        monitor = self._monitor
        return iter(()) if monitor is None else monitor.pieces()

    def _not_ready(self) -> str:
        monitor = self._monitor
        return "this member starts, or changes its role" if monitor is None else monitor.not_ready
