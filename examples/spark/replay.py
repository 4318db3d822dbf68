"""Archives a topic, sends it to another one, and audits both: python examples/spark/replay.py NAMESRV FROM TO LAKE."""

import sys
from pathlib import Path

from cometmq.spark.archive import archive
from cometmq.spark.audit import audit
from cometmq.spark.environment import local_session
from cometmq.spark.replay import replay

NAMESRV, TOPIC, COPY = sys.argv[1:4]
LAKE = Path(sys.argv[4])

spark = local_session("local[2]", "replay example")
archive(NAMESRV, TOPIC, LAKE / "archive", LAKE / "checkpoint", spark=spark)
print(audit(NAMESRV, TOPIC, archive=LAKE / "archive", spark=spark).render())
report = replay(LAKE / "archive", NAMESRV, LAKE / "ledger", to=COPY, spark=spark)
print(report.render())
again = replay(LAKE / "archive", NAMESRV, LAKE / "ledger", to=COPY, spark=spark)
print(f"a second run sends {again.messages}")
print(audit(NAMESRV, COPY, spark=spark).render())
spark.stop()
