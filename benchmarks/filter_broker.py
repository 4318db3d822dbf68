"""SQL92 pulls at the broker beside Apache RocketMQ 4.9.7: messages scanned a second, three terms, 10 % match.

    python benchmarks/filter_broker.py [--rounds 5] [--messages 300000] [--cases 1,2,3,4,5] [--systems apache,cometmq]

Each system runs alone on its own store; messages of 1 KB with seven properties lie in four queues and are pulled
32 at a time, as Java's consumers do. Before each drain a drain with another expression warms the JVM. Every drain
has an expression of its own, so that nothing of an earlier one is remembered, except in the last case, where two
consumers at each queue have the same. CPU seconds are those of the broker for a million messages. Prints one JSON
line a figure and a Markdown table at the end. Compare the ratios only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.broker import JAVA_MEASURED_OPTIONS, mqload  # noqa: E402
from tests.interop import systems  # noqa: E402
from tests.interop.systems import Server, System  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
WARM_DRAINS = 4


@dataclass(frozen=True)
class Case:
    """One row of the table; ``{}`` in the expression stands for a number that is new each time."""

    name: str
    topic: str
    queues: int
    expression: str
    readers: int = 1


TEXTS = "region = 'r3' AND amount >= 0 AND kind IN ('buy', 'sell', 'hold', 'x{}')"
NUMBERS = "amount >= 500 AND amount < 600 AND region <> 'x{}'"
CASES = (
    Case("one connection, text first", "One", 1, TEXTS),
    Case("one connection, numbers first", "One", 1, NUMBERS),
    Case("4 connections, 4 queues, text first", "Four", 4, TEXTS),
    Case("4 connections, 4 queues, numbers first", "Four", 4, NUMBERS),
    Case("8 connections, 4 queues, two consumers alike", "Four", 4, TEXTS, readers=2),
)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def fill(broker: Server, messages: int) -> None:
    """Put as many messages into each of both topics."""
    for topic, queues in (("One", 1), ("Four", 4)):
        sent = 0
        while sent < messages:
            sent += int(
                mqload(
                    "send", broker.port, "-c", "16", "-w", "16", "-s", "3", "-b", "1024", "-t", topic,
                    "-q", str(queues), "-f",
                )["messages"]
            )  # fmt: skip


def drain(broker: Server, case: Case, number: int) -> dict[str, Any]:
    """Pull everything once."""
    before = cpu_seconds(broker.pid)
    result = mqload(
        "pull", broker.port, "-t", case.topic, "-q", str(case.queues), "-R", str(case.readers), "-s", "120",
        "-x", case.expression.format(number),
    )  # fmt: skip
    if result["failures"] or not result["messages"]:
        raise RuntimeError(f"{case.name}: {result}")
    used = cpu_seconds(broker.pid) - before
    return {"per_s": result["per_s"], "cpu_s_per_million": used / result["messages"] * 1e6}


def measure(system: System, cases: Sequence[Case], rounds: int, messages: int) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Some cases of one system."""
    directory = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
    settings = {"flushDiskType": "ASYNC_FLUSH", "enablePropertyFilter": "true"}
    try:
        with (
            systems.start_namesrv(system, directory / "namesrv") as names,
            systems.start_broker(
                system, directory / "broker", names.address, settings, java_options=JAVA_MEASURED_OPTIONS
            ) as broker,
        ):
            fill(broker, messages)
            number = 0
            for case in cases:
                for turn in range(WARM_DRAINS + rounds):
                    number += 1
                    result = drain(broker, case, number)
                    if turn >= WARM_DRAINS:
                        yield case, result
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def numbered(text: str) -> list[Case]:
    """The cases of numbers such as ``4,5``."""
    return [CASES[int(number) - 1] for number in text.split(",")]


def main() -> None:
    """Each system, then the table of medians."""
    rows = "; ".join(f"{number}: {case.name}" for number, case in enumerate(CASES, 1))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--cases", type=numbered, default=list(CASES), help=f"rows of the table: {rows}")
    parser.add_argument("--systems", default="apache,cometmq", help="one of these or both")
    options = parser.parse_args()
    chosen = [System(name) for name in options.systems.split(",")]
    figures: dict[tuple[str, System], list[dict[str, Any]]] = {}
    for system in chosen:
        for case, result in measure(system, options.cases, options.rounds, options.messages):
            figures.setdefault((case.name, system), []).append(result)
            print(json.dumps({"system": system.value, "case": case.name} | result), flush=True)
    if set(chosen) == {System.APACHE, System.COMETMQ}:
        print_table(options.cases, figures)


def print_table(cases: Sequence[Case], figures: dict[tuple[str, System], list[dict[str, Any]]]) -> None:
    """Medians of both systems, in Markdown."""
    print("\n| case | Apache | CometMQ | ratio | CPU s per million, Apache | CometMQ |\n|---|---|---|---|---|---|")
    for case in cases:
        (theirs, their_cpu), (ours, our_cpu) = (
            (
                statistics.median(result["per_s"] for result in figures[case.name, system]),
                statistics.median(result["cpu_s_per_million"] for result in figures[case.name, system]),
            )
            for system in (System.APACHE, System.COMETMQ)
        )
        print(
            f"| {case.name} | {theirs:,.0f}/s | {ours:,.0f}/s | {ours / theirs:.2f} × "
            f"| {their_cpu:.2f} | {our_cpu:.2f} |"
        )


if __name__ == "__main__":
    main()
