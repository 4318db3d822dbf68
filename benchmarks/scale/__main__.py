"""Measures how the cost of a broker grows with its size, in steps of ten: topics, offsets, delays, accounts, the log …

    python -m benchmarks.scale topics                      beside Apache RocketMQ, in turn, on this machine
    python -m benchmarks.scale topics --steps 100,1000 --systems cometmq    a short run: 90 seconds
    python -m benchmarks.scale halves --holds              also what holds the event loop, and for how long
    python -m benchmarks.scale --help                      the rows

Each step is a fresh broker, alone, with its default keys; the JVM has a heap of 1 GB. Timers are those of Apache 5.1.4,
the rest is beside 4.9.7; rows without a peer measure CometMQ alone. When the broker is full, one small send every 5 to
10 ms shows how long others wait; the worst of each second counts. The share of a processor is the broker's, with these
sends and without any. "Ready" is the time from the start of the process until a send succeeds. Prints one JSON line a
step and a Markdown table at the end, with a sentence on how quiet the machine was. The last columns are the exponents
of CometMQ's growth, over all steps and over the last; lines below the table name what grows faster than the work.
`--plot FILE.svg` draws waits and starts over the steps.
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
from benchmarks.scale.bench import Bench, Options, Times
from benchmarks.scale.crowd import more_descriptors
from benchmarks.scale.curves import Curve, plot
from benchmarks.scale.growth import more_than_work, slopes
from benchmarks.scale.rows import ROWS, Row
from tests.interop.systems import System

DRAWN: Final = {
    "ready after SIGKILL, s": ("ready after SIGKILL", 1_000.0, True),
    "longest wait per second, median, ms": ("longest wait", 1.0, False),
}
"""Figures of the picture: the name of the curve, the factor that makes them milliseconds, and dashes."""
COLOURS: Final = {System.COMETMQ: "#d55e00", System.APACHE: "#0072b2", System.APACHE5: "#009e73"}
"""Told apart by colour-blind people too (Okabe and Ito)."""
LEAST_MS: Final = 0.1

LONGEST: Final = 8
"""Callbacks of the loop that are named, those that held it longest."""

Measured = dict[System, dict[int, Figures]]


def one_step(row: Row, system: System, count: int, times: Times, *, holds: bool = False) -> tuple[Figures, Bench]:
    """Measure one row on a fresh broker; return the figures, and the bench, which is closed."""
    with tempfile.TemporaryDirectory(prefix="cometmq-scale-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        keys = {key: value.format(directory=directory) for key, value in row.keys.items()}
        bench = Bench(system, directory, times, Options(row.nameservers, keys, holds))
        try:
            if row.prepare is not None:
                row.prepare(directory, count)
            bench.start()
            return row.measure(bench, count), bench
        finally:
            bench.close()


def step_table(measured: Measured) -> str:
    """Rows are figures, columns are the steps of each system."""
    columns = [(system, count, found) for system, steps in measured.items() for count, found in steps.items()]
    names = list(dict.fromkeys(name for *_, found in columns for name in found))
    heads = [f"{_NAMES[system]} {count:,}" for system, count, _ in columns]
    rows = [[name, *(_figure(found.get(name)) for *_, found in columns)] for name in names]
    ours = measured.get(System.COMETMQ, {})
    if len(ours) > 1:
        heads += ["exponent", "of the last step"]
        rows = [[*row, *map(_slope, slopes(ours, row[0]))] for row in rows]
    return table(["", *heads], *rows)


def _slope(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


_NAMES: Final = {System.APACHE: "Apache", System.APACHE5: "Apache 5", System.COMETMQ: "CometMQ"}


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value.is_integer() else f"{value:.1f}"


def picture(row: str, measured: Mapping[System, Mapping[int, Figures]]) -> str:
    """Waits and starts of each system over the steps, as SVG."""
    steps = sorted({count for found in measured.values() for count in found})
    curves = {
        f"{_NAMES[system]}, {short}": Curve(
            [max(found[count][name] * factor, LEAST_MS) for count in steps if count in found], COLOURS[system], dashed
        )
        for name, (short, factor, dashed) in DRAWN.items()
        for system, found in measured.items()
        if all(name in figures for figures in found.values())
    }
    return plot(steps, curves, f"number of {row}", "milliseconds")


def measure(
    row: str, wanted: Mapping[System, Sequence[int]], times: Times, *, holds: bool = False
) -> tuple[Measured, list[Beside]]:
    """All steps of all systems, in turn; one JSON line each."""
    measured: Measured = {system: {} for system in wanted}
    beside: list[Beside] = []
    for count in sorted({count for steps in wanted.values() for count in steps}):
        for system, steps in wanted.items():
            if count in steps:
                measured[system][count], bench = one_step(ROWS[row], system, count, times, holds=holds)
                beside += bench.beside
                say(row=row, system=system.value, count=count, **measured[system][count])
                if bench.holds:
                    say(row=row, count=count, holds_ms=dict(sorted(bench.holds.items(), key=_BY_TIME)[:LONGEST]))
    return measured, beside


def _by_time(hold: tuple[str, float]) -> float:
    return -hold[1]


_BY_TIME: Final = _by_time


def main() -> None:
    """Measure one row."""
    rows = "\n".join(f"{name:10}{row.unit} ({', '.join(map(str, row.steps))})" for name, row in ROWS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=rows, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--steps", help="how many, with commas between")
    parser.add_argument("--systems", help="cometmq, apache (4.9.7), apache5 (5.1.4), with commas between")
    parser.add_argument("--apache-most", type=int, help="no larger step for Apache (topics: 10,000)")
    parser.add_argument("--holds", action="store_true", help="also measure what holds the event loop")
    parser.add_argument("--plot", type=Path, help="the picture's file")
    for part in fields(Times):
        parser.add_argument(f"--{part.name}", type=float, default=part.default, help="seconds of this part")
    options = parser.parse_args()
    row = ROWS[options.row]
    steps = tuple(map(int, options.steps.split(","))) if options.steps else row.steps
    most = options.apache_most or row.most_of_peer
    default = [System.COMETMQ] if row.peer is None else [row.peer, System.COMETMQ]
    systems = [System(name) for name in options.systems.split(",")] if options.systems else default
    wanted = {system: [one for one in steps if system is System.COMETMQ or one <= most] for system in systems}
    times = Times(**{part.name: getattr(options, part.name) for part in fields(Times)})
    more_descriptors()
    load, before = os.getloadavg()[0], look_before()
    measured, beside = measure(options.row, wanted, times, holds=options.holds)
    print(f"\n{verdict(load, before, beside)}\n\n{step_table(measured)}")
    for line in more_than_work(measured.get(System.COMETMQ, {})):
        print(f"more than the work: {line}")
    if options.plot:
        options.plot.write_text(picture(options.row, measured), encoding="utf-8")


if __name__ == "__main__":
    main()
