"""The brokers, disks, Spark executors, files and commits that a number of messages needs, from measured figures.

    python benchmarks/hosts.py [--messages-per-day 300e9] [--body-bytes 1024] [--retention-hours 72] …

Every figure is read from docs/performance.md, and each assumption is an option: ``--help`` lists them.
docs/scale.md shows what it says for some sizes (``scripts/hosts_page``). The model is deliberately plain: what is
needed is the greatest of what CPU, disk space, disk speed and network each need at the peak; nothing queues, and
nothing is shared between the rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.figures import CPU, PAGE, Figure, measured, tables  # noqa: E402

from cometmq.limits import SPARK_TASK_BYTES  # noqa: E402
from cometmq.message.hosts import encode_host  # noqa: E402
from cometmq.message.record import encode_record  # noqa: E402
from cometmq.spark.source.options import MAX_PARTITION_BYTES  # noqa: E402
from cometmq.spark.source.planning import LARGE_PARTITION  # noqa: E402
from cometmq.store.config import CQ_UNIT_BYTES, StoreConfig  # noqa: E402

DAY_S: Final = 86_400
INDEX_ENTRY_BYTES: Final = 20
INDEX_SLOT_BYTES: Final = 4
_HOST: Final = encode_host("127.0.0.1", 10911)
_SMALL_BODY: Final = 128
"""Body of the measured small send and of the messages that ``drain`` pulls."""
_LARGE_BODY: Final = 1024


@dataclass(frozen=True, slots=True)
class Figures:
    """Measured figures, on a machine with two cores that generator and server share."""

    send_small_per_s: Figure
    send_large_per_s: Figure
    send_sync_per_s: Figure
    drain_per_s: Figure
    archive_cpu_s: Figure
    """CPU seconds of all processes, the broker's included, for a million messages; so are the next two."""
    stream_cpu_s: Figure
    exactly_once_cpu_s: Figure

    @classmethod
    def read(cls, page: str) -> Figures:
        """Take them from the text of docs/performance.md.

        :raises FigureError: a row is not there.
        """
        rows = tables(page)
        return cls(
            send_small_per_s=measured(rows, "send, 64 connections, 128 B"),
            send_large_per_s=measured(rows, "send, 64 connections, 1 KB, 2 keys, 4 properties, 3 topics"),
            send_sync_per_s=measured(rows, "SYNC_FLUSH, 64 connections"),
            drain_per_s=measured(rows, "drain by pulls of 32"),
            archive_cpu_s=measured(rows, "archive from a broker, tuned", CPU, assumed=20.0),
            stream_cpu_s=measured(rows, "stream, one large batch, tuned", CPU, assumed=18.0),
            exactly_once_cpu_s=measured(rows, "exactly-once beside at-least-once, tuned", CPU, assumed=25.0),
        )


def _assume(default: Any, what: str) -> Any:
    return field(default=default, metadata={"doc": what})


@dataclass(frozen=True, slots=True)
class Site:
    """The load that is wanted, and what is assumed of it and the machines; each field is an option of the command."""

    messages_per_day: float = _assume(300e9, "messages a day")
    body_bytes: int = _assume(1024, "bytes of a body")
    properties_bytes: int = _assume(120, "bytes of a message's properties as stored")
    topic_bytes: int = _assume(16, "bytes of a topic's name, which every record repeats")
    keys: int = _assume(2, "index entries of a message: its unique key and KEYS")
    peak_factor: float = _assume(2.5, "peak over the day's mean")
    consumer_groups: int = _assume(2, "groups that read everything, beside the archive")
    retention_hours: int = _assume(StoreConfig().file_reserved_time, "hours that brokers keep messages")
    replicas: int = _assume(
        2, "copies of a broker's store: a master and its slaves, mirrored disks, or replicas below the file system"
    )
    sync_flush: bool = _assume(False, "acknowledge only what is on the disk (flushDiskType=SYNC_FLUSH)")
    utilisation: float = _assume(0.6, "how busy a core may be at the peak")
    queues_per_broker: int = _assume(16, "queues that are written to on each broker")
    broker_cores: int = _assume(12, "broker processes on a host, a core each; the rest of its cores are the kernel's")
    host_disk_tb: float = _assume(60.0, "disk space of a host, 10^12 bytes")
    host_disk_mb_s: float = _assume(3000.0, "what its disks write, 10^6 bytes a second")
    host_network_gbit: float = _assume(25.0, "its network, each way, Gbit/s")
    disk_fill: float = _assume(
        StoreConfig().disk_max_used_space_ratio / 100, "how full disks get (diskMaxUsedSpaceRatio)"
    )
    write_kb: int = _assume(256, "KiB of one write as the kernel sends it to the disk")
    page_cache_minutes: float = _assume(10.0, "minutes of writes that stay in memory, so that readers touch no disk")
    executor_cores: int = _assume(4, "cores of a Spark executor")
    commit_minutes: float = _assume(5.0, "minutes between two commits of the archive (--trigger)")
    parquet_ratio: float = _assume(0.4, "archived bytes for a byte of the log (JSON with zstd; 1 for random bytes)")

    @classmethod
    def about(cls) -> dict[str, str]:
        """The meaning of each field."""
        return {found.name: found.metadata["doc"] for found in dataclasses.fields(cls)}


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of a site."""

    peak_per_s: float
    record_bytes: int
    """Of one message in the log."""
    stored_bytes: float
    """Of one message in log, consume queue and index."""
    brokers: int
    hosts: int
    bound_by: str
    """The resource that decides how many hosts: ``CPU``, ``disk space``, ``disk writes`` or ``network``."""
    disk_bytes: float
    """Of all copies."""
    disk_mb_s: float
    """Written at the peak by one host."""
    disk_iops: float
    """Writes and flushes a second of one host at the peak."""
    network_gbit: float
    """Out of one host at the peak."""
    page_cache_gb: float
    """Of one host."""
    queues: int
    archive_cores: int
    archive_executors: int
    executor_gb: float
    stream_cores: int
    """For a stream that reads everything, Spark's own work on it not counted …"""
    sink_cores: int
    """… and for writing as much, exactly once."""
    commits_per_day: int
    files_per_commit: int
    file_mb: float
    lake_bytes_per_day: float

    @property
    def files_per_day(self) -> int:
        """Parquet files."""
        return self.commits_per_day * self.files_per_commit


def record_bytes(site: Site) -> int:
    """Bytes of one message in the log, as the codec writes it."""
    return len(
        encode_record(
            topic="t" * site.topic_bytes,
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            body=bytes(site.body_bytes),
            properties_text="p" * site.properties_bytes,
            born_timestamp=0,
            born_host=_HOST,
            store_timestamp=0,
            store_host=_HOST,
        )
    )


def broker_seconds(site: Site, figures: Figures, record: int) -> float:
    """CPU seconds of a broker for one message: taken in once, given out to every group and to the archive.

    Taking in: a straight line through the two measured bodies. Giving out: as many bytes a second as were measured
    with small messages, which counts every byte as dear as a small message's.
    """
    small, large = 1 / figures.send_small_per_s.value, 1 / figures.send_large_per_s.value
    send = small + max(large - small, 0.0) * max(site.body_bytes - _SMALL_BODY, 0) / (_LARGE_BODY - _SMALL_BODY)
    if site.sync_flush:
        send += 1 / figures.send_sync_per_s.value - small
    pulled = record_bytes(dataclasses.replace(site, body_bytes=_SMALL_BODY))
    return send + (site.consumer_groups + 1) * max(record / pulled, 1.0) / figures.drain_per_s.value


def need(site: Site, figures: Figures) -> Need:
    """Work out what a site needs."""
    store = StoreConfig()
    record = record_bytes(site)
    index_entry = INDEX_ENTRY_BYTES + INDEX_SLOT_BYTES * store.max_hash_slot_num / store.max_index_num
    stored = record + CQ_UNIT_BYTES + site.keys * index_entry
    peak = site.messages_per_day / DAY_S * site.peak_factor

    brokers = ceil(peak * broker_seconds(site, figures, record) / site.utilisation)
    disk_bytes = site.messages_per_day * stored * site.retention_hours / 24 * site.replicas / site.disk_fill
    written = peak * stored * site.replicas
    sent = peak * record * (site.consumer_groups + 1 + site.replicas - 1) * 8
    hosts_for = {
        "CPU": brokers / site.broker_cores,
        "disk space": disk_bytes / (site.host_disk_tb * 1e12),
        "disk writes": written / (site.host_disk_mb_s * 1e6),
        "network": sent / (site.host_network_gbit * 1e9) / site.utilisation,
    }
    bound_by = max(hosts_for, key=lambda what: hosts_for[what])
    hosts = ceil(hosts_for[bound_by])
    queues = brokers * site.queues_per_broker
    flushes = brokers * _flushes_per_s(site, store, peak / brokers)

    cores = ceil(peak * figures.archive_cpu_s.value / 1e6 / site.utilisation)
    in_commit = site.messages_per_day / DAY_S * site.commit_minutes * 60
    tasks = ceil(max(in_commit / LARGE_PARTITION, in_commit * record / MAX_PARTITION_BYTES))
    files = queues + tasks - 1
    commits = ceil(DAY_S / 60 / site.commit_minutes)
    lake = site.messages_per_day * record * site.parquet_ratio
    return Need(
        peak_per_s=peak,
        record_bytes=record,
        stored_bytes=stored,
        brokers=brokers,
        hosts=hosts,
        bound_by=bound_by,
        disk_bytes=disk_bytes,
        disk_mb_s=written / hosts / 1e6,
        disk_iops=(written / (site.write_kb * 1024) + flushes * site.replicas) / hosts,
        network_gbit=sent / hosts / 1e9,
        page_cache_gb=written / site.replicas * site.page_cache_minutes * 60 / hosts / 1e9,
        queues=queues,
        archive_cores=cores,
        archive_executors=ceil(cores / site.executor_cores),
        executor_gb=1 + site.executor_cores * SPARK_TASK_BYTES / 1e9,
        stream_cores=ceil(peak * figures.stream_cpu_s.value / 1e6 / site.utilisation),
        sink_cores=ceil(peak * figures.exactly_once_cpu_s.value / 1e6 / site.utilisation),
        commits_per_day=commits,
        files_per_commit=files,
        file_mb=lake / commits / files / 1e6,
        lake_bytes_per_day=lake,
    )


def _flushes_per_s(site: Site, store: StoreConfig, per_s: float) -> float:
    """Flushes of one broker: of the log, and of every queue and the index."""
    log = per_s / 64 if site.sync_flush else 1000 / store.flush_interval_commit_log  # 64 senders wait for each, at best
    return log + (site.queues_per_broker + 1) * 1000 / store.flush_interval_consume_queue


def rounded(value: float, unit: str = "") -> str:
    """Three figures, with k, M, G, T or P where the number is large."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if prefix == 'k' else size):.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip() if value < 100 else f"{value:,.0f} {unit}".rstrip()


def told(of: Need) -> dict[str, str]:
    """The rows of a table, in the words of docs/scale.md."""
    return {
        "messages a second at the peak": rounded(of.peak_per_s),
        "broker processes": f"{of.brokers:,}",
        "broker hosts": f"{of.hosts:,} ({of.bound_by})",
        "disk space, all copies": rounded(of.disk_bytes, "B"),
        "written by a host": rounded(of.disk_mb_s * 1e6, "B/s"),
        "writes and flushes of a host": f"{rounded(of.disk_iops)}/s",
        "sent by a host": rounded(of.network_gbit * 1e9, "bit/s"),
        "page cache of a host": rounded(of.page_cache_gb * 1e9, "B"),
        "queues": f"{of.queues:,}",
        "cores of the archive": f"{of.archive_cores:,}",
        "executors of the archive": f"{of.archive_executors:,} of {of.executor_gb:.1f} GB",
        "cores to read everything in a stream": f"{of.stream_cores:,}",
        "cores to write as much, exactly once": f"{of.sink_cores:,}",
        "commits a day": f"{of.commits_per_day:,}",
        "Parquet files a day": rounded(of.files_per_day),
        "one Parquet file, mean": rounded(of.file_mb * 1e6, "B"),
        "the archive grows by": rounded(of.lake_bytes_per_day, "B/day"),
    }


def main() -> None:
    """Print what a site needs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = Site()
    for name, what in Site.about().items():
        default = getattr(defaults, name)
        option = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true", help=what)
        else:
            parser.add_argument(option, type=type(default), default=default, help=f"{what} (default {default:g})")
    site = Site(**vars(parser.parse_args()))
    for name, value in told(need(site, Figures.read(PAGE.read_text(encoding="utf-8")))).items():
        print(f"{name:<40} {value}")


if __name__ == "__main__":
    main()
