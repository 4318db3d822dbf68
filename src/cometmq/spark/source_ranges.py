"""Offsets of a source, whatever it is: what each queue holds, and the messages of some ranges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.archive_reader import read_files
from cometmq.spark.cluster import Bounds, Cluster
from cometmq.spark.job_source import MessageSource
from cometmq.spark.options import parse_options
from cometmq.spark.queues import OffsetRange, Offsets, Queue, offsets_to_json
from cometmq.spark.store_files import ConsumeQueues
from cometmq.spark.within import within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LATEST: Final = -1
"""Stands for the end of a queue: one that begins there has nothing to read."""


def bounds_of(source: MessageSource, topics: Sequence[str]) -> dict[Queue, Bounds]:
    """What each queue of some topics holds now.

    :raises OptionError: a topic is not there.
    :raises UnreachableError: a broker does not answer.
    """
    queues = source.queues(topics)
    if source.namesrv is not None:
        return Cluster(parse_options({**source.servers(), "topic": ",".join(topics)})).bounds(queues)
    if source.archive is not None:
        totals = {
            Queue(of.topic, of.broker, of.queue_id): Bounds(of.first, of.next)
            for of in ArchiveLog(source.archive).queues()
        }
        return {queue: totals[queue] for queue in queues}
    assert source.store is not None, "one of the three is given"
    files = ConsumeQueues(source.store)
    found = {}
    for queue in queues:
        units = files.units(queue.topic, queue.queue_id)
        found[queue] = Bounds(0, 0) if units is None else Bounds(*units.bounds())
    return found


def read_ranges(
    spark: SparkSession, source: MessageSource, ranges: Sequence[OffsetRange], columns: Sequence[str]
) -> DataFrame:
    """The messages of some ranges, not cut to the times of the source.

    Within a Spark partition those of a queue are in the order of their offsets; a queue may be spread over several
    partitions, and one may hold several queues.
    """
    from cometmq.spark.columns import BY_NAME

    topics = sorted({part.queue.topic for part in ranges})
    if source.namesrv is not None:
        ends = {part.queue: part.end for part in ranges}
        firsts = {part.queue: part.first for part in ranges}
        for queue in Cluster(parse_options({**source.servers(), "topic": ",".join(topics)})).queues():
            firsts.setdefault(queue, ends.setdefault(queue, _LATEST))
        return (
            spark.read.format("rocketmq")
            .options(**source.servers(), subscribe=",".join(topics))
            .option("startingOffsets", _text(firsts))
            .option("endingOffsets", _text(ends))
            .schema(", ".join(f"{name} {BY_NAME[name].type}" for name in columns))
            .load()
        )
    if source.archive is not None:
        log = ArchiveLog(source.archive)
        wanted = {part.queue: part for part in ranges}
        files = [
            file
            for file in log.files()
            if (part := wanted.get(Queue(file.topic, file.broker, file.queue_id))) is not None
            and file.first < part.end
            and part.first < file.end
        ]
        frame = read_files(spark, log.root, files)
        return within(frame, ranges).select(*columns)
    return within(replace(source, begin_ms=None, end_ms=None).read(spark, topics, columns), ranges)


def _text(offsets: Offsets) -> str:
    return json.dumps(offsets_to_json(offsets))
