"""Measures the cases of benchmarks/spark, which starts it for each kind of session; one JSON line for each run.

    python -m benchmarks.spark.session plain|tuned [--cases read,place,…] [--messages 600000] [--size 1024]
                                                   [--queues 8] [--rounds 5] [--without-kafka]

Both sides, and a source of constants as the limit, run in one Spark, one after the other and each first in turn; round
0 is not for the table (cold workers, cold code). Before a run, outside of its time, what the run before has written is
deleted and the disks are flushed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.machine import Beside, CpuTimes, ended_by_signals
from benchmarks.spark.cpu_meter import CpuMeter
from benchmarks.spark.sides import (
    SESSIONS,
    CometSide,
    ConstantsSide,
    KafkaSide,
    Side,
    keep_byte_code,
    prepare_class_path,
    remove,
)
from pyspark.sql import Observation
from pyspark.sql.functions import count, lit

from cometmq.spark.jobs.archive.from_store import archive_store
from cometmq.spark.jobs.archive.job import archive

FILES: Final = 4
STREAM_BATCH: Final = 200_000
ARCHIVE_BATCH: Final = 1_000_000
IDLE_QUEUES: Final = 16
IDLE_BATCHES: Final = 8
IDLE_WARM: Final = 2
STREAMS: Final = 16
"""Streams of one driver in a case, each of a topic's sixteenth."""
Check = Callable[[], int]
"""Counts the rows of a run that is over."""
Start = Callable[[], Check]
"""The part that is timed."""


@dataclass
class Bench:
    """The session and the files that the cases work on; each case prepares a run, and gives the part that is timed."""

    spark: Any
    place: Path
    source: Path
    """Rows to write, in Parquet files: ``body``, ``tags``, ``keys``."""
    queues: int
    topics: dict[str, str] = field(default_factory=dict)
    """The filled topic of each side."""
    shares: dict[str, str] = field(default_factory=dict)
    """A topic of each side that has a share of the rows, for many streams at once."""
    written: list[tuple[Side, str]] = field(default_factory=list)
    """Topics that the run before has made."""

    def clean(self) -> None:
        """Delete what the run before has written, and let the disks come to rest."""
        remove(self.place / "run")
        while self.written:
            side, topic = self.written.pop()
            side.delete(topic)
        os.sync()

    def rows(self) -> Any:
        """The rows to write."""
        return self.spark.read.parquet(str(self.source))

    def read(self, side: Side, *, columns: bool = True) -> Start:
        """Make every row with all its columns, counted on its way into noop."""

        def start() -> Check:
            seen = Observation()
            frame = side.read(self.spark, self.topics[side.name], columns=columns)
            frame.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
            return lambda: int(seen.get["rows"])

        return start

    def stream(self, side: Side, most: int | None, sink: str = "noop", *, seven: bool = False) -> Start:
        """Stream until all is read, into noop or Spark's Parquet files."""

        def start() -> Check:
            options = {"checkpointLocation": str(self.place / "run" / "checkpoint")}
            if sink == "parquet":
                options["path"] = str(self.place / "run" / "lake")
            frame = side.stream(self.spark, self.topics[side.name], most, seven=seven)
            query = frame.writeStream.format(sink).options(**options).trigger(availableNow=True).start()
            query.awaitTermination()
            if sink == "parquet":
                return self._parquet_rows
            return lambda: sum(progress["numInputRows"] for progress in query.recentProgress)

        return start

    def streams(self, side: Side, count: int) -> Start:
        """So many streams at once, each into noop and of all rows of the small topic."""

        def start() -> Check:
            queries = []
            for number in range(count):
                frame = side.stream(self.spark, self.shares[side.name], None)
                place = str(self.place / "run" / f"checkpoint-{number}")
                writer = frame.writeStream.format("noop").option("checkpointLocation", place)
                queries.append(writer.trigger(availableNow=True).start())
            for query in queries:
                query.awaitTermination()
            return lambda: sum(one["numInputRows"] for query in queries for one in query.recentProgress)

        return start

    def fill_share(self, side: Side, rows: int) -> None:
        """Make the small topic of a side."""
        self.shares[side.name] = side.create(self.queues)
        side.write(self.rows().limit(rows), self.shares[side.name])

    def archive(self, side: CometSide) -> Start:
        """Our archive job."""
        run = self.place / "run"

        def start() -> Check:
            topic = self.topics[side.name]
            options: dict[str, Any] = {"max_offsets_per_trigger": ARCHIVE_BATCH, "spark": self.spark}
            archive(side.deployment.address, topic, run / "lake", run / "checkpoint", **options)
            return self._parquet_rows

        return start

    def archive_store(self, side: CometSide) -> Start:
        """Our archive job from the store."""

        def start() -> Check:
            options: dict[str, Any] = {"topics": self.topics[side.name], "spark": self.spark}
            archive_store(side.store, self.place / "run" / "lake", broker_name="broker-a", **options)
            return self._parquet_rows

        return start

    def write(self, side: Side, **guarantee: Any) -> Start:
        """Batch write to a new topic."""
        topic = side.create(self.queues)
        self.written.append((side, topic))

        def start() -> Check:
            side.write(self.rows(), topic, **guarantee)
            return lambda: side.stored(topic)

        return start

    def _parquet_rows(self) -> int:
        """Rows of all Parquet files of the run."""
        return sum(pq.ParquetFile(path).metadata.num_rows for path in (self.place / "run").rglob("*.parquet"))

    def demand_same(self, side: Side) -> None:
        """Demand that a side gives back every body of the source."""
        want = self.rows().selectExpr("count(*)", "bit_xor(xxhash64(body))").first()
        body = "value" if side.name == "Kafka" else "body"
        frame = side.read(self.spark, self.topics[side.name])
        assert frame.selectExpr("count(*)", f"bit_xor(xxhash64({body}))").first() == want, side.name


ONE: Final = "one"
MANY: Final = "sixteen"
CASES: Final[Mapping[str, Callable[[Bench, Any], Start]]] = {
    "read": lambda bench, side: bench.read(side),
    "place": lambda bench, side: bench.read(side, columns=False),
    "stream": lambda bench, side: bench.stream(side, None),
    "batches": lambda bench, side: bench.stream(side, STREAM_BATCH),
    ONE: lambda bench, side: bench.streams(side, 1),
    MANY: lambda bench, side: bench.streams(side, STREAMS),
    "parquet": lambda bench, side: bench.stream(side, ARCHIVE_BATCH, "parquet"),
    "seven": lambda bench, side: bench.stream(side, ARCHIVE_BATCH, "parquet", seven=True),
    "archive": lambda bench, side: bench.archive(side),
    "store": lambda bench, side: bench.archive_store(side),
    "write": lambda bench, side: bench.write(side),
    "effectively": lambda bench, side: bench.write(side, guarantee="effectively-once"),
    "exactly": lambda bench, side: bench.write(side, guarantee="exactly-once"),
}
IDLE: Final = "idle"
OURS_ONLY: Final = ("seven", "archive", "store", "effectively", "exactly")
LIMITED: Final = ("read", "place", "stream", "batches", "parquet", "seven", "write")
"""Cases that the source of constants has, too."""
ALIKE: Final = ("effectively", "exactly")
"""Cases that need no round 0: almost all their code is that of ``write``."""
IN_TURN: Final = (
    ("read",),
    ("place",),
    ("stream",),
    ("batches",),
    (ONE, MANY),
    ("parquet", "seven", "archive", "store"),
    (IDLE,),
    ("write", "effectively", "exactly"),
)
"""Cases whose runs take turns, both sides of each; writes come last, since they fill the page cache."""


def idle(bench: Bench, side: Side, meter: CpuMeter) -> tuple[float, dict[str, float]]:
    """Micro-batches with one message each: the median of their seconds, and what one costs."""
    topic = side.create(IDLE_QUEUES)
    bench.written.append((side, topic))
    writer = side.stream(bench.spark, topic, None, latest=True).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(bench.place / "run" / "checkpoint")).start()
    cpu: dict[str, float] = {}
    for number in range(IDLE_WARM + IDLE_BATCHES):
        query.processAllAvailable()
        if number == IDLE_WARM:
            cpu = meter.seconds()
        side.send(topic, number % IDLE_QUEUES)
    query.processAllAvailable()
    cpu = {kind: (now - cpu.get(kind, 0.0)) / IDLE_BATCHES for kind, now in meter.seconds().items()}
    query.stop()
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(progress["numInputRows"] for progress in batches) == IDLE_WARM + IDLE_BATCHES
    return statistics.median(one["durationMs"]["triggerExecution"] / 1000 for one in batches[IDLE_WARM:]), cpu


def _has(side: str, case: str) -> bool:
    if side == ConstantsSide.name:
        return case in LIMITED
    return case not in OURS_ONLY or side != KafkaSide.name


@dataclass(frozen=True)
class Session:
    """A kind of session with both sides, and what tells what its runs cost."""

    name: str
    bench: Bench
    sides: Mapping[str, Side]
    meter: CpuMeter
    messages: int

    def rows(self, case: str) -> int:
        """The rows that a case must see."""
        if case not in (ONE, MANY):
            return self.messages
        return self.messages // STREAMS * (STREAMS if case == MANY else 1)

    def measure(self, cases: Sequence[str], rounds: int) -> None:
        """Let cases take turns, and tell each run."""
        runs = [(case, side) for case in cases for side in self.sides if _has(side, case)]
        for number in range(rounds + 1):
            first = number % max(len(runs), 1)
            for case, side in runs[first:] + runs[:first]:
                if case in ALIKE and not number:
                    continue
                self.bench.clean()
                figures = self._idle(side) if case == IDLE else self._run(case, side)
                names = {"case": case, "session": self.name, "side": side, "round": number}
                print(json.dumps(names | figures), flush=True)

    def _run(self, case: str, side: str) -> dict[str, Any]:
        start = CASES[case](self.bench, self.sides[side])
        machine, cpu, began = CpuTimes.now(), self.meter.seconds(), time.perf_counter()
        check = start()
        seconds = time.perf_counter() - began
        after, now = self.meter.seconds(), CpuTimes.now()
        spent = {kind: value - cpu.get(kind, 0.0) for kind, value in after.items()}
        rows = check()
        if rows != self.rows(case):
            raise SystemExit(f"{case}, {side}: {rows} rows, not {self.rows(case)}")
        beside = Beside.between(machine, now, sum(spent.values()))
        figures = {"seconds": round(seconds, 3), "rows": rows, "cpu_seconds": self._own(spent, side)}
        return figures | {"others": round(beside.others, 3), "steal": round(beside.steal, 3)}

    def _idle(self, side: str) -> dict[str, Any]:
        seconds, cpu = idle(self.bench, self.sides[side], self.meter)
        return {"seconds": round(seconds, 3), "batches": IDLE_BATCHES, "cpu_seconds": self._own(cpu, side)}

    def _own(self, cpu: Mapping[str, float], side: str) -> dict[str, float]:
        """Without the broker of the other side."""
        others = self.sides.keys() - {side}
        return {kind: round(seconds, 3) for kind, seconds in cpu.items() if kind not in others}


def write_source(place: Path, messages: int, size: int, random_bytes: int | None = None) -> None:
    """Parquet files of bodies, a tag and a key each; of a body, ``random_bytes`` (all) do not compress."""
    random = np.random.default_rng(1)
    random_bytes = size if random_bytes is None else random_bytes
    place.mkdir()
    for number in range(FILES):
        first, end = messages * number // FILES, messages * (number + 1) // FILES
        offsets = pa.py_buffer(np.arange(0, (end - first) * size + 1, size, dtype=np.int32))
        bodies = np.full((end - first, size), ord(" "), np.uint8)
        bodies[:, :random_bytes] = np.frombuffer(random.bytes((end - first) * random_bytes), np.uint8).reshape(
            end - first, random_bytes
        )
        table = pa.table(
            {
                "body": pa.Array.from_buffers(pa.binary(), end - first, [None, offsets, pa.py_buffer(bodies)]),
                "tags": pa.array([f"Tag{n % 3}" for n in range(first, end)]),
                "keys": pa.array([f"key-{n}" for n in range(first, end)]),
            }
        )
        pq.write_table(table, place / f"{number}.parquet", compression="none", row_group_size=50_000)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of both commands."""
    every = [*CASES, IDLE]
    parser.add_argument("--cases", default=",".join(every), help=f"some of {','.join(every)}")
    parser.add_argument("--messages", type=int, default=600_000, help="in the topic, and written by each run")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5, help="for the medians, after one that is not counted")
    parser.add_argument("--without-kafka", action="store_true")


def demand_cases(parser: argparse.ArgumentParser, named: str) -> list[str]:
    """The cases asked for; ends the command when there is no such case."""
    wanted = named.split(",")
    if unknown := set(wanted) - {*CASES, IDLE}:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join([*CASES, IDLE])}")
    return wanted


def main() -> None:
    """Start both brokers, fill a topic of each, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("session", choices=sorted(SESSIONS))
    arguments(parser)
    options = parser.parse_args()
    wanted = demand_cases(parser, options.cases)
    keep_byte_code()
    if not options.without_kafka:
        prepare_class_path()
    with ended_by_signals(), ExitStack() as undo:
        place = Path(tempfile.mkdtemp(prefix="cometmq-bench-spark-"))
        undo.callback(remove, place)
        write_source(place / "source", options.messages, options.size)
        # Spark's workers import the source of constants
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        spark = SESSIONS[options.session]()
        undo.callback(spark.stop)
        comet = CometSide(place / "cometmq")
        undo.callback(comet.close)
        sides: dict[str, Side] = {comet.name: comet}
        if not options.without_kafka:
            kafka = KafkaSide(place / "kafka", spark._jvm)
            undo.callback(kafka.close)
            sides = {kafka.name: kafka, comet.name: comet}
        bench = Bench(spark, place, place / "source", options.queues)
        meter = CpuMeter()
        for side in sides.values():
            meter.brokers |= dict.fromkeys(side.pids, side.name)
            bench.topics[side.name] = side.create(options.queues)
            side.fill(spark, bench.source, bench.topics[side.name])
            bench.demand_same(side)
            if {ONE, MANY} & set(wanted):
                bench.fill_share(side, options.messages // STREAMS)
        limit = ConstantsSide(spark, place / "constants", comet, bench.topics[comet.name], options.messages)
        sides[limit.name] = limit
        bench.topics[limit.name] = ""
        meter.watch()
        session = Session(options.session, bench, sides, meter, options.messages)
        for group in IN_TURN:
            session.measure([case for case in group if case in wanted], options.rounds)


if __name__ == "__main__":
    main()
