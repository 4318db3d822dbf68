"""Calls of readers as Spark makes them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")
pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from cometmq.spark.source.options import SourceOptions
from cometmq.spark.source.reader import RocketMQReader

PLACE = StructType([StructField("queueId", IntegerType()), StructField("queueOffset", LongType())])
Place = tuple[int, int]


def rows(reader: Any, partitions: Sequence[InputPartition]) -> list[Place]:
    return [
        (row["queueId"], row["queueOffset"])
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def everything(*counts: int) -> list[Place]:
    return [(queue_id, offset) for queue_id, count in enumerate(counts) for offset in range(count)]


def read(options: SourceOptions) -> list[Place]:
    reader = RocketMQReader(options, PLACE)
    return rows(reader, reader.partitions())
