"""A broker's metrics and the port that serves them (``BrokerMetricsManager``).

Each part of the broker has its own counters. The response to a scrape is collected and written over many rounds of the
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Final

from cometmq.broker.advertised_check import AdvertisedCheck
from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.broker.failover.status import FailoverMember
from cometmq.broker.limits import TIMER_COUNT_SECONDS
from cometmq.broker.metrics import families as f
from cometmq.broker.metrics import samples
from cometmq.broker.metrics.group_lags import GroupLags
from cometmq.broker.metrics.half_messages import HalfMessages
from cometmq.broker.metrics.waiting_messages import WaitingMessages
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pull.pull_request_hold import PullRequestHoldService
from cometmq.broker.replication.ha_service import HAService
from cometmq.broker.statistics.traffic import Traffic
from cometmq.broker.transaction.open_transactions import OpenTransactions
from cometmq.metrics.exposition import exposition, in_slices
from cometmq.metrics.family import Histogram, Sample, Steps
from cometmq.metrics.http import MonitorServer
from cometmq.metrics.otlp import OtlpSender
from cometmq.metrics.overflow import SeriesLimit
from cometmq.metrics.process import CONNECTIONS, UNSENT_BYTES, of_process
from cometmq.periodic import Alarm, Periodic
from cometmq.remoting.rpc_latency import RpcLatency
from cometmq.remoting.server import RemotingServer

_LOOP_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True)
class MonitoredParts:
    """The parts of a broker that have metrics; a slave has no transactions, timer and pops."""

    traffic: Traffic
    latency: RpcLatency
    servers: Sequence[RemotingServer]
    hold: PullRequestHoldService
    ha: HAService
    advertised: AdvertisedCheck
    access: Callable[[], Iterable[Sample]]
    """Returns the samples for accounts, quotas and the audit log."""
    transactions: OpenTransactions | None = None
    timer: TimerMessageService | None = None
    pops: PopLog | None = None
    failover: FailoverMember | None = None
    """The member of a set; ``None`` without failover."""


class BrokerMonitor:
    """Collects and serves a broker's metrics."""

    def __init__(self, broker: BrokerContext, parts: MonitoredParts) -> None:
        self._broker = broker
        self._parts = parts
        traffic = parts.traffic
        self._halves = None if parts.transactions is None else HalfMessages(parts.transactions, traffic)
        self._waiting = WaitingMessages(traffic)
        self._lags = GroupLags(broker, traffic)
        self._series = SeriesLimit(lambda: broker.config.metrics_otel_cardinality_limit)
        config = broker.config
        self._common = {
            **dict(config.metric_labels),
            "cluster": config.broker_cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
        }
        self._flushes = Histogram(f.FLUSHES.bounds)
        self._loop_delays = Histogram(f.LOOP_DELAY.bounds)
        self._look_at = 0.0
        self._probe = Alarm(self._measure_delay, clock=broker.clock)
        self._stops = AsyncExitStack()
        self.not_ready = "the broker starts"
        """The reason why the broker is not serving clients, or an empty string if it is."""
        self._sender = OtlpSender(config, self._steps, clock=broker.clock) if config.sends_metrics else None
        self.server: Final = MonitorServer(self.pieces, lambda: self.not_ready, clock=broker.clock)

    @property
    def url(self) -> str:
        """Return the URL of the metrics, or an empty string if they are not served."""
        return self.server.url

    async def start(self, *, listens: bool = True) -> None:
        """Start counting and listening.

        :param listens: False if a member of a set serves these metrics at its own port.
        """
        config = self._broker.config
        self._broker.store.time_flushes(self._flushes.observe)
        self._schedule_probe()
        self._stops.callback(self._probe.close)
        if self._parts.timer is not None:
            counting = Periodic(
                "count delayed messages", TIMER_COUNT_SECONDS, self._count_waiting, clock=self._broker.clock
            )
            counting.start()
            self._stops.push_async_callback(counting.stop)
        if listens:
            host, port = config.metrics_prom_exporter_host or config.bind_address, config.metrics_prom_exporter_port
            await self.server.start(host, port)
            self._stops.push_async_callback(self.server.stop)
        if self._sender is not None:
            self._sender.start(self._common)
            self._stops.push_async_callback(self._sender.stop)

    async def stop(self) -> None:
        """Close the metrics port."""
        await self._stops.aclose()

    # --- the delay of the loop ------------------------------------------------------------------
    def _schedule_probe(self) -> None:
        self._look_at = self._broker.clock.monotonic() + _LOOP_LOOK_SECONDS
        self._probe.after(_LOOP_LOOK_SECONDS)

    def _measure_delay(self) -> None:
        self._loop_delays.observe(max(self._broker.clock.monotonic() - self._look_at, 0.0))
        self._schedule_probe()

    async def _count_waiting(self) -> None:
        assert self._parts.timer is not None
        await self._waiting.count(self._parts.timer)

    # --- collecting -----------------------------------------------------------------------------
    def pieces(self) -> Iterator[bytes]:
        """Yield the current metrics as text, in pieces that take about a millisecond each."""
        return exposition(self._steps(), self._common)

    def _steps(self) -> Steps:
        # this call keeps the limit of samples itself
        lags = self._lags.steps(self._broker.config.metrics_otel_cardinality_limit)
        return chain(self._series.limit_series(self._of_broker()), lags)

    def _of_broker(self) -> Steps:
        broker = self._broker
        return chain(
            self._parts.traffic.keep(broker.topics.table.keys(), broker.groups.table.keys()),
            in_slices(samples.sample_tables(broker)),
            in_slices(samples.sample_messages(broker, self._parts.traffic)),
            in_slices(samples.sample_clients(broker)),
            in_slices(samples.sample_store(broker)),
            samples.sample_queue_entries(broker),
            in_slices(self._parts.latency.samples()),
            in_slices(samples.sample_addresses(self._parts.advertised)),
            in_slices(samples.sample_archive(broker.archived)),
            in_slices(samples.sample_replication(self._parts.ha)),
            in_slices(samples.sample_failover(self._parts.failover)),
            in_slices(self._parts.access()),
            self._half_messages(),
            in_slices(samples.sample_timer(broker, self._parts.timer, self._waiting)),
            samples.sample_pops(self._parts.pops, self._parts.traffic.pops, broker.clock.now_ms()),
            in_slices(self._of_loop()),
            in_slices(of_process(broker.stats.boot_ms)),
        )

    def _half_messages(self) -> Steps:
        if self._halves is None:
            return iter(())
        self._halves.keep(set(self._broker.topics.table))
        return self._halves.steps()

    def _of_loop(self) -> Iterator[Sample]:
        yield CONNECTIONS, (), sum(len(server.connections) for server in self._parts.servers)
        yield UNSENT_BYTES, (), sum(server.unsent.total_bytes for server in self._parts.servers)
        yield f.HELD_PULLS, (), len(self._parts.hold)
        yield f.PROCESSOR_WATERMARK, ("send",), self._broker.turn.waiters.waiting
        yield f.PROCESSOR_WATERMARK, ("pull",), len(self._parts.hold)
        yield f.LOOP_DELAY, (), self._loop_delays
        yield f.FLUSHES, (), self._flushes
