"""Writes rows to a topic from a batch and from a stream: python examples/spark/sink.py NAMESRV TOPIC CHECKPOINT."""

import os
import sys

from pyspark.sql import SparkSession

NAMESRV, TOPIC, CHECKPOINT = sys.argv[1:]

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

orders = spark.range(1000).selectExpr(
    "to_json(struct(id AS order, id % 97 AS amount)) AS body",
    "if(id % 3 = 0, 'paid', 'sent') AS tags",
    "array(concat('order-', id)) AS keys",
    "concat('customer-', id % 10) AS shardingKey",  # the orders of one customer stay in their order
)
orders.write.format("rocketmq").mode("append").option("namesrvAddr", NAMESRV).option("topic", TOPIC).save()
print("batch written")

numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
query = (
    numbers.selectExpr("cast(value AS string) AS body")
    .writeStream.format("rocketmq")
    .option("namesrvAddr", NAMESRV)
    .option("topic", TOPIC)
    .option("checkpointLocation", CHECKPOINT)
    .trigger(once=True)
    .start()
)
query.awaitTermination()
print("stream written")
spark.stop()
