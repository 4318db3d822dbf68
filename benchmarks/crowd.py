"""Measures one broker with a crowd of clients beside Apache RocketMQ 4.9.7, in turn, on this machine, with `crowd.c`.

    python -m benchmarks.crowd                                   all cases
    python -m benchmarks.crowd --only sends --systems cometmq    some cases of one system

A case is a fresh broker, alone; the JVM has a heap of 1 GB and is warmed for ten seconds. All clients connect at once.
"There" is the time until all are answered. Cases with a restart kill the broker with SIGKILL and start it again at once
on the same store and port; the clients connect again every 100 ms. "Behind" is the time from the first answer to the
first answer of the last client; latencies are those after that first answer. Memory is anonymous memory for a client,
beyond that of the broker before they came. Needs more descriptors than clients (`ulimit -n 20000`). Prints one JSON
line a case and a Markdown table, with a sentence on how quiet the machine was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.half import half_of_processors
from benchmarks.machine import Beside, CpuTimes, anonymous_mb, cpu_seconds, look_before, verdict
from benchmarks.mqload import compiled, generator_seconds, mqload
from benchmarks.rounds import Figures, say, table
from benchmarks.scale.crowd import more_descriptors
from benchmarks.scale.wire import Wire, make_topic
from benchmarks.servers import JAVA, running
from tests.interop.systems import Deployment, System, start_broker

JAVA_WARM_S: Final = 10.0
QUEUES: Final = 1_000
"""Queues of each topic on which pulls are held."""
SIDES: Final = (System.APACHE, System.COMETMQ)
_KIB: Final = 1_024


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    mode: str
    """Of the generator: ``send``, ``pull`` or ``join``."""
    clients: int
    rate: float = 0.0
    """Messages a second, of each client (``send``) or in all (``pull``)."""
    restarts: bool = False
    """The broker is killed under its clients and starts again."""

    @property
    def options(self) -> list[str]:
        """Of the generator."""
        queues = QUEUES if self.mode == "pull" else 4
        return [self.mode, "-c", str(self.clients), "-r", str(self.rate), "-q", str(queues)]


CASES: Final = (
    Case("sends: 1,000 clients, 1/s each", "send", 1_000, 1),
    Case("sends: 1,000 clients, 10/s each", "send", 1_000, 10),
    Case("sends: 3,000 clients, 10/s each", "send", 3_000, 10),
    Case("sends: 10,000 clients, 1/s each", "send", 10_000, 1),
    Case("sends: 10,000 clients, 5/s each", "send", 10_000, 5),
    Case("sends: 10,000 clients, 10/s each", "send", 10_000, 10),
    Case("sends: 10,000 clients, 1/s each, restart", "send", 10_000, 1, restarts=True),
    Case("pulls held on 10,000 queues, 500 messages/s", "pull", 10_000, 500),
    Case("pulls held on 10,000 queues, 500 messages/s, restart", "pull", 10_000, 500, restarts=True),
    Case("joins: 2,000 consumers of one group", "join", 2_000),
)


def measure(case: Case, system: System, seconds: float) -> tuple[Figures, Beside]:
    """Measure one case on a fresh broker.

    :raises RuntimeError: the generator broke off.
    """
    with running(system) as deployment:
        broker = deployment.broker
        if case.mode == "pull":
            with Wire(broker.port) as wire:
                for number in range(-(-case.clients // QUEUES)):
                    wire.ask(make_topic(f"Crowd{number}", QUEUES))
        warm = JAVA_WARM_S if system is System.APACHE else 1.0
        mqload("send", broker.port, "-c", "64", "-t", "Warm", "-s", str(warm))
        before_mb, clocks, generated = anonymous_mb(broker.pid), CpuTimes.now(), generator_seconds()
        used = sum(cpu_seconds(broker.pid))
        command = [str(compiled("crowd")), *case.options, "-p", str(broker.port), "-s", str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as crowd:
            assert crowd.stdout is not None
            there = _line(crowd)
            busy, since = sum(cpu_seconds(broker.pid)), time.monotonic()
            # no earlier than the end of what arrives with all clients, and before the crowd leaves
            time.sleep(seconds / 2)
            memory_kb = (anonymous_mb(broker.pid) - before_mb) * _KIB / case.clients
            busy, since = sum(cpu_seconds(broker.pid)) - busy, time.monotonic() - since
            if case.restarts:
                used -= sum(cpu_seconds(broker.pid))
                broker.kill()
                _start_again(deployment, system)
            end = _line(crowd)
            crowd.communicate()
        used = sum(cpu_seconds(deployment.broker.pid)) - used
        beside = Beside.between(clocks, CpuTimes.now(), used + generator_seconds() - generated)
    return _figures(case, there, end, memory_kb, busy / since), beside


def _line(crowd: subprocess.Popen[str]) -> dict[str, Any]:
    assert crowd.stdout is not None
    line = crowd.stdout.readline()
    if not line:
        raise RuntimeError(crowd.communicate()[1])
    found: dict[str, Any] = json.loads(line)
    return found


def _start_again(deployment: Deployment, system: System) -> None:
    old = deployment.broker
    names = deployment.namesrv.address
    deployment.broker = start_broker(system, old.directory, names, deployment.settings, old.port, JAVA)


def _figures(case: Case, there: dict[str, Any], end: dict[str, Any], memory_kb: float, busy: float) -> Figures:
    found = {"there, s": there["took_ms"] / 1000, "memory, kB": memory_kb, "processor, %": busy * 100}
    if case.mode != "join":
        found |= {"messages/s": end["done"] / end["took_ms"] * 1000, "not sent": float(end["unsent"])}
    found |= {"p50, ms": end["p50_ms"], "p99, ms": end["p99_ms"], "longest, ms": end["max_ms"]}
    if case.restarts:
        found |= {"behind, ms": end["behind_ms"], "clients after it": float(end["clients"])}
    if case.mode == "join":
        found["notices"] = float(there["notices"])
    if end["failures"]:
        found["failures"] = float(end["failures"])
    return found


def crowd_table(figures: dict[tuple[str, System], Figures]) -> str:
    """A row for each figure of each case, a column for each system."""
    systems = list(dict.fromkeys(system for _, system in figures))
    rows = []
    for case in dict.fromkeys(name for name, _ in figures):
        found = [figures.get((case, system), {}) for system in systems]
        rows += [
            [f"{case}: {name}", *(f"{one[name]:,.1f}" if name in one else "–" for one in found)]
            for name in dict.fromkeys(itertools.chain.from_iterable(found))
        ]
    return table(["", *(system.value for system in systems)], *rows)


def run(cases: Sequence[Case], systems: Sequence[System], seconds: float) -> None:
    """Measure cases of several systems in turn, and print the table."""
    load, before = os.getloadavg()[0], look_before()
    figures: dict[tuple[str, System], Figures] = {}
    beside = []
    for case in cases:
        for system in systems:
            try:
                figures[case.name, system], one = measure(case, system, seconds)
            except (RuntimeError, OSError) as error:
                say(case=case.name, system=system.value, error=str(error))
                continue
            beside.append(one)
            say(case=case.name, system=system.value, **figures[case.name, system])
    print(f"\n{verdict(load, before, beside)}\n\n{crowd_table(figures)}")


def main() -> None:
    """Run the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--systems", default=",".join(one.value for one in SIDES), help="with commas between")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case, once all clients are there")
    parser.add_argument("--half", action="store_true", help="hold brokers and generator to half of the processors")
    options = parser.parse_args()
    more_descriptors()
    compiled("mqload", "-lm")
    chosen = [case for case in CASES if options.only in case.name]
    systems = [System(name) for name in options.systems.split(",")]
    if not options.half:
        run(chosen, systems, options.seconds)
        return
    with half_of_processors() as how:
        run(chosen, systems, options.seconds)
        print(f"\n{how}")


if __name__ == "__main__":
    main()
