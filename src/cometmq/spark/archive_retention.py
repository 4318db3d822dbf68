"""Retention of an archive: hours that are too old leave its table, and files that belong to no table leave the disk.

:func:`expire` takes whole files out, by one commit: only such that the table names, and whose last message was stored
before the keep window. How far each queue is archived stays as it was. :func:`vacuum` deletes what the table names no
more since a while, and what it never named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.spark.archive_commit import hour_ended_ms
from cometmq.spark.archive_log import REMOVED_KEPT_MS, ArchiveLog
from cometmq.spark.archive_upkeep import EXPIRE, VACUUM, Change, Upkeep, UpkeepReport
from cometmq.spark.errors import OptionError

LEAST_KEPT_MS: Final = 3_600_000
"""Shortest keep window: an hour that is still written to is never taken."""


def expire(
    archive: str | Path,
    *,
    keep_ms: int,
    topics: Sequence[str] = (),
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> UpkeepReport:
    """Take hours that ended longer than ``keep_ms`` ago out of an archive, and return what was done.

    :param keep_ms: the keep window, ms back from now, by store time.
    :param topics: only these; all without any.
    :param dry_run: change nothing; say what would go.
    :raises OptionError: the window is shorter than an hour, or there is no archive, or none of a topic.
    :raises ArchiveError: another upkeep of it is under way.
    """
    if keep_ms < LEAST_KEPT_MS:
        raise OptionError(f"a keep window of {keep_ms} ms is too short", next_step="keep an hour at least")
    log = ArchiveLog(archive, clock=clock)
    log.demand_any(topics)
    work = Upkeep(EXPIRE, log, dry_run)
    before_ms = clock.now_ms() - keep_ms
    with log.kept_up():
        old = [
            file
            for file in log.files()
            if hour_ended_ms(file.path) <= before_ms
            and file.max_store_ms < before_ms
            and (not topics or file.topic in topics)
        ]
        if old and not dry_run:
            log.expire(old)
            work.commits += 1
        for file in sorted(old, key=lambda file: file.path):
            work.changed(Change(file.topic, file.path, (file,), ()))
    return work.report(finished=True)


def vacuum(
    archive: str | Path, *, keep_ms: int = REMOVED_KEPT_MS, dry_run: bool = False, clock: Clock = SYSTEM_CLOCK
) -> UpkeepReport:
    """Delete the files below an archive that its table does not name, and return which they were.

    :param keep_ms: files that belonged to the archive within this time stay, for those who read an older version.
    :param dry_run: delete nothing; say what would go.
    :raises ArchiveError: another upkeep of it is under way.
    """
    log = ArchiveLog(archive, clock=clock)
    work = Upkeep(VACUUM, log, dry_run)
    for path, size in log.sweep(keep_ms=keep_ms, dry_run=dry_run):
        work.deleted(path, size)
    return work.report(finished=True)
