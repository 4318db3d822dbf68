"""Sends Avro bodies, reads them back, and separates other bodies: python examples/spark/bodies.py [NAMESRV [TOPIC]]."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cometmq.client.sync import SyncAdmin
from cometmq.spark.bodies import from_avro, to_avro

NAMESRV, TOPIC = (*sys.argv[1:], *("127.0.0.1:9876", "avro-orders")[len(sys.argv) - 1 :])
ORDER = """
{"type": "record", "name": "Order", "fields": [
  {"name": "id", "type": "long"},
  {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
  {"name": "note", "type": ["null", "string"], "default": null}
]}
"""

with SyncAdmin(NAMESRV) as admin:
    if TOPIC not in admin.topics():
        admin.create_topic(TOPIC)
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
reach = {"namesrvAddr": NAMESRV, "topic": TOPIC}

orders = spark.range(100).selectExpr("struct(id, cast(id / 4 AS decimal(10,2)) AS price) AS order")
bodies = orders.select(to_avro("order", ORDER).alias("body"))
foreign = spark.createDataFrame([(b"no Avro",)], "body binary")
bodies.union(foreign).write.format("rocketmq").mode("append").options(**reach).save()

decoded = (
    spark.read.format("rocketmq")
    .options(**reach)
    .load()
    .select("msgId", from_avro("body", ORDER, with_reason=True).alias("order"))
    .cache()
)
good = decoded.where("order.reason IS NULL").select("order.value.*")
good.agg(f.count("*").alias("orders"), f.sum("price").alias("worth")).show()
decoded.where("order.reason IS NOT NULL").select("msgId", "order.reason").show(truncate=False)
spark.stop()
