"""Rows of ranges of offsets, of more queues than a condition for each would bear."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.spark.jobs.message_source import rows_in
from cometmq.spark.records.queues import OffsetRange, Queue

QUEUES = 2000


@pytest.mark.spark
def test_rows_of_ranges_of_thousands_of_queues_keep_their_order(spark: Any) -> None:
    place = "'orders' AS topic, 'broker-a' AS brokerName, cast(id % 2100 AS int) AS queueId"
    rows = spark.range(0, 210_000, 1, 3).selectExpr(*place.split(", "), "id div 2100 AS queueOffset", "id")
    ranges = [OffsetRange(Queue("orders", "broker-a", queue_id), 40, 41) for queue_id in range(QUEUES)]
    ranges[7] = OffsetRange(ranges[7].queue, 60, 75)
    found = rows_in(rows, ranges)
    assert found.columns == rows.columns
    assert found.count() == QUEUES - 1 + 15
    of_one = [row["id"] for row in found.where("queueId = 7").collect()]
    assert of_one == [2100 * offset + 7 for offset in range(60, 75)]
    parts = found.select("id").rdd.glom().collect()
    assert all(one.id < two.id for part in parts for one, two in pairwise(part))
