"""Why messages die, and another try for them: python examples/spark/dead_letters.py NAMESRV GROUP LEDGERS."""

import sys
from pathlib import Path

from cometmq.client.dead_letters import Selection
from cometmq.spark.dead_letters import dead_letters, send_again
from cometmq.spark.environment import local_session
from cometmq.spark.job_source import MessageSource

NAMESRV, GROUP, LEDGERS = sys.argv[1:]

spark = local_session("local[2]", "dead letters example")
found = dead_letters(MessageSource(NAMESRV), [GROUP], spark=spark)
print(found.render())
for topic in found.topics:
    print(f"{topic.letters} came from {topic.value}")

# They go back to where they came from; the ledger in the directory keeps each from being sent twice.
for attempt in (1, 2):
    (outcome,) = send_again(NAMESRV, [GROUP], Selection(), ledgers=Path(LEDGERS))
    print(f"attempt {attempt} sent {outcome.sent}, {outcome.sent_before} were sent before")
