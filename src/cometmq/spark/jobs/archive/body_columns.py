"""Settles the columns of a batch before its commit.

Tasks decode bodies into the columns that the table has when the batch is planned, and report the columns that the
bodies need besides. If there are such columns, the driver decides on them once for all tasks, by the rule in
:mod:`cometmq.spark.records.body_columns.changes`, and tasks write the files again from their raw bodies. The commit
then adds the files and the columns at the same time, so no reader sees a value without its column. Changes are rare,
and only the files with such bodies are written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cometmq.archive.commits import BodyColumn
from cometmq.archive.files import DataFile
from cometmq.spark.archives.files import read_batches
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.errors import ArchiveError
from cometmq.spark.jobs.archive.writer import Manifest, OpenedArchive, RowWriter
from cometmq.spark.jobs.run import run_tasks
from cometmq.spark.records.body_columns.changes import changed_columns
from cometmq.spark.records.body_columns.conforming import conform
from cometmq.spark.records.body_columns.formats import KEEP, STOP
from cometmq.spark.records.body_columns.types import arrow_type
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class Settled(NamedTuple):
    """A batch whose files fit the columns of its commit."""

    manifests: Sequence[Manifest]
    columns: Sequence[BodyColumn]
    replaced: Sequence[str] = ()
    """Paths of files that were written again, which no commit names."""


def settle_columns(
    spark: SparkSession, log: ArchiveLog, archive: OpenedArchive, manifests: Sequence[Manifest]
) -> Settled:
    """Decide on the columns that a batch's bodies need, and write the files with such bodies again.

    :raises ArchiveError: the bodies need other columns, and the job has to stop then.
    """
    bodies = archive.bodies
    if bodies is None:
        return Settled(manifests, [])
    known = bodies.columns(log.body_columns())
    wanted = [{of.name: arrow_type(of.type) for of in manifest.wanted} for manifest in manifests if manifest.wanted]
    columns, changes = changed_columns(known, wanted)
    if not changes or bodies.change == KEEP:
        return Settled(manifests, known)
    if bodies.change == STOP:
        raise ArchiveError(
            f"the bodies need other columns: {'; '.join(changes[:10])}",
            next_step="run it with --schema-change add to add them, or with keep to leave them in the raw bodies",
        )
    _log.info("columns of %s change: %s", log.url, "; ".join(changes))
    old = [of.file for of in manifests if of.file is not None and of.wanted]
    made = run_tasks(spark, old, partial(write_again, archive, columns), DataFile)
    kept = [of for of in manifests if not of.wanted]
    return Settled([*kept, *(Manifest(file=file) for file in made)], columns, [file.path for file in old])


def write_again(archive: OpenedArchive, columns: Sequence[BodyColumn], file: DataFile) -> Iterator[DataFile]:
    """Write a file's messages to another file, with columns that are decoded from their raw bodies."""
    schema = arrow_schema(ARCHIVE_COLUMNS)
    rows = RowWriter(archive, columns)
    with rows.uploads() as uploads:
        batches = (conform(batch, schema) for batch in read_batches(archive.storage, file))
        made = rows.write(uploads, file.queue, batches)
    yield from (of.file for of in made if of.file is not None)
