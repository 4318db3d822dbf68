"""Nameserver metrics and the port that serves them. Apache's nameserver has no metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from cometmq.clock import Clock
from cometmq.metrics.exposition import exposition, in_slices
from cometmq.metrics.family import Family, Kind, Sample, Steps
from cometmq.metrics.http import MonitorServer
from cometmq.metrics.otlp import OtlpSender
from cometmq.metrics.process import CONNECTIONS, UNSENT_BYTES, of_process
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.routes import RouteTable
from cometmq.remoting.rpc_latency import RpcLatency
from cometmq.remoting.server import RemotingServer

BROKERS: Final = Family("cometmq_registered_brokers", Kind.GAUGE, "Registered brokers.", ("broker_cluster",))
ROUTED_TOPICS: Final = Family("cometmq_routed_topics", Kind.GAUGE, "Topics with a route.")


class NamesrvMonitor:
    """Collects and serves a nameserver's metrics.

    :param servers: servers whose connections are counted.
    :param latency: measures the requests of the servers.
    :param access: returns the samples of accounts and of the audit log.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        routes: RouteTable,
        servers: Sequence[RemotingServer],
        latency: RpcLatency,
        access: Callable[[], Iterable[Sample]],
        *,
        clock: Clock,
    ) -> None:
        self._config = config
        self._routes = routes
        self._servers = servers
        self._access = access
        self._boot_ms = clock.now_ms()
        self._latency = latency
        self._port = MonitorServer(self._pieces, lambda: "", clock=clock)
        self._sender = OtlpSender(config, self._steps, clock=clock) if config.sends_metrics else None

    async def start(self, node_id: str) -> None:
        """Start serving metrics.

        :param node_id: the address of the nameserver.
        """
        config = self._config
        self._common = {**config.metric_labels, "node_type": "nameserver", "node_id": node_id}
        await self._port.start(
            config.metrics_prom_exporter_host or config.bind_address, config.metrics_prom_exporter_port
        )
        if self._sender is not None:
            self._sender.start(self._common)

    @property
    def url(self) -> str:
        """Return the URL of the metrics, or an empty string if they are not served."""
        return self._port.url

    async def stop(self) -> None:
        """Close the metrics port."""
        if self._sender is not None:
            await self._sender.stop()
        await self._port.stop()

    def _pieces(self) -> Iterator[bytes]:
        return exposition(self._steps(), self._common)

    def _steps(self) -> Steps:
        return chain(
            in_slices(self._of_routes()),
            in_slices(self._latency.samples()),
            in_slices(self._access()),
            in_slices(of_process(self._boot_ms)),
        )

    def _of_routes(self) -> Iterator[Sample]:
        for cluster, count in self._routes.broker_counts().items():
            yield BROKERS, (cluster,), count
        yield ROUTED_TOPICS, (), self._routes.topic_count
        yield CONNECTIONS, (), sum(len(server.connections) for server in self._servers)
        yield UNSENT_BYTES, (), sum(server.unsent.total_bytes for server in self._servers)
