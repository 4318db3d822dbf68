"""Watches a fresh table: its lag, the sizes of its files, metrics for Prometheus, and the live report."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cometmq.archive.files import DataFile
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.durable import replace_file
from cometmq.errors import CometMQError
from cometmq.metrics.exposition import exposition
from cometmq.metrics.family import Family, Kind, Sample
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.jobs.archive.report import ArchiveRun
from cometmq.spark.jobs.table.report import TableReport
from cometmq.spark.jobs.table.upkeep import UpkeepTotals
from cometmq.spark.records.queues import Offsets, Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import SourceOptions

_log = logging.getLogger(__name__)
_BEHIND: Final = Family(
    "cometmq_table_messages_behind",
    Kind.GAUGE,
    "Messages of the queue that are not read, or not committed to the table.",
    ("topic", "broker", "queue", "stage"),
)
_SECONDS: Final = Family(
    "cometmq_table_seconds_behind",
    Kind.GAUGE,
    "Time since the newest committed message of a queue that is behind was stored; 0 if none is behind.",
)
_GAUGES: Final = {
    "table_files": Family("cometmq_table_files", Kind.GAUGE, "Files of the table."),
    "table_bytes": Family("cometmq_table_bytes", Kind.GAUGE, "Total size of the table's files."),
    "small_files": Family(
        "cometmq_table_small_files",
        Kind.GAUGE,
        "Files smaller than a quarter of the size for joined files.",
    ),
    "total_rows": Family("cometmq_table_rows", Kind.GAUGE, "Messages in the table."),
    "rows": Family("cometmq_table_committed_rows_total", Kind.COUNTER, "Messages that this run has committed."),
    "batches": Family("cometmq_table_commits_total", Kind.COUNTER, "Commits of messages by this run."),
    "bad_bodies": Family("cometmq_table_bad_bodies_total", Kind.COUNTER, "Messages of this run with a bodyError."),
    "files_joined": Family("cometmq_table_joined_files_total", Kind.COUNTER, "Small files that this run has joined."),
    "files_deleted": Family("cometmq_table_deleted_files_total", Kind.COUNTER, "Files that this run has deleted."),
    "upkeep_failures": Family(
        "cometmq_table_upkeep_failures_total", Kind.COUNTER, "Steps of upkeep that failed and will be repeated."
    ),
}
_WRITTEN: Final = Family(
    "cometmq_table_written_seconds", Kind.GAUGE, "Time when this file was written, in seconds since 1970."
)


class TableWatch:
    """The state of one run's table."""

    def __init__(
        self,
        log: ArchiveLog,
        run: ArchiveRun,
        upkeep: UpkeepTotals,
        source: SourceOptions,
        *,
        small_bytes: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Watch a table.

        :param log: a log that no other thread uses.
        :param small_bytes: size below which a file counts as small.
        """
        self._log = log
        self._run = run
        self._upkeep = upkeep
        self._cluster = Cluster(source)
        self._small_bytes = small_bytes
        self._clock = clock
        self._began_ms = clock.now_ms()
        self._sequence = -1
        self._files: list[DataFile] = []
        self._newest_ms: dict[Queue, int] = {}
        self._firsts: Offsets = {}
        self._ends: Offsets = {}

    def report(self, *, running: bool) -> TableReport:
        """Return the table's state. If brokers do not answer, the lag is that of the last answer."""
        self._refresh()
        done = self._run.report(finished=True)
        committed = {of.queue: of.next for of in done.queues}
        behind = self._behind(committed)
        now_ms = self._clock.now_ms()
        late = [now_ms - self._newest_ms.get(queue, self._began_ms) for queue, count in behind.items() if count]
        fields = {field.name: getattr(done, field.name) for field in dataclasses.fields(done)}
        fields["warnings"] = tuple(self._run.gap_warnings())
        return TableReport(
            **fields,
            columns=tuple(self._log.body_columns()),
            bad_bodies=self._run.bad_bodies,
            table_files=len(self._files),
            table_bytes=sum(file.bytes for file in self._files),
            small_files=sum(file.bytes < self._small_bytes for file in self._files),
            read_behind=sum(self._behind({**committed, **self._run.read_ends}).values()),
            committed_behind=sum(behind.values()),
            seconds_behind=max(late, default=0) / 1000,
            files_joined=self._upkeep.files_joined,
            files_deleted=self._upkeep.files_deleted,
            upkeep_failures=self._upkeep.failures,
            running=running,
        )

    def _refresh(self) -> None:
        last = self._log.last()
        if last is not None and last.sequence != self._sequence:
            self._files = self._log.files()
            self._sequence = last.sequence
            for file in self._files:
                self._newest_ms[file.queue] = max(file.max_store_ms, self._newest_ms.get(file.queue, 0))
        try:
            bounds = self._cluster.bounds(self._cluster.queues())
        except CometMQError as error:
            _log.warning("the lag of %s is unknown: %s", self._log.url, error)
        else:
            self._ends = {queue: held.end for queue, held in bounds.items()}
            self._firsts = {queue: held.first for queue, held in bounds.items()}

    def _behind(self, reached: Mapping[Queue, int]) -> dict[Queue, int]:
        return {
            queue: max(end - max(reached.get(queue, 0), self._firsts[queue]), 0) for queue, end in self._ends.items()
        }

    def metrics(self, report: TableReport) -> bytes:
        """Return the state in Prometheus' text format."""
        return b"".join(exposition(iter([list(self._samples(report))]), {"table": report.directory}))

    def _samples(self, report: TableReport) -> Iterator[Sample]:
        committed = {of.queue: of.next for of in report.queues}
        for stage, reached in (("committed", committed), ("read", {**committed, **self._run.read_ends})):
            for queue, count in self._behind(reached).items():
                yield _BEHIND, (queue.topic, queue.broker, str(queue.queue_id), stage), count
        yield _SECONDS, (), report.seconds_behind
        for name, family in _GAUGES.items():
            yield family, (), getattr(report, name)
        yield _WRITTEN, (), self._clock.now_ms() / 1000


class LiveFiles:
    """The files to which a run writes its metrics and its report."""

    def __init__(self, watch: TableWatch, metrics: Path | None, status: Path | None) -> None:
        self._watch = watch
        self._metrics = metrics
        self._status = status
        self._lock = threading.Lock()
        self.last: TableReport | None = None
        """The last report; None if the state of the table was never known."""

    def write(self, *, running: bool) -> None:
        """Write the files. A failure is logged, and the next call tries again."""
        with self._lock:
            try:
                self.last = report = self._watch.report(running=running)
                if self._metrics is not None:
                    replace_file(self._metrics, self._watch.metrics(report))
                if self._status is not None:
                    content = report.to_dict() | {"exit_code": report.exit_code}
                    replace_file(self._status, json.dumps(content, indent=2).encode())
            except Exception as error:  # catalogs and stores raise anything; the commits must go on
                _log.warning("the state of the table cannot be written: %s", error)
