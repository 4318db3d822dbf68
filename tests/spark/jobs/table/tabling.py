"""A driver of the table job in a process of its own, which can kill itself at a named point.

``python -m tests.spark.jobs.table.tabling NAMESRV TOPIC TO POINT BATCH KIND``; POINT is ``before-commit`` (files are
written, the commit is not) or ``after-commit``. KIND is ``parquet`` or ``iceberg``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.spark.topics import Topics

MOST = 300
"""Messages of a commit."""


def driver_words(topics: Topics, topic: str, to: Path, point: str, batch: int, kind: str) -> tuple[str, ...]:
    """The module and the arguments of a driver that keeps a table of a topic."""
    return "tests.spark.jobs.table.tabling", topics.namesrv, topic, str(to), point, str(batch), kind


def place(to: Path, kind: str) -> dict[str, Any]:
    """Arguments for a table in a directory, or in an SQL catalog in it."""
    from cometmq.spark.archives.table import ICEBERG, TableFormat

    if kind != ICEBERG:
        return {"to": to}
    to.mkdir(exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{to}/catalog.db", "warehouse": f"file://{to}/warehouse"}
    return {"table_format": TableFormat(ICEBERG, "lake", "shop.orders", catalog)}


def main(namesrv: str, topic: str, to: str, point: str, batch: str, kind: str) -> None:
    """Commit what is there now."""
    from cometmq.archive.changes import Batch
    from cometmq.archive.commits import Commit
    from cometmq.spark.archives.log import ArchiveLog
    from cometmq.spark.jobs.table.job import fresh_table

    append, last = ArchiveLog.append, int(batch)

    def killing(self: ArchiveLog, batch: Batch) -> Commit | None:
        if point == "before-commit" and batch.batch_id == last:
            os.kill(os.getpid(), signal.SIGKILL)
        commit = append(self, batch)
        if point == "after-commit" and batch.batch_id == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return commit

    ArchiveLog.append = killing  # type: ignore[method-assign]
    report = fresh_table(
        topic,
        namesrv,
        **place(Path(to), kind),
        once=True,
        options={"maxOffsetsPerTrigger": str(MOST)},
        master="local[2]",
    )
    print(report.rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
