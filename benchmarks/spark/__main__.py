"""Measures Spark with CometMQ beside Spark with Apache Kafka, broker included, on the same machine and messages.

    python -m benchmarks.spark [--cases read,place,…] [--messages 600000] [--size 1024] [--queues 8] [--rounds 5]
                               [--sessions plain,tuned] [--without-kafka]

==============  ================================================================================================
``read``        batch read of all columns into Spark's ``noop`` sink
``place``       the same of queue, offset and time only
``stream``      a stream of all columns into ``noop``, all messages in one micro-batch
``batches``     the same in micro-batches of 200,000
``one``         a stream of a sixteenth of the messages, in a topic of their own
``sixteen``     sixteen such streams at once in one driver, beside one
``parquet``     a stream of all columns into Spark's Parquet sink (ours 21, a map among them; Kafka's 7)
``seven``       the same of as many columns as Kafka's connector has, of the same meaning, on both sides
``archive``     our archive job, from the broker, beside Kafka's stream into Spark's Parquet sink
``store``       our archive job from the broker's store directory, beside the same
``write``       batch write from Parquet, at least once, every message acknowledged
``effectively`` our guarantee ``effectively-once`` beside ``at-least-once``
``exactly``     our guarantee ``exactly-once`` beside ``at-least-once``
``idle``        a micro-batch of one message on a topic of 16 queues (``triggerExecution``)
==============  ================================================================================================

Everything is measured twice, in processes of their own (``benchmarks/spark/session.py``): in a *plain* session, as
``SparkSession.builder`` makes it, and in the *tuned* one of ``cometmq pipeline``. Both are ``local[2]``. All rows are
of the same number of messages and rounds; a figure is the median of its rounds.

A third side, *constants*, is the limit of every Python source: rows that are ready, and a sink that drops them
(``benchmarks/spark/constants.py``). The column "of constants" has our share of its rate.

Messages have random bodies and a key, ours a tag too. Before anything is timed, the topic of each side is filled by
the system's own producer, message by message, and must give back the bodies of the source (count and hash). The rows
of every timed run are counted: by an observer between scan and sink, which sees them with all their columns, by the
progress of streams, by the files, or by the brokers' offsets where it writes. Compression is what each has unasked:
Spark's Parquet is snappy, our archive zstd.

CPU is the time of all processes for a million rows: Spark's JVM, Python (workers, planners and this driver), and the
side's broker. It is the figure to trust on a machine that is busy with other things. One JSON line for each run, a
Markdown table at the end, and a sentence on how quiet the machine was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.machine import Beside, ended_by_signals, look_before, verdict
from benchmarks.spark.cpu_meter import JVM, PYTHON
from benchmarks.spark.session import IDLE, IDLE_QUEUES, MANY, ONE, STREAM_BATCH, STREAMS, arguments, demand_cases
from benchmarks.spark.sides import SESSIONS

KAFKA: Final = "Kafka"
OURS: Final = "CometMQ"
CPU: Final = "CPU per million rows, baseline / CometMQ"
LIMIT: Final = "constants"
HEADINGS: Final = ("case", "baseline", OURS, "ratio", "of constants", CPU, "CPU of JVM + Python + broker")


@dataclass(frozen=True)
class Row:
    """One row of the table: a case of ours, and what stands beside it."""

    title: str
    case: str
    beside: tuple[str, str]
    """Its case and side."""


ROWS: Final = (
    Row("batch read, all columns", "read", ("read", KAFKA)),
    Row("batch read of queue, offset and time", "place", ("place", KAFKA)),
    Row("stream, one large batch", "stream", ("stream", KAFKA)),
    Row(f"stream, batches of {STREAM_BATCH:,}", "batches", ("batches", KAFKA)),
    Row(f"{STREAMS} streams in one driver", MANY, (MANY, KAFKA)),
    Row(f"{STREAMS} streams beside one of them", MANY, (ONE, OURS)),
    Row("stream to Spark's Parquet sink", "parquet", ("parquet", KAFKA)),
    Row("the same of seven columns on both sides", "seven", ("parquet", KAFKA)),
    Row("archive from a broker", "archive", ("parquet", KAFKA)),
    Row("archive from a store directory", "store", ("parquet", KAFKA)),
    Row("batch write, at-least-once", "write", ("write", KAFKA)),
    Row("effectively-once beside at-least-once", "effectively", ("write", OURS)),
    Row("exactly-once beside at-least-once", "exactly", ("write", OURS)),
    Row(f"micro-batch, {IDLE_QUEUES} queues, idle topic", IDLE, (IDLE, KAFKA)),
)


@dataclass(frozen=True)
class Runs:
    """The rounds of one case on one side in one kind of session."""

    found: Sequence[dict[str, Any]]

    def median(self, figure: Callable[[dict[str, Any]], float]) -> float:
        """Of a figure of each round."""
        return statistics.median(figure(run) for run in self.found)

    @property
    def seconds(self) -> float:
        """Of one run, or of one micro-batch."""
        return self.median(lambda run: run["seconds"])

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.median(lambda run: run["rows"] / run["seconds"])

    def cpu(self, *kinds: str) -> float:
        """CPU seconds of some kinds of processes for a million rows, or of a micro-batch."""
        return self.median(
            lambda run: (
                sum(spent for kind, spent in run["cpu_seconds"].items() if kind in kinds)
                * (1_000_000 / run["rows"] if "rows" in run else 1)
            )
        )

    def kinds(self, digits: int) -> tuple[str, str]:
        """CPU seconds of all processes, and of each kind."""
        every = sorted({kind for run in self.found for kind in run["cpu_seconds"]} - {JVM, PYTHON})
        parts = " + ".join(f"{self.cpu(*kinds):.{digits}f}" for kinds in ((JVM,), (PYTHON,), every))
        return f"{self.cpu(JVM, PYTHON, *every):.{digits}f} s", parts


class Results:
    """All runs that were told, without round 0."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        self.beside: list[Beside] = []
        """The load beside each run."""

    def add(self, told: dict[str, Any]) -> None:
        """Take the line of one run."""
        if not told["round"]:
            return
        self._found.setdefault((told["session"], told["case"], told["side"]), []).append(told)
        if "others" in told:
            self.beside.append(Beside(told["others"], told["steal"]))

    def table(self, sessions: Sequence[str]) -> Iterator[str]:
        """The Markdown table of docs/performance.md, which leaves out the last column."""
        yield f"| {' | '.join(HEADINGS)} |"
        yield "|---" * len(HEADINGS) + "|"
        for row in ROWS:
            for session in sessions:
                if ours := self._found.get((session, row.case, OURS)):
                    yardstick = self._found.get((session, *row.beside))
                    limit = self._found.get((session, row.case, LIMIT))
                    cells = _cells(
                        row, Runs(ours), Runs(yardstick) if yardstick else None, Runs(limit) if limit else None
                    )
                    yield f"| {row.title}, {session} | {' | '.join(cells)} |"


def _cells(row: Row, ours: Runs, yardstick: Runs | None, limit: Runs | None) -> tuple[str, ...]:
    def shown(runs: Runs) -> str:
        return f"{runs.seconds * 1000:,.0f} ms" if row.case == IDLE else f"{runs.rate / 1000:,.0f} k rows/s"

    digits = 3 if row.case == IDLE else 1
    cpu, parts = ours.kinds(digits)
    share = f"{ours.rate / limit.rate:.2f} of {shown(limit)}" if limit else "–"
    if yardstick is None:
        return "–", shown(ours), "–", share, cpu, parts
    ratio = f"{ours.seconds / yardstick.seconds:.2f} × the time"
    if row.case != IDLE:
        ratio = f"{ours.rate / yardstick.rate:.2f} ×"
    cpu_beside, parts_beside = yardstick.kinds(digits)
    of = " for one batch" if row.case == IDLE else ""
    return shown(yardstick), shown(ours), ratio, share, f"{cpu_beside} / {cpu}{of}", f"{parts_beside} / {parts}"


def main() -> None:
    """Measure the cases asked for, in each kind of session."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--sessions", default=",".join(SESSIONS), help=f"some of {','.join(SESSIONS)}")
    options = parser.parse_args()
    demand_cases(parser, options.cases)
    sessions = options.sessions.split(",")
    if unknown := set(sessions) - set(SESSIONS):
        parser.error(f"no session {', '.join(sorted(unknown))}; there are {', '.join(SESSIONS)}")
    given = [f"--{name}={getattr(options, name)}" for name in ("cases", "messages", "size", "queues", "rounds")]
    given += ["--without-kafka"] if options.without_kafka else []
    load, before = os.getloadavg()[0], look_before()
    print(json.dumps({"load_before": round(load, 2), "others": before.others, "steal": before.steal}), flush=True)
    results = Results()
    for session in sessions:
        command = [sys.executable, "-m", "benchmarks.spark.session", session, *given]
        with ended_by_signals(), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            try:
                for line in running.stdout:
                    print(line, end="", flush=True)
                    if line.startswith('{"case"'):
                        results.add(json.loads(line))
            except BaseException:
                running.terminate()
                raise
        if running.returncode:
            raise SystemExit(f"the {session} session ended with {running.returncode}")
    print()
    for line in results.table(sessions):
        print(line)
    size = f"{options.messages:,} messages of {options.size:,} bytes in {options.queues} queues"
    print(f"\n{size}, medians of {options.rounds} rounds. {verdict(load, before, results.beside)}")


if __name__ == "__main__":
    main()
