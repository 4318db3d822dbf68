"""Says how exact delayed messages were and what is stuck: python examples/spark/delays.py NAMESRV [TOPIC …]."""

import sys

from cometmq.spark import MessageSource, delay

found = delay(MessageSource(sys.argv[1]), sys.argv[2:], master="local[2]")
print(found.render())
for of in found.stuck_messages:
    print(f"{of.unique_key} of {of.topic} did not come: {of.reason}")
sys.exit(3 if found.is_stuck else 0)
