"""The options of the table job."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Final

from cometmq.options.forms import DURATION, MEBIBYTES, one_of
from cometmq.spark.archives.table import TableFormat
from cometmq.spark.jobs.job import (
    ACCESS,
    FILE,
    NAMESRV,
    NEW_PLACE,
    SETTINGS,
    STORAGE_HELP,
    STORAGE_SETTINGS,
    SparkOptions,
    argument,
    job_options,
    option,
    options_from,
)
from cometmq.spark.jobs.options import OnStep
from cometmq.spark.jobs.table_options import TableOptions

FORMATS: Final = ("json", "avro", "protobuf", "none")
CHANGES: Final = ("add", "keep", "stop")


@job_options
class FreshTableOptions(SparkOptions):
    """Keep a table of a topic fresh: commit its messages every minute, with columns decoded from their bodies.

    The job runs until it is interrupted, and the same command continues it. The table is an Iceberg table in a catalog
    (--catalog and --table), or a directory or URL with Parquet files (--to). Small files are joined, and replaced files
    are deleted, beside the commits.

    Exit codes: 0 done, or another run has taken over; 1 failed, commits are kept; 2 usage error; 3 partly done:
    messages were deleted before they were read (with --option failOnDataLoss=false).
    """

    topic: str = option("Topic of the table.", "topic")
    namesrv: str = option("Nameserver addresses (host:port), separated by semicolons.", "-n", "--namesrv", form=NAMESRV)
    to: str | Path | None = option("Directory or URL of the table.", default=None, form=NEW_PLACE)
    _: KW_ONLY
    table_format: TableFormat | str | None = options_from(
        TableOptions, "format for a new table: its name, or a TableFormat", default=None
    )
    dead_letters: Sequence[str] = option(
        "Also keep the dead letters of this consumer group that came from the topic. May be repeated.",
        "--dead-letters",
        default=(),
        many=True,
    )
    delayed: bool = option("Also keep messages of the topic that wait for their delivery time.", default=False)
    interval: str = option("Commit when messages have waited this long (30s, 5m).", default="1m", key="maxTriggerDelay")
    once: bool = option("Commit the messages that are there, do all upkeep that is due, and end.", default=False)
    body: str = option("Format of the bodies.", default=FORMATS[0], form=one_of(*FORMATS))
    schema: str | None = option(
        "Columns of JSON bodies, as in 'id bigint, paid boolean', or a file that contains them; with Avro, the .avsc "
        "file; with Protobuf, the descriptor file. Without it, the fields of JSON bodies become columns.",
        default=None,
    )
    message: str | None = option("Full name of the message type (with --body protobuf).", default=None)
    schema_change: str = option(
        "If bodies need other columns: add columns and widen types, keep the columns, or stop the job.",
        default=CHANGES[0],
        form=one_of(*CHANGES),
    )
    join_every_ms: int = option(
        "Join small files this often (30m, 2h).", "--join-every", default=15 * 60_000, form=DURATION
    )
    target_bytes: int = option("Join files up to this size in MiB.", "--target-mb", default=128 << 20, form=MEBIBYTES)
    keep_versions_ms: int = option(
        "Delete replaced files and old versions of the table after this time.",
        "--keep-versions",
        default=24 * 3_600_000,
        form=DURATION,
    )
    keep_ms: int | None = option(
        "Remove messages that are older than this from the table (90d). By default, all are kept.",
        "--keep",
        default=None,
        form=DURATION,
    )
    starting_offsets: str = option(
        "Starting offsets for queues that are not in the table yet: earliest, latest or JSON.", default="earliest"
    )
    metrics: str | Path | None = option(
        "File for metrics in Prometheus' text format (.prom), written every 10 seconds.", default=None, form=FILE
    )
    status: str | Path | None = option(
        "File for a live report in JSON (.json), written every 10 seconds; the console shows it.",
        default=None,
        form=FILE,
    )
    options: Mapping[str, str] | None = option(
        "Any other source option. May be repeated.", "--option", default=None, form=SETTINGS
    )
    access: Mapping[str, str] | None = option("Credentials and TLS", default=None, form=ACCESS, secret=True)
    storage: Mapping[str, str] | None = option(STORAGE_HELP, default=None, form=STORAGE_SETTINGS, secret=True)
    on_batch: OnStep | None = argument("called after each commit", default=None)
    stop: threading.Event | None = argument("event that ends the run after the current commit", default=None)
