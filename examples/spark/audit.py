"""Checks that broker, groups and archive agree: python examples/spark/audit.py NAMESRV TOPIC LAKE [GROUP …].

LAKE is a directory that replay.py has filled. Exit code 1 if something differs.
"""

import sys
from pathlib import Path

from cometmq.spark import audit, local_session

NAMESRV, TOPIC, LAKE, *GROUPS = sys.argv[1:]

spark = local_session("local[2]", "audit example")
found = audit(NAMESRV, TOPIC, archive=Path(LAKE) / "archive", groups=GROUPS, spark=spark)
print(found.render())
for way in found.lateness:
    print(f"{way.way}: half within {way.median_ms} ms, 99 % within {way.p99_ms} ms")
if not found.agrees:
    sys.exit("; ".join(difference.what for difference in found.disagreements))
