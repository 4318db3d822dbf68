"""Archives in an S3 server beside the local disk: rate, processor time and memory of a task.

``python -m benchmarks.lake --messages 400000 --rounds 3 --random 1000`` fills a topic with messages of 1,000 bytes, of
which 1,000 do not compress, and archives it from the broker's store and from the live broker. Each archive is written
into a new local directory, into SeaweedFS on the same machine, and there without signed content, in turn.

The processor time is that of the job with all of its processes, that of the server, and that of the broker, each for a
million messages. ``bound`` is the rate at which the job and the server together would use every core to the full. One
more archive of the store counts the requests, by a proxy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow.parquet as pq
from benchmarks.machine import Beside, CpuTimes, look_before, verdict
from benchmarks.rounds import in_turn, medians, say, table
from benchmarks.spark.cpu_meter import CpuMeter, descendants
from benchmarks.spark.session import write_source
from benchmarks.spark.sides import CometSide, keep_byte_code
from tests.storage.servers.faults import faulty
from tests.storage.servers.seaweed import seaweed

from cometmq.spark import archive, archive_store, local_session
from cometmq.storage import Storage, StorageOptions, open_storage

BODY_BYTES: Final = 1000
QUEUES: Final = 8
DISK: Final = "local directory"
SIDES: Final = (DISK, "SeaweedFS", "SeaweedFS, content not signed")
SOURCES: Final = ("store", "broker")
SERVER: Final = "server"


@dataclass(frozen=True)
class Lake:
    """The parts that all runs share."""

    spark: Any
    place: Path
    comet: CometSide
    topic: str
    s3: StorageOptions
    meter: CpuMeter

    def run(self, source: str, side: str, name: str) -> dict[str, float]:
        """Archive the topic into a new place; return its figures."""
        to, options = (str(self.place / name), None) if side == DISK else (f"s3://lake/{name}", self.s3)
        if options is not None and side != SIDES[1]:
            options = replace(options, sign_content="never")
        given: dict[str, Any] = {"storage": options.texts() if options else None, "spark": self.spark}
        os.sync()
        for process in workers():
            (process / "clear_refs").write_text("5")  # begins a new peak
        cpu, began = self.meter.seconds(), time.perf_counter()
        if source == "store":
            archive_store(self.comet.store, to, broker_name="broker-a", topics=self.topic, **given)
        else:
            archive(self.comet.deployment.address, self.topic, to, **given)
        seconds = time.perf_counter() - began
        spent = {kind: now - cpu.get(kind, 0.0) for kind, now in self.meter.seconds().items()}
        server, broker = spent.pop(SERVER, 0.0), spent.pop(self.comet.name, 0.0)
        peaks = [(process / "status").read_text().split("VmHWM:")[1].split()[0] for process in workers()]
        peak_mib = max(map(int, peaks)) / 1024
        figures = {"seconds": seconds, "job_cpu_s": sum(spent.values()), "server_cpu_s": server, "broker_cpu_s": broker}
        stored = open_storage(to, options)
        figures |= stored_files(stored) | {"task_mib": peak_mib}
        stored.delete([found.key for found in stored.list_objects("")])
        return figures


def stored_files(storage: Storage) -> dict[str, float]:
    """Rows and size of the Parquet files in a storage."""
    files = [found for found in storage.list_objects("") if found.key.endswith(".parquet")]
    rows = sum(pq.ParquetFile(storage.open_reader(found.key, found.size)).metadata.num_rows for found in files)
    return {"rows": rows, "mb": sum(found.size for found in files) / 1e6}


def workers() -> list[Path]:
    """The Python processes that run Spark's tasks."""
    found = [Path(f"/proc/{pid}") for pid in descendants()]
    return [process for process in found if b"pyspark.daemon" in (process / "cmdline").read_bytes()]


def report(found: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> str:
    """The table of docs/performance.md."""
    rows: list[tuple[str, ...]] = [
        ("archive from a", "into", "rows/s", "of the disk", "bound", "job's CPU", "server's", "broker's", "a task")
    ]
    for (source, side), runs in found.items():
        one, disk = medians(runs), medians(found[source, DISK])
        million = 1e6 / one["rows"]
        bound = (os.cpu_count() or 1) * one["rows"] / (one["job_cpu_s"] + one["server_cpu_s"] + one["broker_cpu_s"])
        cpu = (f"{one[name] * million:.2f} s" for name in ("job_cpu_s", "server_cpu_s", "broker_cpu_s"))
        rate, most = one["rows"] / one["seconds"], f"{bound / 1000:,.0f} k"
        ratio = f"{disk['seconds'] / one['seconds']:.2f} ×"
        rows.append((source, side, f"{rate / 1000:,.0f} k", ratio, most, *cpu, f"{one['task_mib']:.0f} MiB"))
    return table(*rows)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--random", type=int, default=BODY_BYTES, help="bytes of each body that do not compress")
    parser.add_argument("--sources", default=",".join(SOURCES), help=f"some of {','.join(SOURCES)}")
    given = parser.parse_args()
    keep_byte_code()
    load, before = os.getloadavg()[0], look_before()
    beside: list[Beside] = []
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="cometmq-lake-")))
        write_source(place / "source", given.messages, BODY_BYTES, given.random)
        (place / "weed").mkdir()
        server = stack.enter_context(seaweed(place / "weed"))
        spark = local_session("local[2]", "benchmark")
        stack.callback(spark.stop)
        comet = CometSide(place / "cometmq")
        stack.callback(comet.close)
        topic = comet.create(QUEUES)
        comet.fill(spark, place / "source", topic)
        shutil.rmtree(place / "source")
        meter = CpuMeter()
        meter.brokers |= dict.fromkeys(comet.pids, comet.name)
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in descendants()}
        meter.brokers |= {pid: SERVER for pid, name in names.items() if name.startswith("weed")}
        meter.watch()
        lake = Lake(spark, place, comet, topic, server.options, meter)
        for source in given.sources.split(","):
            lake.run(source, DISK, f"{source}-warm")
            for number, side in in_turn(SIDES, given.rounds):
                begin = CpuTimes.now()
                figures = lake.run(source, side, f"{source}-{number}-{SIDES.index(side)}")
                beside.append(
                    Beside.between(begin, CpuTimes.now(), sum(figures[k] for k in figures if k.endswith("cpu_s")))
                )
                say(source=source, side=side, round=number, **figures)
                found.setdefault((source, side), []).append(figures)
        endpoint, faults = stack.enter_context(faulty(server.endpoint))
        counted = replace(server.options, endpoint=endpoint).texts()
        to: dict[str, Any] = {"topics": topic, "broker_name": "broker-a", "storage": counted, "spark": spark}
        archive_store(comet.store, "s3://lake/counted", **to)
        say(requests=len(faults.seen), **Counter(request.partition(" ")[0] for request in faults.seen))
    print(report(found))
    print(f"\n{given.messages:,} messages, {given.random} random bytes. {verdict(load, before, beside)}")


if __name__ == "__main__":
    main()
