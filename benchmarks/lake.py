"""Archives in an S3 server beside the local disk: rate, processor time and requests.

``python -m benchmarks.lake --messages 400000 --rounds 3`` makes a store of messages of 1,000 bytes, of which
``--random`` (1,000) do not compress. It archives the store into a new local directory and into SeaweedFS on the same
machine in turn, and prints a line for each run; one more run counts the requests, by a proxy. The processor time is
that of the job with all of its processes, without the server's.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.rounds import in_turn, say
from pyspark.sql import SparkSession
from tests.spark.store_files import write_store
from tests.storage.servers.faults import faulty
from tests.storage.servers.seaweed import seaweed

from cometmq.spark import archive_store
from cometmq.storage import StorageOptions

BODY_BYTES = 1000


def fill(place: Path, messages: int, random_bytes: int) -> None:
    """Make a store."""
    noise, rest = random.Random(1), b" " * (BODY_BYTES - random_bytes)
    write_store(place, messages, body=lambda _: noise.randbytes(random_bytes) + rest, segment=256 << 20, topic="orders")


def cpu_seconds() -> float:
    """Processor time of this process and of all processes that it has started, as far as they are alive or waited for,
    without the server of the storage."""
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[int, tuple[int, float, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(") ")
            words = rest.split()
            found[int(entry.name)] = (int(words[1]), sum(map(int, words[11:15])) / ticks, name)
    ours, total = {os.getpid()}, 0.0
    for _ in range(10):
        ours |= {pid for pid, (parent, _, name) in found.items() if parent in ours and not name.startswith("weed")}
    for pid in ours:
        total += found[pid][1]
    return total


def run(spark: Any, store: Path, to: str, options: StorageOptions | None) -> tuple[float, float]:
    """Archive a store; return seconds and processor seconds."""
    began, cpu = time.perf_counter(), cpu_seconds()
    archive_store(store, to, broker_name="broker-a", storage=options.texts() if options else None, spark=spark)
    return time.perf_counter() - began, cpu_seconds() - cpu


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--random", type=int, default=BODY_BYTES, help="bytes of each body that do not compress")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="cometmq-lake-")))
        (place / "weed").mkdir()
        server = stack.enter_context(seaweed(place / "weed"))
        fill(place / "store", given.messages, given.random)
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        stack.callback(spark.stop)
        run(spark, place / "store", str(place / "warm"), None)
        shutil.rmtree(place / "warm")
        for number, side in in_turn(("disk", "s3"), given.rounds):
            to = str(place / f"lake-{number}") if side == "disk" else f"s3://lake/run-{number}"
            seconds, cpu = run(spark, place / "store", to, None if side == "disk" else server.options)
            say(round=number, side=side, rows_per_s=given.messages / seconds, seconds=seconds, cpu_s=cpu)
            shutil.rmtree(place / f"lake-{number}", ignore_errors=True)
        endpoint, faults = stack.enter_context(faulty(server.endpoint))
        run(spark, place / "store", "s3://lake/counted", replace(server.options, endpoint=endpoint))
        kinds = Counter(request.partition(" ")[0] for request in faults.seen)
        say(requests=len(faults.seen), per_million=len(faults.seen) * 1e6 / given.messages, **kinds)


if __name__ == "__main__":
    main()
