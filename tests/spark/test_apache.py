"""Source and archive against real Apache RocketMQ: the same code, the same counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable
from tests.interop.systems import System, deploy
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.spark.archive import archive
from cometmq.spark.archive_reader import read_archive

pytestmark = [pytest.mark.spark, pytest.mark.interop]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A nameserver and a broker of Apache's."""
    try:
        running = deploy(System.APACHE, tmp_path_factory.mktemp("apache"))
    except ToolMissingError as problem:
        unavailable(problem)
    yield Topics(running.address, running.broker.address)
    running.close()


def test_batch_stream_and_archive_agree_with_what_was_sent(spark: Any, apache: Topics, tmp_path: Path) -> None:
    topic = apache.fill(6000, queues=3, size=300)
    expected = sorted(b"%09d" % number for number in range(6000))
    frame = spark.read.format("rocketmq").option("namesrvAddr", apache.namesrv).option("topic", topic).load()
    assert sorted(bytes(row.body)[:9] for row in frame.select("body").collect()) == expected
    moment = frame.agg({"storeTimestamp": "min"}).collect()[0][0]
    later = (
        spark.read.format("rocketmq")
        .option("namesrvAddr", apache.namesrv)
        .option("topic", topic)
        .option("startingTimestamp", str(round(moment.timestamp() * 1000) + 1))
        .load()
    )
    assert later.count() == frame.where(frame.storeTimestamp > moment).count()

    to, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    first = archive(apache.namesrv, topic, to, checkpoint, max_offsets_per_trigger=2000, spark=spark)
    assert (first.rows, first.batches) == (6000, 4)  # 666 of each queue, three times, and what is left
    apache.send(topic, 2, [b"%09d" % number for number in range(6000, 6005)])
    second = archive(apache.namesrv, topic, to, checkpoint, spark=spark)
    assert (second.rows, second.total_rows, second.complete) == (5, 6005, True)
    archived = read_archive(spark, to)
    assert archived.select("queueId", "queueOffset").distinct().count() == 6005
    assert sorted(bytes(row.body)[:9] for row in archived.select("body").collect())[:6000] == expected
