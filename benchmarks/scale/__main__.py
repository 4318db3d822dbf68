"""Measures a broker with many topics, offsets, timers or clients beside Apache RocketMQ, in turn, on this machine.

    python -m benchmarks.scale topics  [--steps 100,1000,10000,20000]  topics of five queues, a message in each
    python -m benchmarks.scale offsets [--steps 1000,10000,100000,1000000]  offsets of groups over 1,000 topics
    python -m benchmarks.scale timers  [--steps 10000,100000,1000000]   messages that wait for two days
    python -m benchmarks.scale clients [--steps 100,1000,10000]         connections with heartbeats
    python -m benchmarks.scale topics --steps 100,1000 --systems cometmq    a short run: 90 seconds

Each step is a fresh broker, alone, with its default keys; the JVM has a heap of 1 GB. Timers are those of Apache 5.1.4,
the rest is beside 4.9.7. When the broker is full, one small send every 5 to 10 ms shows how long others wait; the worst
of each second counts. The share of a processor is the broker's, with these sends and without any. "Ready" is the time
from the start of the process until a send succeeds. Prints one JSON line a step and a Markdown table at the end, with a
sentence on how quiet the machine was; `--plot FILE.svg` draws waits and starts over the steps.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from benchmarks.machine import Beside, look_before, verdict
from benchmarks.rounds import Figures, say, table
from benchmarks.scale.crowd import more_descriptors
from benchmarks.scale.curves import plot
from benchmarks.scale.rows import ROWS, Bench, Times
from tests.interop.systems import System

STEPS: Final = {
    "topics": (100, 1_000, 10_000, 20_000),
    "offsets": (1_000, 10_000, 100_000, 1_000_000),
    "timers": (10_000, 100_000, 1_000_000),
    "clients": (100, 1_000, 10_000),
}
APACHE_TOPICS: Final = 10_000
"""More topics take Apache too long to make."""
DRAWN: Final = {
    "longest wait per second, median, ms": ("wait", 1.0),
    "ready after SIGKILL, s": ("ready", 1_000.0),
}
"""Figures of the picture: the name of the curve, and the factor that makes them milliseconds."""
LEAST_MS: Final = 0.1

Measured = dict[System, dict[int, Figures]]


def one_step(row: str, system: System, count: int, times: Times) -> tuple[Figures, list[Beside]]:
    """Measure one row on a fresh broker."""
    with tempfile.TemporaryDirectory(prefix="cometmq-scale-", ignore_cleanup_errors=True) as directory:
        bench = Bench(system, Path(directory), times)
        try:
            bench.start()
            return ROWS[row](bench, count), bench.beside
        finally:
            bench.close()


def step_table(measured: Measured) -> str:
    """Rows are figures, columns are the steps of each system."""
    columns = [(system, count, found) for system, steps in measured.items() for count, found in steps.items()]
    names = list(dict.fromkeys(name for *_, found in columns for name in found))
    heads = [f"{_NAMES[system]} {count:,}" for system, count, _ in columns]
    rows = [[name, *(_figure(found.get(name)) for *_, found in columns)] for name in names]
    return table(["", *heads], *rows)


_NAMES: Final = {System.APACHE: "Apache", System.APACHE5: "Apache 5", System.COMETMQ: "CometMQ"}


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value.is_integer() else f"{value:.1f}"


def picture(row: str, measured: Mapping[System, Mapping[int, Figures]]) -> str:
    """Waits and starts of each system over the steps, as SVG."""
    steps = sorted({count for found in measured.values() for count in found})
    curves = {
        f"{_NAMES[system]}, {short}": [max(found[count][name] * factor, LEAST_MS) for count in steps if count in found]
        for name, (short, factor) in DRAWN.items()
        for system, found in measured.items()
        if all(name in figures for figures in found.values())
    }
    return plot(steps, curves, f"{row}; milliseconds")


def measure(row: str, wanted: Mapping[System, Sequence[int]], times: Times) -> tuple[Measured, list[Beside]]:
    """All steps of all systems, in turn; one JSON line each."""
    measured: Measured = {system: {} for system in wanted}
    beside: list[Beside] = []
    for count in sorted({count for steps in wanted.values() for count in steps}):
        for system, steps in wanted.items():
            if count in steps:
                measured[system][count], busy = one_step(row, system, count, times)
                beside += busy
                say(row=row, system=system.value, count=count, **measured[system][count])
    return measured, beside


def main() -> None:
    """Measure one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--steps", help="how many, with commas between")
    parser.add_argument("--systems", help="cometmq, apache (4.9.7), apache5 (5.1.4), with commas between")
    parser.add_argument("--apache-most", type=int, help="no larger step for Apache (topics: 10,000)")
    parser.add_argument("--plot", type=Path, help="the picture's file")
    for part in fields(Times):
        parser.add_argument(f"--{part.name}", type=float, default=part.default, help="seconds of this part")
    options = parser.parse_args()
    steps = tuple(map(int, options.steps.split(","))) if options.steps else STEPS[options.row]
    most = options.apache_most or (APACHE_TOPICS if options.row == "topics" else max(steps))
    peer = System.APACHE5 if options.row == "timers" else System.APACHE
    systems = [System(name) for name in options.systems.split(",")] if options.systems else [peer, System.COMETMQ]
    wanted = {system: [one for one in steps if system is System.COMETMQ or one <= most] for system in systems}
    times = Times(**{part.name: getattr(options, part.name) for part in fields(Times)})
    more_descriptors()
    load, before = os.getloadavg()[0], look_before()
    measured, beside = measure(options.row, wanted, times)
    print(f"\n{verdict(load, before, beside)}\n\n{step_table(measured)}")
    if options.plot:
        options.plot.write_text(picture(options.row, measured), encoding="utf-8")


if __name__ == "__main__":
    main()
