"""Ledgers and key indexes that an earlier version wrote go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.spark.jobs.replay.test_job import origins
from tests.spark.sinking import stored
from tests.spark.store_files import write_store
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import msgspec

from cometmq.spark.jobs.archive.from_store import archive_store
from cometmq.spark.jobs.key_index import build_key_index, find_by_key
from cometmq.spark.jobs.replay.job import replay
from cometmq.spark.jobs.replay.ledger import ReplayLedger
from cometmq.spark.jobs.replay.sender import SENT_DDL
from cometmq.spark.jobs.task_files import read_table
from cometmq.storage import open_storage

pytestmark = pytest.mark.spark


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A copy of the files."""
    return Path(shutil.copytree(Path(__file__).with_name("earlier"), tmp_path / "earlier"))


def test_a_ledger_goes_on_after_the_step_in_which_its_driver_was_killed(
    spark: Any, topics: Topics, earlier: Path
) -> None:
    copy, lake, ledger = topics.create(3), earlier / "lake", earlier / "ledger"
    saved = msgspec.json.decode((ledger / "job.json").read_bytes())
    saved["job"] |= {"archive": str(lake), "namesrv": topics.namesrv, "to": copy}
    (ledger / "job.json").write_bytes(msgspec.json.encode(saved))
    begun = ledger / "plans" / f"{1:020d}.json"
    plan = msgspec.json.decode(begun.read_bytes())
    plan["ends"] = [{**end, "end": 0, "mark": None} for end in plan["ends"]]  # the topic here is empty
    begun.write_bytes(msgspec.json.encode(plan))
    done = replay(lake, topics.namesrv, ledger, to=copy, spark=spark)
    assert (done.messages, done.found, done.earlier, done.complete) == (30, 0, 30, True)
    assert [origins(queue) for queue in stored(topics, copy, 3)] == [
        [(queue_id, offset) for offset in range(10, 20)] for queue_id in range(3)
    ]
    kept = ReplayLedger(open_storage(ledger))
    mapping = read_table(spark, kept.storage, kept.mapping_files(), SENT_DDL)
    assert mapping.select("queueId", "queueOffset").distinct().count() == mapping.count() == 60
    assert not list(ledger.glob("mapping/step=1/*.snappy.parquet")), "what the killed driver left does not count"


def test_an_index_finds_and_grows(spark: Any, earlier: Path, tmp_path: Path) -> None:
    places = earlier / "lake", earlier / "index"
    [found] = find_by_key(*places, "T", "k7")
    assert (found.body, found.queue_offset) == (b"not json", 2)
    assert build_key_index(*places, spark=spark).messages == 0
    write_store(tmp_path / "store", 9, body=lambda number: b"second %d" % number)
    archive_store(tmp_path / "store", places[0], broker_name="c", spark=spark)
    assert build_key_index(*places, spark=spark).messages == 9
    assert [of.body for of in find_by_key(*places, "T", "k7")] == [b"not json", b"second 7"]
