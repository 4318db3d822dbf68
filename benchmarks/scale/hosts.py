"""The brokers, hosts and archive cores that a number of messages needs, from measured figures.

    python -m benchmarks.scale.hosts [--messages-per-day 40e9] [--body-bytes 1024] [--retention-hours 72] …
    python -m benchmarks.scale.hosts --page      docs/scale.md: write the tables for some sizes

The figures are those of docs/performance.md, and each assumption is an option. The model is deliberately plain: the
scarcest of CPU, disk space, disk writes and network decides the hosts at the peak; nothing queues.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

from benchmarks.rounds import table

from cometmq.message.hosts import encode_host
from cometmq.message.record import encode_record
from cometmq.store.config import CQ_UNIT_BYTES, StoreConfig

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
SIZES: Final = (1e9, 10e9, 100e9, 1e12)
DAY_S: Final = 86_400
INDEX_ENTRY_BYTES: Final = 24
"""With its share of the slots."""
SMALL, LARGE = 128, 1_024
"""Bodies of the measured sends."""
_HOST: Final = encode_host("127.0.0.1", 10911)


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured on a machine with two cores that generator and server share."""

    send_small_per_s: float
    send_large_per_s: float
    send_sync_per_s: float
    drain_per_s: float
    archive_cpu_s: float
    """Of all processes, the broker's included, for a million messages."""

    @classmethod
    def read(cls, page: str) -> Rates:
        """Take them from the text of docs/performance.md.

        :raises KeyError: a row is not there.
        """
        rows: dict[str, list[str]] = {}
        for line in page.splitlines():
            if line.startswith("| "):
                name, *cells = (cell.strip() for cell in line.strip("| ").split("|"))
                rows.setdefault(name, cells)

        def number(row: str, cell: int) -> float:
            return float(rows[row][cell].split(" / ")[-1].split()[0].replace(",", "").removesuffix("/s"))

        return cls(
            send_small_per_s=number("send, 64 connections, 128 B", 1),
            send_large_per_s=number("send, 64 connections, 1 KB, 2 keys, 4 properties, 3 topics", 1),
            send_sync_per_s=number("SYNC_FLUSH, 64 connections", 1),
            drain_per_s=number("drain by pulls of 32", 1),
            archive_cpu_s=number("archive from a broker, tuned", 4),
        )


def _assume(default: Any, what: str) -> Any:
    return field(default=default, metadata={"doc": what})


@dataclass(frozen=True, slots=True)
class Site:
    """The load that is wanted, and what is assumed of it and the machines; each field is an option of the command."""

    messages_per_day: float = _assume(10e9, "messages per day")
    body_bytes: int = _assume(1024, "size of a body in bytes")
    properties_bytes: int = _assume(120, "size of a message's stored properties in bytes")
    keys: int = _assume(2, "index entries per message: its unique key and KEYS")
    peak_factor: float = _assume(2.5, "ratio of the peak rate to the daily mean")
    consumer_groups: int = _assume(2, "groups that read everything, in addition to the archive")
    retention_hours: int = _assume(StoreConfig().file_reserved_time, "hours for which brokers keep messages")
    replicas: int = _assume(2, "copies of a store: a master and its slaves, or replicas below the file system")
    sync_flush: int = _assume(0, "1: acknowledge messages only after a flush (flushDiskType=SYNC_FLUSH)")
    utilisation: float = _assume(0.6, "maximum utilisation of a core or a network at the peak")
    broker_cores: int = _assume(12, "broker processes per host, one core each; the kernel uses the other cores")
    host_disk_tb: float = _assume(60.0, "disk space per host, 10^12 bytes")
    host_disk_mb_s: float = _assume(3000.0, "disk write rate per host, 10^6 bytes per second")
    host_network_gbit: float = _assume(25.0, "network bandwidth per host in each direction, Gbit/s")
    disk_fill: float = _assume(0.75, "maximum disk usage (diskMaxUsedSpaceRatio)")
    page_cache_minutes: float = _assume(10.0, "minutes of writes kept in memory, so that readers need no disk access")
    parquet_ratio: float = _assume(0.4, "archived bytes per byte of the log (JSON with zstd; 1 for random bytes)")


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of a site; bytes and bits are those of one host at the peak unless the name says otherwise."""

    peak_per_s: float
    brokers: int
    hosts: int
    bound_by: str
    all_disk_bytes: float
    written_bytes_per_s: float
    sent_bits_per_s: float
    page_cache_bytes: float
    archive_cores: int
    archive_bytes_per_day: float

    def rows(self) -> dict[str, str]:
        """The figures in the words of docs/scale.md."""
        return {
            "messages per second at the peak": rounded(self.peak_per_s),
            "broker processes": f"{self.brokers:,}",
            "broker hosts": f"{self.hosts:,} ({self.bound_by})",
            "disk space, all copies": rounded(self.all_disk_bytes, "B"),
            "write rate per host": rounded(self.written_bytes_per_s, "B/s"),
            "send rate per host": rounded(self.sent_bits_per_s, "bit/s"),
            "page cache per host": rounded(self.page_cache_bytes, "B"),
            "cores for the archive": f"{self.archive_cores:,}",
            "archive growth": rounded(self.archive_bytes_per_day, "B/day"),
        }


def record_bytes(site: Site) -> int:
    """Bytes of one message in the log, as the codec writes it."""
    stored: dict[str, Any] = {
        "queue_id": 0,
        "queue_offset": 0,
        "physical_offset": 0,
        "born_timestamp": 0,
        "store_timestamp": 0,
    }
    stored |= {"body": bytes(site.body_bytes), "properties_text": "p" * site.properties_bytes, "topic": "t" * 16}
    return len(encode_record(**stored, born_host=_HOST, store_host=_HOST))


def broker_seconds(site: Site, rates: Rates, record: int) -> float:
    """CPU seconds of a broker for one message: taken in once, given out to every group and to the archive.

    Taking in: a straight line through the two measured bodies. Giving out: as many bytes a second as were measured
    with small messages, which counts every byte as dear as a small message's.
    """
    small, large = 1 / rates.send_small_per_s, 1 / rates.send_large_per_s
    send = small + max(large - small, 0.0) * max(site.body_bytes - SMALL, 0) / (LARGE - SMALL)
    if site.sync_flush:
        send += 1 / rates.send_sync_per_s - small
    pulled = record_bytes(dataclasses.replace(site, body_bytes=SMALL))
    return send + (site.consumer_groups + 1) * max(record / pulled, 1.0) / rates.drain_per_s


def need(site: Site, rates: Rates) -> Need:
    """Work out what a site needs."""
    record = record_bytes(site)
    stored = (record + CQ_UNIT_BYTES + site.keys * INDEX_ENTRY_BYTES) * site.replicas
    peak = site.messages_per_day / DAY_S * site.peak_factor
    brokers = ceil(peak * broker_seconds(site, rates, record) / site.utilisation)
    disk_bytes = site.messages_per_day * stored * site.retention_hours / 24 / site.disk_fill
    sent = peak * record * (site.consumer_groups + site.replicas) * 8
    hosts_for = {
        "CPU": brokers / site.broker_cores,
        "disk space": disk_bytes / (site.host_disk_tb * 1e12),
        "disk writes": peak * stored / (site.host_disk_mb_s * 1e6),
        "network": sent / (site.host_network_gbit * 1e9) / site.utilisation,
    }
    bound_by = max(hosts_for, key=lambda what: hosts_for[what])
    hosts = ceil(hosts_for[bound_by])
    return Need(
        peak_per_s=peak,
        brokers=brokers,
        hosts=hosts,
        bound_by=bound_by,
        all_disk_bytes=disk_bytes,
        written_bytes_per_s=peak * stored / hosts,
        sent_bits_per_s=sent / hosts,
        page_cache_bytes=peak * stored / site.replicas * site.page_cache_minutes * 60 / hosts,
        archive_cores=ceil(peak * rates.archive_cpu_s / 1e6 / site.utilisation),
        archive_bytes_per_day=site.messages_per_day * record * site.parquet_ratio,
    )


def rounded(value: float, unit: str = "") -> str:
    """Three figures, with k, M, G, T or P where the number is large."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if prefix == 'k' else size):.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip() if value < 100 else f"{value:,.0f} {unit}".rstrip()


def page(old: str, rates: Rates) -> str:
    """The text of docs/scale.md with the tables as they are now."""
    found = [need(Site(messages_per_day=size), rates).rows() for size in SIZES]
    heads = ["messages per day", *(rounded(size) for size in SIZES)]
    options = [(f"`--{one.name.replace('_', '-')}`", f"{one.default:g}", one.metadata["doc"]) for one in _options()]
    tables = {
        "sizes": table(heads, *([name, *(rows[name] for rows in found)] for name in found[0])),
        "assumptions": table(("option", "default", "meaning"), *options),
    }
    for name, new in tables.items():
        head, _, rest = old.partition(f"<!-- {name} -->\n")
        old = f"{head}<!-- {name} -->\n{new}\n<!-- end of {name} -->{rest.partition(f'<!-- end of {name} -->')[2]}"
    return old


def _options() -> tuple[Any, ...]:
    return dataclasses.fields(Site)


def main() -> None:
    """Print what a site needs, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in _options():
        option, meaning = f"--{one.name.replace('_', '-')}", f"{one.metadata['doc']} (default {one.default:g})"
        parser.add_argument(option, type=type(one.default), default=one.default, help=meaning)
    parser.add_argument("--page", action="store_true", help="write the tables of docs/scale.md")
    given = vars(parser.parse_args())
    rates = Rates.read((DOCS / "performance.md").read_text(encoding="utf-8"))
    scale = DOCS / "scale.md"
    if given.pop("page"):
        scale.write_text(page(scale.read_text(encoding="utf-8"), rates), encoding="utf-8")
        return
    for name, value in need(Site(**given), rates).rows().items():
        print(f"{name:<40} {value}")


if __name__ == "__main__":
    main()
