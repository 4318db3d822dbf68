"""Sends of 64 connections to a set and to a hand-made pair: rate, processor time and memory of each side."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from benchmarks.broker import MANY
from benchmarks.failover.sets import replica_set
from benchmarks.machine import anonymous_mb, cpu_seconds, look_before, verdict
from benchmarks.mqload import Measured, compiled, measured, mqload
from benchmarks.rounds import in_turn, say, table
from benchmarks.servers import running
from tests.interop.systems import Server, System

WARM_MESSAGES: Final = {System.APACHE55: 150_000, System.COMETMQ: 10_000}
"""A JVM whose compilers get little of the processors is not warm after a fixed time."""


class Side(Enum):
    """The brokers that a message needs before it is acknowledged."""

    APACHE = "Apache 5.5.0 with controller, two replicas"
    PAIR = "CometMQ, SYNC_MASTER with a slave"
    SET = "CometMQ, failover, two members"
    THREE = "CometMQ, failover, three members"

    @property
    def system(self) -> System:
        """The maker of the brokers."""
        return System.APACHE55 if self is Side.APACHE else System.COMETMQ


@dataclass(frozen=True)
class Load:
    """One load; processor times in microseconds for a message, memory in MB."""

    sends: Measured
    slaves_cpu_us: float
    """Processor time of all other replicas."""
    idle_mb: float
    """Anonymous memory of the master before the load."""
    master_mb: float
    slave_mb: float


@contextmanager
def brokers(side: Side) -> Iterator[tuple[Server, list[Server]]]:
    """A fresh master with its slaves, all in sync."""
    if side is Side.PAIR:
        with running(System.COMETMQ, role="SYNC_MASTER", slaves=1) as deployment:
            yield deployment.broker, deployment.slaves
    else:
        with replica_set(side.system, 3 if side is Side.THREE else 2) as group:
            master = group.master()
            yield master, [one for one in group.members if one is not master]


def measure(side: Side, seconds: float) -> Load:
    """Sends to one side alone."""
    with brokers(side) as (master, slaves):
        idle_mb = anonymous_mb(master.pid)
        sent = 0
        while sent < WARM_MESSAGES[side.system]:
            sent += int(mqload("send", master.port, "-c", "64", "-t", "Warm", "-s", "2")["messages"])
        before = [sum(cpu_seconds(slave.pid)) for slave in slaves]
        sends = measured("send", master.pid, master.port, [*MANY, "-s", str(seconds)], tls=False, signs=False)
        used = sum(sum(cpu_seconds(slave.pid)) for slave in slaves) - sum(before)
        memory = (idle_mb, anonymous_mb(master.pid), anonymous_mb(slaves[0].pid))
        return Load(sends, used / (sends.per_s * seconds) * 1e6, *memory)


def load(sides: Sequence[Side], rounds: int, seconds: float) -> None:
    """All sides in turn, then the table of medians."""
    compiled("mqload", "-lm")
    load_before, before = os.getloadavg()[0], look_before()
    found: dict[Side, list[Load]] = {side: [] for side in sides}
    for number, side in in_turn(sides, rounds):
        one = measure(side, seconds)
        found[side].append(one)
        sends = one.sends
        shown = {"per_s": sends.per_s, "p50_us": sends.p50_us, "p99_us": sends.p99_us, "cpu_us": sends.cpu_us}
        memory = {"idle_mb": one.idle_mb, "master_mb": one.master_mb, "slave_mb": one.slave_mb}
        say(round=number, side=side.name, **shown, slaves_cpu_us=one.slaves_cpu_us, **memory)
    # the slaves' own time counts as that of others in the verdict
    beside = [one.sends.beside for all_rounds in found.values() for one in all_rounds]
    print(f"\n{rounds} rounds of {seconds:g} s. {verdict(load_before, before, beside)}\n")
    heads = ("side", "sends", "p50", "p99", "CPU per message, master / others", "memory, started / after, slave")
    print(table(heads, *(_row(side, all_rounds) for side, all_rounds in found.items())))


def _row(side: Side, rounds: Sequence[Load]) -> list[str]:
    rate, p50, p99, cpu = (
        statistics.median(getattr(one.sends, of) for one in rounds) for of in ("per_s", "p50_us", "p99_us", "cpu_us")
    )
    others, idle, master, slave = (
        statistics.median(getattr(one, of) for one in rounds)
        for of in ("slaves_cpu_us", "idle_mb", "master_mb", "slave_mb")
    )
    cells = [f"{rate:,.0f}/s", f"{p50:,.0f} µs", f"{p99:,.0f} µs", f"{cpu:.1f} / {others:.1f} µs"]
    return [side.value, *cells, f"{idle:.0f} / {master:.0f}, {slave:.0f} MB"]
