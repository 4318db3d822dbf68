"""Streams into a Delta or an Iceberg table through that table's own sink; benchmarks/spark/tables.py starts it.

It runs with the Python of the newest Spark for which the table's jars exist, and imports nothing but PySpark. The first
argument is a JSON object: ``conf`` of the session, ``address`` of Kafka, ``topic``, ``queues``, the Parquet files
``source`` to fill it with, and ``comet``: the options of CometMQ's source. For each line of standard input, an object
with the ``source`` (a format of Spark), the ``format``, the ``path`` and the ``checkpoint`` of a new table, it answers
with a line: first when the table is there, then when the stream has ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)


def fill(spark: Any, given: Any) -> None:
    """Create the topic and write the source into it."""
    jvm, properties = spark._jvm, spark._jvm.java.util.Properties()
    properties.setProperty("bootstrap.servers", given["address"])
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    topics = jvm.java.util.ArrayList()
    topics.add(jvm.org.apache.kafka.clients.admin.NewTopic(given["topic"], given["queues"], 1))
    admin.createTopics(topics).all().get()
    admin.close()
    rows = spark.read.parquet(given["source"]).selectExpr("keys AS key", "body AS value")
    options = {"kafka.bootstrap.servers": given["address"], "topic": given["topic"]}
    rows.write.format("kafka").options(**options).save()


def main() -> None:
    """Serve the benchmark."""
    given = json.loads(sys.argv[1])
    spark = SparkSession.builder.master("local[2]").config(map=given["conf"]).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    fill(spark, given)
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        wanted = json.loads(line)
        options = {"kafka.bootstrap.servers": given["address"], "subscribe": given["topic"]}
        options = options if wanted["source"] == "kafka" else given["comet"]
        frame = spark.readStream.format(wanted["source"]).options(startingOffsets="earliest", **options).load()
        writer = frame.writeStream.option("checkpointLocation", wanted["checkpoint"]).trigger(availableNow=True)
        table = f"lake.`{Path(wanted['path']).name}`"  # a catalog of directories places it there
        if wanted["format"] == "iceberg":
            spark.sql(f"CREATE TABLE {table} ({COLUMNS}) USING iceberg")
        print("created", flush=True)
        sys.stdin.readline()
        query = writer.format("delta").start(wanted["path"]) if wanted["format"] == "delta" else writer.toTable(table)
        query.awaitTermination()
        print("done", flush=True)


if __name__ == "__main__":
    main()
