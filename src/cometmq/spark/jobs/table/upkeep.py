"""Upkeep of a fresh table: joins small files, and removes old messages, replaced files and old versions.

It runs beside the commits, in a thread of the driver; Spark tasks join the files. A join commits after about
:data:`_COMMIT_BYTES`, so that the tasks of a commit wait for some seconds at most. Files of the current hour are joined
too: the next join adds the files since, until a file has the target size. A failed step is logged and counted, and
repeated the next time; it never stops the commits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.archive.files import HOUR_MS
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.jobs.archive.upkeep import (
    COMPACT,
    Upkeep,
    expired_files,
    join_planned,
    planned_joinings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMIT_BYTES: Final = 256 * 1024 * 1024
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpkeepRules:
    """When files are joined and removed."""

    join_every_ms: int
    target_bytes: int
    keep_versions_ms: int
    keep_ms: int | None


@dataclass
class UpkeepTotals:
    """The results of one run's upkeep."""

    files_joined: int = 0
    files_deleted: int = 0
    failures: int = 0
    last_failure: str = ""


class TableUpkeep:
    """The upkeep of one run. Only one thread uses it."""

    def __init__(
        self, spark: SparkSession, log: ArchiveLog, rules: UpkeepRules, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._spark = spark
        self._log = log
        self._rules = rules
        self._clock = clock
        self.totals: Final = UpkeepTotals()

    def run(self, stop: threading.Event | None = None) -> None:
        """Do all upkeep that is due. A failure is logged, and the next step follows."""
        for step in (self._join, self._expire, self._delete):
            if stop is not None and stop.is_set():
                return
            try:
                step(stop)
            except Exception as error:  # Spark, catalogs and stores raise anything; the commits must go on
                self.totals.failures += 1
                self.totals.last_failure = str(error)
                _log.warning("upkeep of %s failed and will be repeated: %s", self._log.url, error)

    def _join(self, stop: threading.Event | None) -> None:
        work = Upkeep(COMPACT, self._log, dry_run=False)
        with self._log.locked_for_upkeep():
            now_ms = self._clock.now_ms()
            planned = planned_joinings(self._log.files(), self._rules.target_bytes, now_ms + HOUR_MS)
            join_planned(self._spark, self._log, planned, work, stop, commit_bytes=_COMMIT_BYTES)
        self.totals.files_joined += work.files

    def _expire(self, _: threading.Event | None) -> None:
        if self._rules.keep_ms is None:
            return
        with self._log.locked_for_upkeep():
            old = expired_files(self._log.files(), self._clock.now_ms() - self._rules.keep_ms)
            if old:
                self._log.expire(old)

    def _delete(self, _: threading.Event | None) -> None:
        self.totals.files_deleted += len(self._log.sweep(keep_ms=self._rules.keep_versions_ms))


def run_every(interval_s: float, work: Callable[[], object], stop: threading.Event) -> None:
    """Call ``work`` at intervals until the event is set."""
    while not stop.wait(interval_s):
        work()
