"""Measures the Spark source, the sink and the archive job. One JSON line a figure.

    python benchmarks/spark.py [--system cometmq|apache] [--messages 1000000] [--size 1024] [--queues 8] [--rounds 3]
                               [--only source|sink]

The broker runs beside Spark on the same machine (``local[2]``), on a fresh store that is filled first with random
bodies, one tag, one key and a unique key each. Every case is repeated and its median taken; the first round of each
is thrown away (cold Python workers). ``decode`` cases need neither broker nor Spark and count one core.
A machine that is busy with other things gives noise: compare only figures of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop.systems import Deployment, System, deploy  # noqa: E402
from tests.spark.topics import Topics  # noqa: E402

from cometmq.message.hosts import encode_host  # noqa: E402
from cometmq.message.record import encode_record  # noqa: E402
from cometmq.spark.archive import archive  # noqa: E402
from cometmq.spark.columns import COLUMNS, arrow_schema  # noqa: E402
from cometmq.spark.decode import Records, decode  # noqa: E402
from cometmq.spark.environment import local_session  # noqa: E402
from cometmq.spark.fetch import Fetcher  # noqa: E402
from cometmq.spark.options import parse_options  # noqa: E402
from cometmq.spark.queues import OffsetRange, Queue  # noqa: E402
from cometmq.spark.sink.options import Guarantee  # noqa: E402

FIXED = "queueId int, queueOffset bigint, storeTimestamp timestamp"
DEFAULT = [column.name for column in COLUMNS if column.default]
STREAM_BATCH = 200_000
IDLE_BATCHES = 15


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
    for name, columns in (("all columns", DEFAULT), ("fixed columns", ["queueId", "queueOffset", "storeTimestamp"])):
        schema = arrow_schema(columns)
        seconds = []
        for _ in range(9):
            began = time.perf_counter()
            list(decode(Records(data), schema, broker_name="broker-a"))
            seconds.append(time.perf_counter() - began)
        tell(f"decode, {name}", rows_per_s=round(count / statistics.median(seconds)), body_bytes=size, cores=1)


def fill(topics: Topics, messages: int, size: int, queues: int) -> str:
    """A topic with random bodies."""
    topic = topics.create(queues)
    pool = [os.urandom(size) for _ in range(512)]
    began = time.perf_counter()
    each = messages // queues
    for queue_id in range(queues):
        topics.send(topic, queue_id, [pool[n % 512] for n in range(each)], properties(queue_id))
    tell("fill", messages_per_s=round(each * queues / (time.perf_counter() - began)))
    return topic


def measure_fetch(topics: Topics, topic: str, messages: int, queues: int, rounds: int) -> None:
    """Pull and decode all columns in this process: what one executor can do without Spark, and the memory it takes."""
    options = parse_options({"namesrvAddr": topics.namesrv, "topic": topic})
    ranges = [OffsetRange(Queue(topic, topics.broker_name, n), 0, messages // queues) for n in range(queues)]
    schema = arrow_schema(DEFAULT)

    def run(_: int) -> None:
        for chunk in Fetcher(options).fetch(ranges):
            for _batch in decode(Records(chunk.data), schema, broker_name=chunk.queue.broker):
                pass

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    repeat("fetch and decode all columns, without Spark", rounds, messages, run)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    tell("memory of a reader", grown_mb=grown)


def measure_sink(topics: Topics, system: System, messages: int, size: int, queues: int, rounds: int) -> None:
    """Write a batch to a topic, every message acknowledged; reading into ``noop`` is what Spark costs alone.

    Rows come from Parquet files with a body, a tag and a key.
    """
    spark = local_session("local[2]", "benchmark")
    place = Path(tempfile.mkdtemp(prefix="cometmq-bench-sink-"))
    rows = spark.range(0, messages, 1, 2).selectExpr(
        f"substring(cast(repeat(sha2(cast(id AS string), 512), {size // 128 + 1}) AS binary), 1, {size}) AS body",
        "concat('Tag', id % 3) AS tags",
        "concat('key-', id) AS keys",
    )
    rows.write.parquet(str(place / "rows"))
    frame = spark.read.parquet(str(place / "rows"))

    def write(guarantee: str, _: int) -> None:
        options = {"namesrvAddr": topics.namesrv, "topic": topics.create(queues), "deliveryGuarantee": guarantee}
        frame.write.format("rocketmq").mode("append").options(**options).save()

    noop = frame.write.format("noop").mode("overwrite")
    repeat("sink, parquet read into noop", rounds, messages, lambda _: noop.save())
    for guarantee in Guarantee:
        if system is System.COMETMQ or guarantee is not Guarantee.EXACTLY_ONCE:
            repeat(f"sink, {guarantee.value}", rounds, messages, partial(write, guarantee.value))
    spark.stop()
    shutil.rmtree(place, ignore_errors=True)


def repeat(case: str, rounds: int, rows: int, run: Callable[[int], None]) -> None:
    """Run a case ``rounds`` times after one for warming, and tell its median."""
    seconds = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        run(number)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds[1:])
    tell(case, rows_per_s=round(rows / median), seconds=round(median, 2), rounds=rounds)


def measure_spark(topics: Topics, topic: str, messages: int, rounds: int, place: Path) -> None:
    """The cases that run in Spark."""
    spark = local_session("local[2]", "benchmark")
    given = {"namesrvAddr": topics.namesrv, "topic": topic}

    def batch(schema: str | None) -> None:
        reader = spark.read.format("rocketmq").options(**given)
        frame = (reader.schema(schema) if schema else reader).load()
        frame.write.format("noop").mode("overwrite").save()

    def stream(number: int, most: int, *, idle: bool = False) -> list[dict[str, Any]]:
        start = "latest" if idle else "earliest"
        frame = spark.readStream.format("rocketmq").options(**given, startingOffsets=start, maxOffsetsPerTrigger=most)
        checkpoint = place / f"checkpoint-{most}-{idle}-{number}"
        writer = frame.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        if not idle:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return list(query.recentProgress)
        query = writer.start()
        for _ in range(IDLE_BATCHES):
            topics.send(topic, 0, [b"x"])
            query.processAllAvailable()
        query.stop()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def to_parquet(number: int) -> None:
        report = archive(
            topics.namesrv,
            topic,
            place / f"lake-{number}",
            place / f"lake-checkpoint-{number}",
            max_offsets_per_trigger=max(messages // 4, STREAM_BATCH),
            spark=spark,
        )
        assert report.rows >= messages

    repeat("batch, all columns", rounds, messages, lambda _: batch(None))
    repeat("batch, fixed columns", rounds, messages, lambda _: batch(FIXED))
    repeat("stream, one batch", rounds, messages, lambda number: void(stream(number, messages)))
    repeat("stream, batches of 200,000", rounds, messages, lambda number: void(stream(number, STREAM_BATCH)))
    repeat("archive", rounds, messages, to_parquet)
    durations = [progress["durationMs"]["triggerExecution"] for progress in stream(0, STREAM_BATCH, idle=True)]
    tell("micro-batch, idle topic", milliseconds=statistics.median(durations[3:]), batches=len(durations) - 3)
    spark.stop()


def void(_: object) -> None:
    """Take a result that a case does not need."""


@contextmanager
def running(system: System, place: Path) -> Iterator[Deployment]:
    """A nameserver and a broker."""
    deployment = deploy(system, place)
    try:
        yield deployment
    finally:
        deployment.close()


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=[system.value for system in System], default="cometmq")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["source", "sink"], help="measure only this half")
    arguments = parser.parse_args()
    if arguments.only != "sink":
        measure_decode(arguments.size)
    place = Path(tempfile.mkdtemp(prefix="cometmq-bench-spark-"))
    try:
        with running(System(arguments.system), place) as deployment:
            topics = Topics(deployment.address, deployment.broker.address)
            if arguments.only != "source":
                sink = (arguments.messages, arguments.size, arguments.queues, arguments.rounds)
                measure_sink(topics, System(arguments.system), *sink)
            if arguments.only == "sink":
                return
            topic = fill(topics, arguments.messages, arguments.size, arguments.queues)
            messages = arguments.messages // arguments.queues * arguments.queues
            measure_fetch(topics, topic, messages, arguments.queues, arguments.rounds)
            measure_spark(topics, topic, messages, arguments.rounds, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
