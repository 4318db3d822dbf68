"""Archives in a REST catalog that chooses their place: the jobs find them by address, and other readers agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.spark.archives.catalog_servers import start_catalog
from tests.spark.topics import Topics

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install cometmq[iceberg])")
pytest.importorskip("obstore", reason="obstore is not installed (pip install cometmq[lake])")

from cometmq.cli.jobs.pipeline import command
from cometmq.spark.archives.log import ArchiveLog, read_archive
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.archive.upkeep import compact, vacuum
from cometmq.spark.jobs.audit.job import audit
from cometmq.testing import VirtualClock

pytestmark = pytest.mark.spark
LATER_MS = 4_000_000_000_000


def test_a_topic_in_a_rest_catalog(spark: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, address = topics.fill(60, queues=2), "iceberg://rest/shop.orders"
    with start_catalog("rest", tmp_path) as catalog:
        for name, value in catalog.properties.items():
            variable = name.replace(".", "__").replace("-", "_").upper()
            monkeypatch.setenv(f"PYICEBERG_CATALOG__REST__{variable}", value)
        lake = catalog.named("shop.orders")
        for expected in (60, 5):
            done = archive(topics.namesrv, topic, address, tmp_path / "checkpoint", spark=spark)
            assert (done.rows, done.directory) == (expected, address)
            topics.send(topic, 0, [b"more"] * (5 if expected == 60 else 0))
        assert audit(topics.namesrv, topic, archive=address, allow_duplicates=True, spark=spark).disagreements == ()

        clock = VirtualClock(start_ms=LATER_MS)
        assert compact(address, clock=clock, spark=spark).files_before == 2
        assert len(ArchiveLog(address).files()) == 2
        removed = vacuum(address, keep_ms=3_600_000, clock=VirtualClock(start_ms=LATER_MS * 2))
        assert removed.files_before == 1  # the file of the last run may still be named by it for a day
        ours = sorted(row.physicalOffset for row in read_archive(spark, address).collect())
        theirs = sorted(lake.load().scan().to_arrow()["physicalOffset"].to_pylist())
        assert ours == theirs
        assert len(ours) == 65
    left = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert [path for path in left if b"seaweed-secret" in path.read_bytes()] == []


def test_a_command_takes_no_secret_of_a_catalog() -> None:
    words = ["archive", "--topic", "t", "--catalog", "prod", "--table", "shop.orders", "--catalog-option"]
    for secret in (
        "credential=me:zq7-secret",
        "s3.secret-access-key=zq7-secret",
        "uri=postgresql://me:zq7-secret@db/x",
    ):
        done = CliRunner().invoke(command, [*words, secret])
        assert done.exit_code == 2
        assert "PYICEBERG_CATALOG__NAME__" in done.output.replace("\n", "")
        assert "zq7-secret" not in done.output
