"""The tables of the benchmarks of lakes."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from benchmarks.lake_requests import kind_of
from benchmarks.spark import tables

from benchmarks import lake


def test_an_s3_server_is_compared_with_the_disk_in_the_same_run() -> None:
    cpu = {"server_cpu_s": 0.0, "broker_cpu_s": 0.5, "job_cpu_s": 1.5}
    disk = {"rows": 500_000, "mb": 500.0, "seconds": 1.0, "task_mib": 400.0} | cpu
    found = {
        ("broker", lake.DISK): [disk, disk | {"seconds": 9.0}, disk],
        ("broker", "SeaweedFS"): [disk | {"seconds": 2.0, "server_cpu_s": 2.0}],
    }
    cores = os.cpu_count() or 1
    assert lake.report(found).splitlines()[2:] == [
        f"| broker | local directory | 500 k | 1.00 × | {cores * 250} k | 3.00 s | 0.00 s | 1.00 s | 400 MiB |",
        f"| broker | SeaweedFS | 250 k | 0.50 × | {cores * 125} k | 3.00 s | 4.00 s | 1.00 s | 400 MiB |",
    ]


def test_an_archive_is_compared_with_kafka_in_the_same_table() -> None:
    kafka = {"rows": 500_000, "mb": 500.0, "seconds": 5.0, "cpu_s": 5.0, "server_cpu_s": 1.0}
    found = {
        ("delta", "s3", tables.KAFKA): [kafka],
        ("delta", "s3", "broker"): [kafka | {"seconds": 2.0, "cpu_s": 2.0}],
    }
    assert tables.report(found).splitlines()[2:] == [
        "| delta, s3 | Kafka's source, Spark 4.2.0 | 100 k | 1.00 × | 10.0 s | 2.0 s | 500 MB |",
        "| delta, s3 | archive from a broker | 250 k | 2.50 × | 4.0 s | 2.0 s | 500 MB |",
    ]


@pytest.mark.parametrize(
    ("request_line", "kind"),
    [
        ("PUT /lake/a?partNumber=1&uploadId=x", "PUT"),
        ("POST /lake/a?uploads", "POST"),
        ("GET /lake?list-type=2&prefix=a", "LIST"),
        ("GET /lake/topic=orders/a.parquet", "GET"),
        ("HEAD /lake/a", "HEAD"),
    ],
)
def test_requests_are_counted_as_they_are_paid(request_line: str, kind: str) -> None:
    assert kind_of(request_line) == kind
