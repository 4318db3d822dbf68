"""Found by Spark itself, as :mod:`pyspark_rocketmq` is: makes ``spark.read.format("rocketmq_store")`` work."""

from __future__ import annotations

from cometmq.spark.data_source import RocketMQStoreSource as DefaultSource

__all__ = ["DefaultSource"]
