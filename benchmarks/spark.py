"""Measures Spark with CometMQ beside Spark with Apache Kafka, broker included, on the same machine and messages.

    python benchmarks/spark.py [--cases read,place,…] [--messages 400000] [--size 1024] [--queues 8] [--rounds 3]
                               [--without-kafka]

==============  ================================================================================================
``decode``      records to Arrow columns on one core, without broker and Spark
``read``        batch read of all columns into Spark's ``noop`` sink
``place``       the same of queue, offset and time only
``stream``      a stream of all columns into ``noop``, all messages in one micro-batch
``batches``     the same in micro-batches of 200,000
``parquet``     a stream of all columns into Spark's Parquet sink
``archive``     our archive job, from the broker, beside Kafka's stream into Spark's Parquet sink
``store``       our archive job from the broker's store directory, beside the same
``idle``        a micro-batch of one message on a topic of 16 queues (``triggerExecution``)
``write``       batch write from Parquet, at least once, every message acknowledged
``effectively`` our guarantee ``effectively-once`` beside ``at-least-once``
``exactly``     our guarantee ``exactly-once`` beside ``at-least-once``
``memory``      peak memory of Spark's Python workers after reading a quarter of the topic, and all of it
==============  ================================================================================================

Spark runs as ``local[2]`` in one JVM for both, which take turns; the first round of each is thrown away (cold workers,
cold code), and medians of the others are told. Messages have random bodies and a key, ours a tag too; the topics are
filled through the sinks that are measured, and both brokers must give back the bodies of the source (count and hash)
before anything is timed. The rows of every timed run are counted: by an observer between scan and sink, which sees
them with all their columns, by the progress of streams, by the files, or by
the brokers' offsets where it writes. Compression is what each has unasked: Kafka's Parquet is snappy, our archive zstd.

``CPU`` is the time of all processes (Spark, its Python workers, broker) for a million rows: the figure to trust on a
machine that is busy with other things. One JSON line for each round, and a Markdown table at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Observation
from pyspark.sql.functions import count, lit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.process_cost import CpuMeter, peak_worker_mb  # noqa: E402
from benchmarks.spark_sides import CometSide, KafkaSide, Side, prepare_class_path, remove  # noqa: E402

from cometmq.message.hosts import encode_host  # noqa: E402
from cometmq.message.record import encode_record  # noqa: E402
from cometmq.spark.archive import archive  # noqa: E402
from cometmq.spark.archive_store import archive_store  # noqa: E402
from cometmq.spark.columns import COLUMNS, arrow_schema  # noqa: E402
from cometmq.spark.decode import Records, decode  # noqa: E402
from cometmq.spark.environment import local_session  # noqa: E402

FILES = 4
STREAM_BATCH = 200_000
ARCHIVE_BATCH = 1_000_000
IDLE_QUEUES = 16
IDLE_BATCHES = 15
IDLE_WARM = 5
Check = Callable[[], int]
"""Counts the rows of a run that is over."""


@dataclass
class Bench:
    """What the cases work on."""

    spark: Any
    place: Path
    source: Any
    """Rows to write: ``body``, ``tags``, ``keys``."""
    queues: int
    topics: dict[str, str] = field(default_factory=dict)
    """The filled topic of each side."""

    def read(self, side: Side, *, columns: bool) -> Check:
        """Batch read into noop."""
        return self.count(side.read(self.spark, self.topics[side.name], columns=columns))

    def count(self, frame: Any) -> Check:
        """Make every row with all its columns, counted on its way into noop."""
        seen = Observation()
        frame.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        return lambda: int(seen.get["rows"])

    def stream(self, side: Side, most: int | None) -> Check:
        """Stream into noop until all is read."""
        return self._to_end(side.stream(self.spark, self.topics[side.name], most), "noop")

    def parquet(self, side: Side) -> Check:
        """Stream into Spark's Parquet files."""
        directory = self.place / "parquet"
        remove(directory)
        frame = side.stream(self.spark, self.topics[side.name], ARCHIVE_BATCH)
        self._to_end(frame, "parquet", path=str(directory))
        return lambda: parquet_rows(directory)

    def archive(self, side: CometSide) -> Check:
        """Our archive job."""
        lake = self.place / "lake"
        checkpoint = self.place / "lake-checkpoint"
        remove(lake)
        remove(checkpoint)
        address = side.deployment.address
        archive(
            address,
            self.topics[side.name],
            lake,
            checkpoint,
            max_offsets_per_trigger=ARCHIVE_BATCH,
            spark=self.spark,
        )
        return lambda: parquet_rows(lake)

    def archive_store(self, side: CometSide) -> Check:
        """Our archive job from the store."""
        lake = self.place / "lake"
        remove(lake)
        archive_store(side.store, lake, broker_name="broker-a", topics=self.topics[side.name], spark=self.spark)
        return lambda: parquet_rows(lake)

    def write(self, side: Side, **guarantee: Any) -> Check:
        """Batch write to a new topic."""
        topic = side.create(self.queues)
        side.write(self.source, topic, **guarantee)
        return lambda: side.stored(topic)

    def _to_end(self, frame: Any, sink: str, **options: str) -> Check:
        checkpoint = self.place / "checkpoint"
        remove(checkpoint)
        writer = frame.writeStream.format(sink).options(checkpointLocation=str(checkpoint), **options)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return lambda: sum(progress["numInputRows"] for progress in query.recentProgress)

    def idle(self, side: Side) -> list[float]:
        """Seconds of micro-batches with one message each."""
        topic = side.create(IDLE_QUEUES)
        checkpoint = self.place / "checkpoint"
        remove(checkpoint)
        writer = side.stream(self.spark, topic, None, latest=True).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        for number in range(IDLE_WARM + IDLE_BATCHES):
            query.processAllAvailable()
            side.send(topic, number % IDLE_QUEUES)
        query.processAllAvailable()
        query.stop()
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        assert sum(progress["numInputRows"] for progress in batches) == IDLE_WARM + IDLE_BATCHES
        return [progress["durationMs"]["triggerExecution"] / 1000 for progress in batches[IDLE_WARM:]]

    def demand_same(self, side: Side, body: str) -> None:
        """Demand that a side gives back every body of the source."""
        want = self.source.selectExpr("count(*)", "bit_xor(xxhash64(body))").first()
        frame = side.read(self.spark, self.topics[side.name])
        assert frame.selectExpr("count(*)", f"bit_xor(xxhash64({body}))").first() == want, side.name


@dataclass(frozen=True)
class Case:
    """One row of the table: what is timed of the yardstick and of ours, and what we ask of the ratio."""

    name: str
    title: str
    yardstick: Callable[[Bench, Any], Check]
    ours: Callable[[Bench, CometSide], Check]
    beside: str = "Kafka"


CASES = (
    Case("read", "batch read, all columns", lambda b, s: b.read(s, columns=True), lambda b, s: b.read(s, columns=True)),
    Case(
        "place",
        "batch read of queue, offset and time",
        lambda b, s: b.read(s, columns=False),
        lambda b, s: b.read(s, columns=False),
    ),
    Case("stream", "stream, one large batch", lambda b, s: b.stream(s, None), lambda b, s: b.stream(s, None)),
    Case(
        "batches",
        f"stream, batches of {STREAM_BATCH:,}",
        lambda b, s: b.stream(s, STREAM_BATCH),
        lambda b, s: b.stream(s, STREAM_BATCH),
    ),
    Case("parquet", "stream to Spark's Parquet sink", lambda b, s: b.parquet(s), lambda b, s: b.parquet(s)),
    Case("archive", "archive from a broker", lambda b, s: b.parquet(s), lambda b, s: b.archive(s)),
    Case("store", "archive from a store directory", lambda b, s: b.parquet(s), lambda b, s: b.archive_store(s)),
    Case("write", "batch write, at-least-once", lambda b, s: b.write(s), lambda b, s: b.write(s)),
    Case(
        "effectively",
        "effectively-once beside at-least-once",
        lambda b, s: b.write(s),
        lambda b, s: b.write(s, guarantee="effectively-once"),
        beside="CometMQ",
    ),
    Case(
        "exactly",
        "exactly-once beside at-least-once",
        lambda b, s: b.write(s),
        lambda b, s: b.write(s, guarantee="exactly-once"),
        beside="CometMQ",
    ),
)
OTHERS = ("decode", "idle", "memory")


def tell(case: str, **figures: Any) -> None:
    """One line."""
    print(json.dumps({"case": case} | figures), flush=True)


def properties(number: int) -> str:
    """What a producer's properties look like."""
    return f"KEYS\x01key-{number}\x02UNIQ_KEY\x017F00000100000000000000{number:010X}\x02TAGS\x01Tag{number % 3}\x02"


def measure_decode(size: int) -> None:
    """Rows a second of one core, without broker and Spark."""
    pool = [os.urandom(size) for _ in range(512)]
    count = 4_000_000 // (size + 250)
    data = b"".join(
        encode_record(
            topic="orders",
            queue_id=n % 8,
            queue_offset=n,
            physical_offset=n * 1200,
            body=pool[n % 512],
            properties_text=properties(n),
            born_timestamp=1_700_000_000_000 + n,
            born_host=encode_host("127.0.0.1", 50_000 + n % 16),
            store_timestamp=1_700_000_000_001 + n,
            store_host=encode_host("127.0.0.1", 10_911),
        )
        for n in range(count)
    )
    every = [column.name for column in COLUMNS if column.default]
    for name, columns in (("all columns", every), ("fixed columns", ["queueId", "queueOffset", "storeTimestamp"])):
        schema = arrow_schema(columns)
        seconds = []
        for _ in range(15):
            began = time.process_time()
            list(decode(Records(data), schema, broker_name="broker-a"))
            seconds.append(time.process_time() - began)
        tell(f"decode, {name}", rows_per_cpu_s=round(count / statistics.median(seconds)), body_bytes=size)


def write_source(place: Path, messages: int, size: int) -> None:
    """Parquet files of random bodies, a tag and a key each."""
    random = np.random.default_rng(1)
    place.mkdir()
    for number in range(FILES):
        first, end = messages * number // FILES, messages * (number + 1) // FILES
        offsets = pa.py_buffer(np.arange(0, (end - first) * size + 1, size, dtype=np.int32))
        bodies = pa.py_buffer(random.bytes((end - first) * size))
        table = pa.table(
            {
                "body": pa.Array.from_buffers(pa.binary(), end - first, [None, offsets, bodies]),
                "tags": pa.array([f"Tag{n % 3}" for n in range(first, end)]),
                "keys": pa.array([f"key-{n}" for n in range(first, end)]),
            }
        )
        pq.write_table(table, place / f"{number}.parquet", compression="none", row_group_size=50_000)


def parquet_rows(directory: Path) -> int:
    """Rows of all Parquet files below a directory."""
    return sum(pq.ParquetFile(path).metadata.num_rows for path in directory.rglob("*.parquet"))


def measure(bench: Bench, case: Case, sides: dict[str, Side], messages: int, rounds: int) -> list[str]:
    """Take turns; the cells of the case's row."""
    comet: Any = sides["CometMQ"]
    runs: dict[str, Callable[[], Check]] = {}
    if case.beside in sides:
        runs["yardstick"] = lambda: case.yardstick(bench, sides[case.beside])
    runs["ours"] = lambda: case.ours(bench, comet)
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    meter = CpuMeter()
    for number in range(rounds + 1):
        for name in sorted(runs, reverse=bool(number % 2)):
            cpu, began = meter.seconds(), time.perf_counter()
            check = runs[name]()
            seconds, cpu = time.perf_counter() - began, meter.seconds() - cpu
            rows = check()
            if rows != messages:
                raise SystemExit(f"{case.name}, {name}: {rows} rows, not {messages}")
            tell(case.name, side=name, round=number, seconds=round(seconds, 3), cpu_seconds=round(cpu, 2), rows=rows)
            if number:
                figures[name].append((messages / seconds, cpu * 1_000_000 / messages))
    rate = {name: statistics.median(row[0] for row in found) for name, found in figures.items()}
    cost = {name: statistics.median(row[1] for row in found) for name, found in figures.items()}
    beside = "yardstick" if "yardstick" in runs else None
    return [
        case.title,
        "–" if beside is None else f"{rate[beside] / 1000:,.0f} k rows/s",
        f"{rate['ours'] / 1000:,.0f} k rows/s",
        "–" if beside is None else f"{rate['ours'] / rate[beside]:.2f} ×",
        " / ".join(f"{cost[name]:.1f} s" for name in runs),
    ]


def measure_idle(bench: Bench, sides: dict[str, Side]) -> list[str]:
    """Micro-batches of one message."""
    median = {}
    for side in sides.values():
        median[side.name] = statistics.median(bench.idle(side)) * 1000
        tell("idle", side=side.name, milliseconds=round(median[side.name]), batches=IDLE_BATCHES)
    kafka = f"{median['Kafka']:.0f} ms" if "Kafka" in median else "–"
    share = f"{median['CometMQ'] / median['Kafka']:.2f} × the time" if "Kafka" in median else "–"
    return [f"micro-batch, {IDLE_QUEUES} queues, idle topic", kafka, f"{median['CometMQ']:.0f} ms", share, ""]


def measure_memory(bench: Bench, comet: CometSide, messages: int) -> None:
    """Peak memory of the Python workers, for a part of the topic and for all of it."""
    topic = bench.topics[comet.name]
    quarter = json.dumps({topic: {"broker-a": {str(n): messages // bench.queues // 4 for n in range(bench.queues)}}})
    for part, ending in (("a quarter", quarter), ("all", "latest")):
        reader = bench.spark.read.format("rocketmq").option("endingOffsets", ending)
        rows = bench.count(reader.options(namesrvAddr=comet.deployment.address, topic=topic).load())()
        tell("memory", read=part, rows=rows, megabytes=rows * 1200 // 1_000_000, worker_peak_mb=peak_worker_mb())


def main() -> None:
    """Measure the cases asked for."""
    every = [*OTHERS, *(case.name for case in CASES)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(every), help=f"some of {','.join(every)}")
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-kafka", action="store_true")
    options = parser.parse_args()
    wanted = options.cases.split(",")
    if unknown := set(wanted) - set(every):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    if "decode" in wanted:
        measure_decode(options.size)
    if wanted == ["decode"]:
        return
    if not options.without_kafka:
        prepare_class_path()
    place = Path(tempfile.mkdtemp(prefix="cometmq-bench-spark-"))
    rows: list[list[str]] = []
    with ExitStack() as undo:
        undo.callback(remove, place)
        write_source(place / "source", options.messages, options.size)
        spark = local_session("local[2]", "benchmark")
        undo.callback(spark.stop)
        comet = CometSide(place / "cometmq")
        undo.callback(comet.close)
        sides: dict[str, Side] = {"CometMQ": comet}
        if not options.without_kafka:
            kafka = KafkaSide(place / "kafka", spark._jvm)
            undo.callback(kafka.close)
            sides["Kafka"] = kafka
        bench = Bench(spark, place, spark.read.parquet(str(place / "source")), options.queues)
        for side in sides.values():
            bench.topics[side.name] = side.create(options.queues)
            side.write(bench.source, bench.topics[side.name])
            bench.demand_same(side, "value" if side.name == "Kafka" else "body")
        if "memory" in wanted:
            measure_memory(bench, comet, options.messages)
        chosen = [case for case in CASES if case.name in wanted]
        rows += [measure(bench, case, sides, options.messages, options.rounds) for case in chosen]
        if "idle" in wanted:
            rows.append(measure_idle(bench, sides))
    print(
        "\n| case | yardstick | CometMQ | ratio | CPU for a million rows, yardstick / CometMQ |\n|---|---|---|---|---|"
    )
    for cells in rows:
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
