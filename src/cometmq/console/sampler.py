"""Samples of a cluster over the last hour, in memory: rates, disk use and lag. Brokers are queried every five seconds.

The console uses its own account for these queries. If the cluster is unreachable, the samples have a gap. Each sample
lists absent brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cometmq.client.admin import Admin
from cometmq.client.admin.broker_status import BrokerStatus
from cometmq.client.admin.cluster_health import examine_cluster
from cometmq.client.admin.failover.sets import BrokerSet, find_sets
from cometmq.client.admin.finding import Finding
from cometmq.client.admin.several import gathered
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.clock import Clock
from cometmq.console.connections import Connections
from cometmq.console.limits import HEALTH_SECONDS, SAMPLE_SECONDS, SAMPLES, SET_SECONDS
from cometmq.errors import CometMQError
from cometmq.message.names import MASTER_ID
from cometmq.periodic import Periodic
from cometmq.remoting.bodies import ClusterInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerLine:
    """The state of one broker."""

    cluster: str
    name: str
    broker_id: int
    address: str
    status: BrokerStatus | None
    """State of the broker, or ``None`` if it does not answer."""
    problem: str = ""

    @property
    def is_master(self) -> bool:
        """Return True if the broker is a master."""
        return self.broker_id == MASTER_ID

    @property
    def key(self) -> str:
        """Return a short name for this broker. It is unique in the cluster."""
        return f"{self.name}/{self.broker_id}"


@dataclass(frozen=True)
class Sample:
    """The state of the cluster at one moment."""

    time_ms: int
    brokers: tuple[BrokerLine, ...] = ()
    away: tuple[tuple[str, str], ...] = ()
    """Name of each absent broker, with the reason."""
    failure: str = ""
    """Reason for missing data: no nameserver answers, or access is denied."""
    sets: tuple[BrokerSet, ...] = ()
    """The sets that elect their master; only the newest sample keeps them."""

    def total(self, figure: str) -> float | None:
        """Return the sum of a figure over all masters, or ``None`` if no master reports it."""
        values = [getattr(line.status, figure) for line in self.brokers if line.is_master and line.status is not None]
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    @property
    def fullest_disk(self) -> float | None:
        """Return the usage of the fullest disk, in percent."""
        used = [line.status.disk_used_percent for line in self.brokers if line.status is not None]
        return max((value for value in used if value is not None), default=None)

    def figures(self) -> dict[str, float | None]:
        """Return the figures for plots and live pages."""
        return {
            "time": self.time_ms / 1000,
            "in": self.total("in_per_s"),
            "out": self.total("out_per_s"),
            "disk": self.fullest_disk,
            "behind": self.total("dispatch_behind_bytes"),
        }


@dataclass
class Health:
    """Findings about the cluster's health."""

    time_ms: int = 0
    findings: list[Finding] = field(default_factory=list)
    failure: str = ""

    @property
    def to_do(self) -> list[Finding]:
        """The findings that need attention."""
        return [finding for finding in self.findings if finding.todo]


async def take_sample(admin: Admin, now_ms: int) -> Sample:
    """Query the state of every broker."""
    try:
        info = await admin.cluster_info()
    except CometMQError as error:
        return Sample(now_ms, failure=str(error))
    places = {
        (data.cluster, name, broker_id): address
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    }
    lines = await gathered({place: _line(admin, *place, address) for place, address in places.items()})
    members = [one.address for one in lines.values() if one.status is not None and one.status.failover_state]
    return Sample(now_ms, tuple(lines.values()), _away(info), sets=await _sets(admin, members))


async def _sets(admin: Admin, members: Sequence[str]) -> tuple[BrokerSet, ...]:
    if not members:
        return ()
    with suppress(CometMQError):  # they may have died since, or deny it
        return tuple((await find_sets(admin, servers=members, timeout_s=SET_SECONDS))[0])
    return ()


def _away(info: ClusterInfo) -> tuple[tuple[str, str], ...]:
    return tuple(
        (gone.broker_name if gone.broker_id == MASTER_ID else f"{gone.broker_name}/{gone.broker_id}", gone.reason)
        for gone in info.gone_brokers or []
    )


async def _line(admin: Admin, cluster: str, name: str, broker_id: int, address: str) -> BrokerLine:
    try:
        status = BrokerStatus.of(await admin.runtime_info(address))
    except (BrokerError, RemotingError) as error:
        return BrokerLine(cluster, name, broker_id, address, None, str(error))
    return BrokerLine(cluster, name, broker_id, address, status)


class Sampler:
    """Samples the cluster in the background, and examines it on demand."""

    def __init__(self, connections: Connections, nameservers: Sequence[str], clock: Clock) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.health = Health()
        self._connections = connections
        self._nameservers = nameservers
        self._clock = clock
        self._sampling = Periodic("looking at the cluster", SAMPLE_SECONDS, self._sample, clock=clock, first_s=0)
        self._examining: asyncio.Task[None] | None = None
        self._next = asyncio.Event()

    @property
    def latest(self) -> Sample | None:
        """Return the newest sample, or ``None`` if there is no sample yet."""
        return self.samples[-1] if self.samples else None

    def start(self) -> None:
        """Start sampling."""
        self._sampling.start()

    async def stop(self) -> None:
        """Stop sampling and examining the cluster."""
        await self._sampling.stop(cancels=True)
        if self._examining is not None:
            self._examining.cancel()
            await asyncio.gather(self._examining, return_exceptions=True)

    async def following(self) -> Sample:
        """Wait for the next sample."""
        await self._next.wait()
        return self.samples[-1]

    async def _sample(self) -> None:
        try:
            async with self._connections.admin() as admin:
                sample = await take_sample(admin, self._clock.now_ms())
            if self.samples:
                self.samples[-1] = replace(self.samples[-1], sets=())
            self.samples.append(sample)
        finally:
            self._next.set()
            self._next = asyncio.Event()

    def examine(self) -> Health:
        """Return the cluster's last known health. If it is old, refresh it in the background."""
        is_old = self._clock.now_ms() - self.health.time_ms > HEALTH_SECONDS * 1000
        if is_old and (self._examining is None or self._examining.done()):
            self._examining = asyncio.create_task(self._examine())
        return self.health

    async def _examine(self) -> None:
        found = Health()
        try:
            async with self._connections.admin() as admin:
                async for finding in examine_cluster(admin, self._nameservers):
                    found.findings.append(finding)
        except CometMQError as error:
            found.failure = str(error)
        found.time_ms = self._clock.now_ms()
        self.health = found
