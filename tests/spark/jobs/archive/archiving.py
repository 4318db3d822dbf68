"""A driver of the archive job in a process of its own, which can kill itself at a named point.

``python -m tests.spark.jobs.archive.archiving NAMESRV TOPIC TO CHECKPOINT POINT BATCH FORMAT``; POINT is
``before-commit`` (files are written, the commit is not), ``after-commit`` (the commit is, Spark's own is not) or
``never``. CHECKPOINT ``-`` means none.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.spark.topics import Topics

MOST = 3000
"""Messages of a batch."""


def driver_words(
    topics: Topics,
    topic: str,
    places: tuple[str | Path, str | Path],
    point: str,
    batch: int,
    table_format: str = "parquet",
) -> tuple[str, ...]:
    """The module and the arguments of a driver that archives a topic into places: archive and checkpoint."""
    return (
        "tests.spark.jobs.archive.archiving",
        topics.namesrv,
        topic,
        *map(str, places),
        point,
        str(batch),
        table_format,
    )


def main(namesrv: str, topic: str, to: str, checkpoint: str, point: str, batch: str, table_format: str) -> None:
    """Archive what is there now."""
    from cometmq.archive.changes import Batch
    from cometmq.archive.commits import Commit
    from cometmq.spark.archives.log import ArchiveLog
    from cometmq.spark.jobs.archive.job import archive

    append, last = ArchiveLog.append, int(batch)

    def killing(self: ArchiveLog, batch: Batch) -> Commit | None:
        if point == "before-commit" and batch.batch_id == last:
            os.kill(os.getpid(), signal.SIGKILL)
        commit = append(self, batch)
        if point == "after-commit" and batch.batch_id == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return commit

    ArchiveLog.append = killing  # type: ignore[method-assign]
    report = archive(
        namesrv,
        topic,
        to,
        None if checkpoint == "-" else checkpoint,
        max_offsets_per_trigger=MOST,
        table_format=table_format,
        master="local[2,3]",  # Spark repeats a task whose worker was killed
    )
    print(report.rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
