"""Fresh tables: the cost of columns, and many commits with files joined beside them.

``python -m benchmarks.tables rate`` fills tables without columns, with given and with found columns.
``python -m benchmarks.tables commits --seconds 120`` commits every second, which is a minute of commits in a second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyspark.sql import SparkSession
from tests.interop.systems import System, deploy
from tests.spark.topics import Topics

from cometmq.spark import fresh_table, local_session
from cometmq.spark.archives.table import ICEBERG, TableFormat

_SCHEMA: Final = (
    "id bigint, customer string, amount double, paid boolean, note string, items array<struct<sku:string,count:bigint>>"
)
_AT_ONCE: Final = 20_000


def order(number: int) -> bytes:
    """A body of about 180 bytes."""
    items = [{"sku": f"s{number % 50}", "count": number % 5}]
    body = {"id": number, "customer": f"c{number % 1000}", "amount": number * 1.25, "paid": number % 2 == 0}
    return json.dumps(body | {"note": "n" * 60, "items": items}).encode()


def rate(spark: SparkSession, topics: Topics, root: Path, messages: int) -> None:
    """Print the rate at which each kind of table is filled by one commit, and its size."""
    topic, each = topics.create(4), messages // 4
    for queue_id in range(4):
        for at in range(queue_id * each, (queue_id + 1) * each, _AT_ONCE):
            topics.send(topic, queue_id, [order(number) for number in range(at, at + _AT_ONCE)])
    fresh_table(topics.fill(10), topics.namesrv, root / "warm", once=True, body="none", spark=spark)
    kinds: dict[str, dict[str, Any]] = {"none": {"body": "none"}, "given": {"schema": _SCHEMA}, "found": {}}
    for name, more in kinds.items():
        done = fresh_table(topic, topics.namesrv, root / name, once=True, spark=spark, **more)
        print(f"{name}: {done.rows / done.seconds:,.0f} rows/s, {done.table_bytes / 1e6:.1f} MB", flush=True)


def commits(spark: SparkSession, topics: Topics, root: Path, seconds: float) -> None:
    """Print the time between commits at the beginning and at the end, and the number of files."""
    root.mkdir(exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}
    topic, stop = topics.create(8), threading.Event()
    times: list[float] = []
    ends: list[Any] = []

    def run() -> None:
        ends.append(
            fresh_table(
                topic,
                topics.namesrv,
                table_format=TableFormat(ICEBERG, "lake", "shop.orders", catalog),
                interval="1s",
                join_every_ms=20_000,
                keep_versions_ms=60_000,
                on_batch=lambda _: times.append(time.monotonic()),
                stop=stop,
                spark=spark,
            )
        )

    running = threading.Thread(target=run)
    running.start()
    sent, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for queue_id in range(8):
            topics.send(topic, queue_id, [order(sent + number) for number in range(50)])
            sent += 50
        time.sleep(0.4)
    stop.set()
    running.join()
    (end,) = ends
    gaps = [after - before for before, after in itertools.pairwise(times)]
    some = max(len(gaps) // 4, 1)
    metadata = max(root.rglob("*.metadata.json"), key=lambda path: path.stat().st_mtime).stat().st_size
    print(
        f"{end.batches} commits of {end.rows:,} messages; {end.files_joined} files joined, {end.files_deleted} "
        f"deleted, {end.table_files} in the table, {sum(1 for _ in root.rglob('*.parquet'))} on disk\n"
        f"between commits: {sum(gaps[:some]) / some:.2f} s in the first quarter, {sum(gaps[-some:]) / some:.2f} s in "
        f"the last, at most {max(gaps):.2f} s; the last metadata has {metadata:,} bytes"
    )


def main() -> None:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=["rate", "commits"])
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="tables-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        running = deploy(System("cometmq"), root / "broker")
        spark = local_session()
        try:
            topics = Topics(running.address, running.broker.address)
            if given.case == "rate":
                rate(spark, topics, root / "tables", given.messages)
            else:
                commits(spark, topics, root / "tables", given.seconds)
        finally:
            spark.stop()
            running.close()


if __name__ == "__main__":
    main()
