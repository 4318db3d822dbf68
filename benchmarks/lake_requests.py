"""Requests to an S3 server for a million messages, by kind, counted by a proxy in front of SeaweedFS.

``python -m benchmarks.lake_requests --messages 400000`` fills a topic with messages of 1,000 random bytes in 8 queues,
archives it as Parquet and as Delta, reads the archive with Spark and as a broker does, and makes two backups of the
store. The price is Amazon's in us-east-1: 0.005 $ for 1,000 requests that write or list, 0.0004 $ for 1,000 that read.
"""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.archive import Reader
from benchmarks.lake import BODY_BYTES, QUEUES
from benchmarks.rounds import say, table
from benchmarks.spark.session import write_source
from benchmarks.spark.sides import MASTER, CometSide
from tests.storage.servers.faults import faulty
from tests.storage.servers.seaweed import seaweed

from cometmq.backup.create import Options, create_backup
from cometmq.backup.opening import open_backup
from cometmq.spark import archive_store, local_session, read_archive
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.archives.table import TableFormat

KINDS: Final = ("PUT", "POST", "LIST", "GET", "HEAD", "DELETE")
DOLLARS: Final = {"PUT": 5e-6, "POST": 5e-6, "LIST": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}
ANSWER: Final = 1_024


def kind_of(request: str) -> str:
    """The kind of a request, as Amazon's price list has them."""
    method, _, path = request.partition(" ")
    return "LIST" if method == "GET" and "list-type=2" in path else method


def main() -> None:
    """Count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    given = parser.parse_args()
    rows: list[tuple[str, ...]] = [("a million messages", *KINDS, "price")]
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="cometmq-requests-")))
        write_source(place / "source", given.messages, BODY_BYTES)
        (place / "weed").mkdir()
        server = stack.enter_context(seaweed(place / "weed"))
        endpoint, faults = stack.enter_context(faulty(server.endpoint))
        options = replace(server.options, endpoint=endpoint)
        comet = CometSide(place / "cometmq")
        stack.callback(comet.close)
        topic = comet.create(QUEUES)
        comet.fill(None, place / "source", topic)
        shutil.rmtree(place / "source")
        spark = local_session(MASTER, "benchmark")
        stack.callback(spark.stop)

        def archive(name: str, table_format: str) -> None:
            wanted: dict[str, Any] = {
                "table_format": TableFormat(table_format),
                "storage": options.texts(),
                "spark": spark,
            }
            archive_store(comet.store, f"s3://lake/{name}", broker_name="broker-a", topics=topic, **wanted)

        def read() -> None:
            frame = read_archive(spark, "s3://lake/parquet", options.texts())
            frame.write.format("noop").mode("overwrite").save()

        def consume() -> None:
            ends = ArchiveLog("s3://lake/parquet", storage=server.options.texts()).next_offsets()  # not counted
            reader = Reader("s3://lake/parquet", options.texts())
            for queue, end in ends.items():
                offset = 0
                while offset < end:
                    offset = reader.read(offset, ANSWER, queue.topic, queue.queue_id).next_offset
            reader.close()

        def back_up(name: str, previous: str | None = None) -> None:
            before = open_backup(f"s3://lake/{previous}", options) if previous else None
            create_backup(Options(comet.store, open_backup(f"s3://lake/{name}", options), previous=before))

        work: dict[str, Callable[[], None]] = {
            "archive of a store, Parquet": lambda: archive("parquet", "parquet"),
            "archive of a store, Delta": lambda: archive("delta", "delta"),
            "`read_archive`, all columns": read,
            "a broker reads all from the archive": consume,
            "backup": lambda: back_up("backup-1"),
            "another backup at once": lambda: back_up("backup-2", "backup-1"),
        }
        for title, run in work.items():
            faults.seen.clear()
            run()
            found = Counter(map(kind_of, faults.seen))
            say(work=title, **found)
            million = 1_000_000 / given.messages
            price = sum(DOLLARS[kind] * count for kind, count in found.items()) * million
            rows.append((title, *(f"{found[kind] * million:,.0f}" for kind in KINDS), f"{price:.4f} $"))
    print(table(*rows))


if __name__ == "__main__":
    main()
