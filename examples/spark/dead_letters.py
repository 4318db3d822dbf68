"""Shows why messages die, and sends them again: python examples/spark/dead_letters.py NAMESRV GROUP LEDGERS."""

import sys
from pathlib import Path

from cometmq.client.dead_letters import Selection
from cometmq.spark import MessageSource, dead_letters, local_session, send_again

NAMESRV, GROUP, LEDGERS = sys.argv[1:]

spark = local_session("local[2]", "dead letters example")
found = dead_letters(MessageSource(NAMESRV), [GROUP], spark=spark)
print(found.render())
for topic in found.topics:
    print(f"{topic.letters} came from {topic.value}")

# They go to their original topics; the ledger in the directory prevents sending one twice.
for attempt in (1, 2):
    (outcome,) = send_again(NAMESRV, [GROUP], Selection(), ledgers=Path(LEDGERS))
    print(f"attempt {attempt} sent {outcome.sent}, {outcome.sent_before} were sent before")
