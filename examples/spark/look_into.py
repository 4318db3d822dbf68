"""Measures latencies by the message trace: python examples/spark/look_into.py NAMESRV [TRACE_TOPIC]."""

import sys

from cometmq.message.names import TRACE_TOPIC
from cometmq.spark import MessageSource, local_session, trace

NAMESRV = sys.argv[1]
TRACES = sys.argv[2] if len(sys.argv) > 2 else TRACE_TOPIC

spark = local_session("local[2]", "look into example")
found = trace(MessageSource(NAMESRV), trace_topic=TRACES, spark=spark)
print(found.render())
for of in found.latencies:
    print(f"{of.group} had {of.consumed} of {of.messages} messages of {of.topic}, half of them within {of.p50} ms")
