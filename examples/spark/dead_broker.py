"""Reads the disk of a broker that died, without any broker: python examples/spark/dead_broker.py STORE BROKER LAKE."""

import sys
from pathlib import Path

from pyspark.sql import functions as f

from cometmq.spark import archive_store, local_session, read_archive

STORE, BROKER = sys.argv[1:3]
LAKE = Path(sys.argv[3])

spark = local_session("local[2]", "dead broker example")

# Read all messages; damaged records go to a directory.
messages = spark.read.format("rocketmq_store").options(brokerName=BROKER, badRecordsPath=str(LAKE / "bad")).load(STORE)
messages.groupBy("topic").agg(f.count("*").alias("messages"), f.max("storeTimestamp").alias("last")).orderBy(
    "topic"
).show(truncate=False)

# Archive them all; replay sends an archive to another broker.
report = archive_store(
    STORE, LAKE / "archive", broker_name=BROKER, options={"badRecordsPath": str(LAKE / "bad")}, spark=spark
)
print(report.render())
print(f"{read_archive(spark, LAKE / 'archive').count()} messages are safe")
