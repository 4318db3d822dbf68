"""Found by Spark itself: every module named ``pyspark_*`` that has a ``DefaultSource`` becomes a format.

So ``spark.read.format("rocketmq")`` works where CometMQ is installed, with nothing to register. Where it came as a
zip (``--py-files``) Spark does not look; call ``spark.dataSource.register(pyspark_rocketmq.DefaultSource)`` there.
"""

from __future__ import annotations

from cometmq.spark.data_source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
