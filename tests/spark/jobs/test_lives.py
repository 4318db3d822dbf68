"""A topic that is deleted and made anew is another topic: no job goes on in it as if it were the one of before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.spark.archives.log import ArchiveLog, read_archive
from cometmq.spark.errors import ArchiveError
from cometmq.spark.jobs.archive.from_store import archive_store
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.key_index import build_key_index, find_by_key
from cometmq.spark.jobs.mask.job import mask
from cometmq.spark.jobs.mask_rules import rules_from_options
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.replay.job import replay
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.spark

TOLERANT = {"failOnDataLoss": "false"}
OTHER = r"@.*:0 is not the queue whose messages are in .*: its topic was created again, or its end was lost"


def places_of(spark: Any, archived: Path) -> set[int]:
    """Where in the broker's log the archived messages stood."""
    rows = read_archive(spark, archived).select("physicalOffset").collect()
    return {row.physicalOffset for row in rows}


@pytest.mark.parametrize("sent", [5, 10, 25])
def test_an_archive_never_mixes_two_lives(spark: Any, topics: Topics, tmp_path: Path, sent: int) -> None:
    """With its checkpoint and without it, whatever failOnDataLoss says; another directory gets all of the new one."""
    topic, to = topics.fill(10, queues=1), tmp_path / "lake"
    archive(topics.namesrv, topic, to, tmp_path / "checkpoint", spark=spark)
    before = places_of(spark, to)
    topics.make_anew(topic, sent)
    for checkpoint in ("checkpoint", "new"):
        for options in (None, TOLERANT):
            for dry_run in (True, False):
                with pytest.raises(ArchiveError, match=OTHER):
                    archive(
                        topics.namesrv, topic, to, tmp_path / checkpoint, options=options, dry_run=dry_run, spark=spark
                    )
    assert places_of(spark, to) == before
    new = archive(topics.namesrv, topic, tmp_path / "other", tmp_path / "other-checkpoint", spark=spark)
    assert (new.rows, new.complete) == (sent, True)


def test_an_archive_whose_topic_is_made_anew_under_a_run_fails(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """The stream sees it, and its commit is refused, also where the loss of messages would be accepted."""
    topic, to = topics.fill(10, queues=1), tmp_path / "lake"

    def make_anew(_: object) -> None:
        topics.make_anew(topic, 25)

    with pytest.raises(Exception, match=r"archived up to offset 5, but this batch begins at 0"):
        archive(
            topics.namesrv,
            topic,
            to,
            tmp_path / "checkpoint",
            options=TOLERANT,
            max_offsets_per_trigger=5,
            on_batch=make_anew,
            spark=spark,
        )
    assert ArchiveLog(to).queues()[0].next == 5


def test_an_archive_from_a_store_does_not_mix_two_lives(spark: Any, tmp_path: Path) -> None:
    with SyncCluster(data=tmp_path / "cluster") as cluster:
        topics = Topics(cluster.namesrv_address, cluster.run(lambda inner: inner.broker(0).address))
        topic = topics.fill(10, queues=1)
        store, to = cluster.run(lambda inner: inner.store_root(0)), tmp_path / "lake"
        done = archive_store(store, to, broker_name="broker-0", topics=topic, spark=spark)
        assert done.rows == 10
        topics.make_anew(topic, 25)
        for options in (None, {"useConsumeQueue": "false"}):
            with pytest.raises(Exception, match=OTHER):
                archive_store(store, to, broker_name="broker-0", topics=topic, options=options, spark=spark)
        assert ArchiveLog(to).queues()[0].next == 10


def test_a_masked_copy_does_not_mix_two_lives(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, rules = topics.create(queues=1), rules_from_options(("$.phone=drop",))
    bodies = [json.dumps({"phone": str(number)}).encode() for number in range(25)]
    topics.send(topic, 0, bodies[:10])
    source = MessageSource(topics.namesrv)
    assert mask(source, topic, rules, tmp_path / "copy", spark=spark).messages == 10
    archive(topics.namesrv, topic, tmp_path / "lake", tmp_path / "checkpoint", spark=spark)
    topics.make_anew(topic, 0)
    topics.send(topic, 0, bodies)
    for dry_run in (True, False):
        with pytest.raises(ArchiveError, match=OTHER):
            mask(source, topic, rules, tmp_path / "copy", dry_run=dry_run, spark=spark)
    archived = MessageSource(archive=tmp_path / "lake")
    assert mask(archived, topic, rules, tmp_path / "of-archive", spark=spark).messages == 10
    archive(topics.namesrv, topic, tmp_path / "lake2", tmp_path / "checkpoint2", spark=spark)
    (tmp_path / "lake").rename(tmp_path / "before")
    (tmp_path / "lake2").rename(tmp_path / "lake")
    with pytest.raises(ArchiveError, match=OTHER):
        mask(archived, topic, rules, tmp_path / "of-archive", spark=spark)


def test_an_audit_names_the_queues_that_are_others(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """Though counts and offsets agree."""
    topic, to = topics.fill(10, queues=1), tmp_path / "lake"
    archive(topics.namesrv, topic, to, tmp_path / "checkpoint", spark=spark)
    assert audit(topics.namesrv, topic, archive=to, spark=spark).agrees
    topics.make_anew(topic, 10)
    report = audit(topics.namesrv, topic, archive=to, spark=spark)
    assert report.exit_code == 3
    assert f"{topic}@broker-a:0 is not the archived queue: its topic was recreated" in report.render()


def test_a_replay_does_not_go_on_in_another_topic_or_from_another_archive(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic, copy, to = topics.fill(20, queues=1), topics.create(queues=1), tmp_path / "lake"
    archive(topics.namesrv, topic, to, tmp_path / "checkpoint", spark=spark)
    done = replay(to, topics.namesrv, tmp_path / "ledger", to=copy, step_offsets=10, spark=spark)
    assert (done.messages, len(done.steps)) == (20, 2)
    topics.make_anew(copy, 25)
    with pytest.raises(ArchiveError, match=r"not the queue that the replay sent to before: topic .* was created again"):
        replay(to, topics.namesrv, tmp_path / "ledger", to=copy, spark=spark)
    topics.make_anew(topic, 25)
    archive(topics.namesrv, topic, tmp_path / "lake2", tmp_path / "checkpoint2", spark=spark)
    to.rename(tmp_path / "before")
    (tmp_path / "lake2").rename(to)
    with pytest.raises(ArchiveError, match=r"contains different messages of .* than when the ledger .* was created"):
        replay(to, topics.namesrv, tmp_path / "ledger", to=copy, spark=spark)


def test_an_index_by_key_gives_no_messages_of_another_archive(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, place = topics.create(queues=1), {"spark": spark}
    for name, key in (("first", "k1"), ("second", "k2")):
        topics.make_anew(topic, 0)
        topics.send(topic, 0, [b"x"] * 3, f"KEYS\x01{key}")
        archive(topics.namesrv, topic, tmp_path / name, tmp_path / f"{name}-checkpoint", **place)
    build_key_index(tmp_path / "first", tmp_path / "index", **place)
    assert len(find_by_key(tmp_path / "first", tmp_path / "index", topic, "k1")) == 3
    assert find_by_key(tmp_path / "second", tmp_path / "index", topic, "k1") == []
