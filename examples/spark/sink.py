"""Writes rows to a topic from a batch and from a stream: python examples/spark/sink.py [NAMESRV [TOPIC]]."""

import sys
import tempfile

from cometmq.client.sync import SyncAdmin
from cometmq.spark import local_session

NAMESRV, TOPIC = (*sys.argv[1:], *("127.0.0.1:9876", "orders")[len(sys.argv) - 1 :])

with SyncAdmin(NAMESRV) as admin:
    admin.create_topic(TOPIC, queues=4)
spark = local_session("local[2]", "sink example")

orders = spark.range(1000).selectExpr("id", "id % 97 AS amount", "concat('customer-', id % 10) AS customer")
# One queue for each customer, and one task, so that the orders of a customer keep their sequence.
in_order = orders.repartition("customer").sortWithinPartitions("id")
messages = in_order.selectExpr(
    "to_json(struct(id AS order, amount)) AS body",
    "if(id % 3 = 0, 'paid', 'sent') AS tags",
    "array(concat('order-', id)) AS keys",
    "customer AS shardingKey",
)
messages.write.format("rocketmq").mode("append").option("namesrvAddr", NAMESRV).option("topic", TOPIC).save()
print("batch written")

numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
query = (
    numbers.selectExpr("""to_json(named_struct('order', 1000 + value, 'amount', 5)) AS body""", "'late' AS tags")
    .writeStream.format("rocketmq")
    .option("namesrvAddr", NAMESRV)
    .option("topic", TOPIC)
    .option("checkpointLocation", tempfile.mkdtemp())  # a real query needs a permanent one
    .trigger(once=True)
    .start()
)
query.awaitTermination()
print("stream written")
