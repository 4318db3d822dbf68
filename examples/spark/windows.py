"""Counts a stream by the minute and shows how far it is behind: python examples/spark/windows.py [NAMESRV [TOPIC]]."""

import sys
import tempfile

from pyspark.sql import functions as f

from cometmq.spark import LagListener, lag_now, local_session

NAMESRV, TOPIC = (*sys.argv[1:], *("127.0.0.1:9876", "orders")[len(sys.argv) - 1 :])

spark = local_session("local[2]", "windows example")
listener = LagListener()  # with a file name it writes a file for Prometheus' node exporter
spark.streams.addListener(listener)

orders = (
    spark.readStream.format("rocketmq")
    .option("namesrvAddr", NAMESRV)
    .option("subscribe", TOPIC)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 600)
    .schema("tags string, storeTimestamp timestamp")
    .load()
)
counts = (
    orders.withWatermark("storeTimestamp", "5 minutes")
    .groupBy(f.window("storeTimestamp", "1 minute"), "tags")
    .agg(f.count("*").alias("orders"))
)
query = (
    counts.writeStream.queryName("orders_by_minute")
    .format("memory")
    .outputMode("complete")
    .option("checkpointLocation", tempfile.mkdtemp())  # a real query needs a permanent one
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.table("orders_by_minute").selectExpr("window.start AS minute", "tags", "orders").orderBy("minute", "tags").show()
for progress in query.recentProgress:
    source = progress["sources"][0]
    print(f"micro-batch {progress['batchId']}: {source['numInputRows']} messages")
print(f"now {lag_now(query.recentProgress[-1]['sources'][0], NAMESRV).messages} messages behind")
spark.streams.removeListener(listener)
