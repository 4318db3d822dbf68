"""Writes each row once, whatever is repeated: python examples/spark/exactly_once.py [NAMESRV [FROM [TO]]].

Needs CometMQ brokers, which recognise the rows of a repeated task. sink.py fills topic FROM.
"""

import sys
import tempfile

from cometmq.client.sync import SyncAdmin
from cometmq.spark import local_session

NAMESRV, TOPIC, PAID = (*sys.argv[1:], *("127.0.0.1:9876", "orders", "orders-paid")[len(sys.argv) - 1 :])

with SyncAdmin(NAMESRV) as admin:
    admin.create_topic(PAID, queues=4)
spark = local_session("local[2]", "exactly-once example")
exactly_once = {"namesrvAddr": NAMESRV, "topic": PAID, "deliveryGuarantee": "exactly-once"}


def messages_in(topic: str) -> int:
    """Count the messages of a topic."""
    rows = spark.read.format("rocketmq").option("namesrvAddr", NAMESRV).option("topic", topic)
    return rows.schema("queueOffset bigint").load().count()


# A stream from topic to topic. The checkpoint names the producer: a query that starts again repeats nothing.
query = (
    spark.readStream.format("rocketmq")
    .options(namesrvAddr=NAMESRV, subscribe=TOPIC, startingOffsets="earliest", tags="paid")
    .schema("body binary, tags string, keys string")
    .load()
    .writeStream.format("rocketmq")
    .options(**exactly_once, checkpointLocation=tempfile.mkdtemp())  # a real query needs a permanent one
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(f"{messages_in(PAID)} messages after the stream")

# A batch whose job runs again, after a failure or by mistake: its producerId identifies it.
late = spark.range(10).selectExpr("concat('paid late: ', id) AS body")
for attempt in (1, 2):
    late.write.format("rocketmq").mode("append").options(**exactly_once, producerId=f"late-{PAID}").save()
    print(f"{messages_in(PAID)} messages after attempt {attempt}")
