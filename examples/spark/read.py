"""Reads a topic as a table: python examples/spark/read.py [NAMESRV [TOPIC]]; sink.py fills the topic."""

import sys

from pyspark.sql import functions as f

from cometmq.spark import local_session

NAMESRV, TOPIC = (*sys.argv[1:], *("127.0.0.1:9876", "orders")[len(sys.argv) - 1 :])

spark = local_session("local[2]", "read example")
source = spark.read.format("rocketmq").option("namesrvAddr", NAMESRV).option("topic", TOPIC)

# The schema is a projection: only these columns are decoded.
orders = source.schema("tags string, body binary, storeTimestamp timestamp").load()
amounts = orders.withColumn("order", f.from_json(f.col("body").cast("string"), "order bigint, amount bigint"))
amounts.groupBy("tags").agg(f.count("*").alias("orders"), f.sum("order.amount").alias("amount")).orderBy("tags").show()

# The broker filters by tag.
paid = source.option("tags", "paid").schema("queueId int, queueOffset bigint, keys string").load()
print(f"{paid.count()} orders are paid")

# SQL can read topics too.
spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING rocketmq OPTIONS (namesrvAddr '{NAMESRV}', topic '{TOPIC}')")
spark.sql("SELECT queueId, count(*) AS messages FROM orders GROUP BY queueId ORDER BY queueId").show()
