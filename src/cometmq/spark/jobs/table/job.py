"""The table job. It is the archive job with columns that are decoded from bodies, and with upkeep beside it.

All guarantees are those of the archive (:mod:`cometmq.spark.jobs.archive.job`): messages, offsets and columns are
committed in one transaction, so a run that is killed or replaced at any point leaves neither a gap nor a duplicate.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.archive.errors import TakenOverError
from cometmq.client.route import route_of
from cometmq.message.names import DLQ_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.paths import local_path
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.archives.table import DELTA, ICEBERG, TableFormat
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.archive.job import TableWork, run_archive
from cometmq.spark.jobs.archive.report import ArchiveRun
from cometmq.spark.jobs.archive.writer import OpenedArchive
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import ArchiveOptions
from cometmq.spark.jobs.table.options import FreshTableOptions
from cometmq.spark.jobs.table.report import TableReport
from cometmq.spark.jobs.table.upkeep import TableUpkeep, UpkeepRules, run_every
from cometmq.spark.jobs.table.watch import LiveFiles, TableWatch
from cometmq.spark.records.body_columns.formats import bodies_of
from cometmq.spark.security_options import server_options
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.offsets import closed_topic
from cometmq.spark.source.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WATCH_S: Final = 10
"""Interval at which metrics and the live report are written."""
_LEAST_BYTES_SHARE: Final = 4


@job(FreshTableOptions)
def fresh_table(options: FreshTableOptions) -> TableReport:
    """Keep a table of a topic fresh until the run is stopped, and return the report.

    :raises OptionError: an argument is invalid, the topic does not exist, or a column cannot have a given type.
    :raises ArchiveError: another run holds the table's directory, or somebody has altered the table.
    :raises SparkSourceError: the query failed; committed messages are kept.
    """
    bodies = bodies_of(options.body, options.schema, options.message, options.schema_change)
    place, wanted = _place(options)
    more = {"badBodies": "null", **(options.options or {})}
    topics = _topics(options)
    run = _Beside(options, topics, more)
    given = ArchiveOptions(
        options.namesrv,
        topics,
        place,
        table_format=wanted,
        commit_interval=None if options.once else options.interval,
        starting_offsets=options.starting_offsets,
        options=more,
        access=options.access,
        storage=options.storage,
        on_batch=options.on_batch,
        stop=options.stop,
        spark=options.spark,
        master=options.master,
    )
    try:
        run_archive(given, TableWork(bodies, options.topic, run.beside))
    except TakenOverError:
        if run.report is None:
            raise
        return dataclasses.replace(run.report, taken_over=True)
    if run.report is None:
        raise ArchiveError("the messages are committed, but the state of the table cannot be read: see the log")
    return run.report


def _topics(options: FreshTableOptions) -> list[str]:
    """Return the topics in which messages of the table are stored.

    :raises OptionError: a topic exists but cannot be read.
    """
    more = [f"{DLQ_PREFIX}{group}" for group in options.dead_letters]
    more += [SCHEDULE_TOPIC, TIMER_TOPIC] if options.delayed else []
    cluster = Cluster(parse_options({**server_options(options.namesrv, options.access), "topic": options.topic}))
    for name in more:
        route = cluster.route(name)
        if route is not None and not route_of(name, route).read_queues:
            raise closed_topic(name)
    return [options.topic, *more]


def _place(options: FreshTableOptions) -> tuple[str | Path, TableFormat | None]:
    """Return the table's place and format.

    :raises OptionError: neither a directory nor a catalog's table is given, or the format cannot have columns.
    """
    wanted = options.table_format
    wanted = TableFormat(wanted) if isinstance(wanted, str) else wanted
    if wanted is not None and wanted.name == DELTA:
        raise OptionError("a fresh table is a Parquet or an Iceberg table", next_step=f"use --format {ICEBERG}")
    if options.to is not None:
        return options.to, wanted
    if wanted is None or wanted.catalog is None or wanted.table is None:
        raise OptionError(
            "the table needs a place", next_step="name it with --catalog and --table, or give a directory with --to"
        )
    return f"iceberg://{wanted.catalog}/{wanted.table}", wanted


@dataclass
class _Beside:
    """The work beside the commits of one run: upkeep, metrics and the live report."""

    options: FreshTableOptions
    topics: list[str]
    source: dict[str, str]
    report: TableReport | None = field(default=None, init=False)

    @contextmanager
    def beside(self, spark: SparkSession, log: ArchiveLog, run: ArchiveRun) -> Iterator[None]:
        options, opened = self.options, OpenedArchive.of(log)
        rules = UpkeepRules(options.join_every_ms, options.target_bytes, options.keep_versions_ms, options.keep_ms)
        upkeep = TableUpkeep(spark, opened.open_log(), rules)
        source = parse_options(
            {**server_options(options.namesrv, options.access), "topic": ",".join(self.topics), **self.source}
        )
        small = options.target_bytes // _LEAST_BYTES_SHARE
        watch = TableWatch(opened.open_log(), run, upkeep.totals, source, small_bytes=small)
        files = LiveFiles(watch, _path(options.metrics), _path(options.status))
        ended = threading.Event()
        threads = [
            threading.Thread(target=run_every, args=(_WATCH_S, lambda: files.write(running=True), ended), daemon=True),
            threading.Thread(
                target=run_every, args=(options.join_every_ms / 1000, lambda: upkeep.run(ended), ended), daemon=True
            ),
        ]
        files.write(running=True)
        for thread in threads if not options.once else ():
            thread.start()
        try:
            yield
            if options.once:
                upkeep.run()
        finally:
            ended.set()
            for thread in threads if not options.once else ():
                thread.join()
            files.write(running=False)
            self.report = files.last and dataclasses.replace(files.last, running=False)


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else local_path(file)
