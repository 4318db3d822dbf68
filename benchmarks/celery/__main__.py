"""Measures Celery with Redis, RabbitMQ and CometMQ as its broker, in turn, with the same application and settings.

    python -m benchmarks.celery [--rounds 3] [--tasks 5000] [--only redis rabbitmq cometmq]
    python -m benchmarks.celery --read LINES    the tables of lines that earlier runs printed
    python -m benchmarks.celery.kills --kills 100    kills of workers and of the broker

Tasks do nothing but note when they begin. They are acknowledged when they have ended (``acks_late``), and no results
are kept. Each broker runs alone, fresh, on one node.

* *sent*: one producer sends one task after the other with ``apply_async``.
* *run*: these tasks wait for a worker that has started; the time is from the first begin to the last.
* *one task*: from ``apply_async`` to the begin of the task in a worker that has nothing else to do.
* *times*: tasks with an ``eta``, 500 a second: how late they begin.

Processor time is that of a process with all its children.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.celery.cases import Bench, Given
from benchmarks.celery.report import read, report
from benchmarks.machine import look_before
from benchmarks.rounds import in_turn, say
from tests.interop.builds import ToolMissingError
from tests.interop.celery.brokers import BROKERS, started


def one_round(key: str, given: Given) -> Iterator[dict[str, Any]]:
    """All cases on a fresh broker."""
    with tempfile.TemporaryDirectory(prefix="cometmq-celery-") as name, started(key, Path(name) / "broker") as broker:
        yield {"broker": key, "version": broker.version(), "settings": broker.settings}
        for line in Bench(broker, Path(name), given).all():
            yield {"broker": key, **line}


def compare(keys: Sequence[str], rounds: int, given: Given) -> list[dict[str, Any]]:
    """All brokers in turn; prints and returns the lines."""
    lines: list[dict[str, Any]] = []

    def tell(**line: Any) -> None:
        say(**line)
        lines.append(line)

    before = look_before()
    tell(rounds=rounds, tasks=given.tasks, before=str(before), load=os.getloadavg()[0], quiet=before.quiet)
    for number, key in in_turn(keys, rounds):
        try:
            for line in one_round(key, given):
                tell(round=number, **line)
        except ToolMissingError as problem:
            tell(round=number, broker=key, missing=str(problem))
        except (OSError, RuntimeError, TimeoutError) as problem:
            tell(round=number, broker=key, broke=str(problem)[-1500:])
    return lines


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=5000, help="of each case")
    parser.add_argument("--timed", type=int, default=10000, help="tasks with a time")
    parser.add_argument("--single", type=int, default=300, help="tasks that are sent one by one to an idle worker")
    parser.add_argument("--cases", nargs="+", help="only cases whose name begins with one of these words")
    parser.add_argument("--only", nargs="+", choices=list(BROKERS), default=["redis", "rabbitmq", "cometmq"])
    parser.add_argument("--read", type=Path, help="lines of JSON of earlier runs, instead of a run")
    given = parser.parse_args()
    if given.read:
        lines = read(given.read.read_text(encoding="utf-8"))
    else:
        chosen = Given(given.tasks, given.timed, given.single, tuple(given.cases or ()))
        lines = compare(given.only, given.rounds, chosen)
    print(f"\n{report(lines)}")


if __name__ == "__main__":
    main()
