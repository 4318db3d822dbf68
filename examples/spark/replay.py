"""Archives a topic and sends it once to another one: python examples/spark/replay.py NAMESRV FROM TO LAKE."""

import sys
from pathlib import Path

from cometmq.client.sync import SyncAdmin
from cometmq.spark import archive, local_session, replay

NAMESRV, TOPIC, COPY = sys.argv[1:4]
LAKE = Path(sys.argv[4])

with SyncAdmin(NAMESRV) as admin:
    admin.create_topic(COPY, queues=len(admin.topic_stats(TOPIC).offset_table))  # as many as the original topic
spark = local_session("local[2]", "replay example")
print(archive(NAMESRV, TOPIC, LAKE / "archive", LAKE / "checkpoint", spark=spark).render())
print(replay(LAKE / "archive", NAMESRV, LAKE / "ledger", to=COPY, spark=spark).render())
again = replay(LAKE / "archive", NAMESRV, LAKE / "ledger", to=COPY, spark=spark)
print(f"a second run sends {again.messages}")
