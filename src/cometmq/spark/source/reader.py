"""The reader behind ``spark.read``, and the partitions that batches and streams share."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cometmq.spark.errors import sentence_first
from cometmq.spark.records.queues import NO_MARKS, Marks, OffsetRange
from cometmq.spark.records.worker_memory import lasting_worker
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.offsets import demand_forward, demand_topics, resolve_end, resolve_start
from cometmq.spark.source.options import (
    EARLIEST,
    SourceOptions,
    demand_batch,
)
from cometmq.spark.source.planning import SizedRange, divide_ranges, partition_count
from cometmq.spark.source.pushdown import Window, window_of

log = logging.getLogger("cometmq.spark")


@dataclass
class RangePartition(InputPartition):
    """The ranges that one task reads, in order."""

    ranges: tuple[OffsetRange, ...]
    marks: Marks
    """The queues' marks, taken when the ranges were planned."""


def read_ranges(
    options: SourceOptions, schema: StructType, ranges: Sequence[OffsetRange], marks: Marks = NO_MARKS
) -> Iterator[Any]:
    """Yield the messages of ``ranges`` as Arrow record batches of ``schema``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from cometmq.spark.records.bad_messages import bad_bodies
    from cometmq.spark.records.pieces import decode_pieces
    from cometmq.spark.source.fetch import Fetcher

    arrow = to_arrow_schema(schema, timezone="UTC")
    with (
        lasting_worker(),
        bad_bodies(options) as on_bad_body,
    ):
        for queue, chunks in groupby(Fetcher(options).fetch(ranges, marks), key=lambda chunk: chunk.queue):
            pieces = (chunk.data for chunk in chunks)
            yield from decode_pieces(
                pieces, arrow, broker_name=queue.broker, on_bad_body=on_bad_body, tags=options.tags
            )


def divide_into_partitions(options: SourceOptions, pieces: Sequence[SizedRange], marks: Marks) -> list[RangePartition]:
    """Divide ranges with known sizes into Spark partitions."""
    messages, size = sum(len(piece.part) for piece in pieces), sum(piece.size for piece in pieces)
    count = partition_count(messages, size, options.min_partitions, options.max_partition_bytes)
    return [
        RangePartition(tuple(part), {of.queue: marks[of.queue] for of in part if of.queue in marks})
        for part in divide_ranges(pieces, count)
    ]


class RocketMQReader(DataSourceReader):
    """Reads the messages between two sets of offsets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Check the options.

        :raises OptionError: an option is not allowed for a batch.
        """
        demand_batch(options)
        self._options = options
        self._schema = schema
        self._window = Window()

    @sentence_first()
    def partitions(self) -> Sequence[InputPartition]:
        """Query the offsets at which the read begins and ends, and divide the messages in between into partitions."""
        cluster = Cluster(self._options)
        queues = cluster.queues()
        demand_topics(self._options, queues)
        bounds = cluster.bounds(queues)
        start = resolve_start(self._options, cluster, bounds, EARLIEST)
        end = resolve_end(self._options, cluster, bounds)
        demand_forward(start, end)
        start, end = self._window.narrowed(start, end, lambda time_ms: cluster.offsets_at(bounds, time_ms))
        ranges = [OffsetRange(queue, start[queue], end[queue]) for queue in queues if self._window.holds(queue)]
        marks = cluster.marks_before({part.queue: part.end for part in ranges if len(part)})
        return divide_into_partitions(self._options, cluster.sized_ranges(ranges), marks)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Pull and decode one partition."""
        if isinstance(partition, RangePartition):  # if there is no partition, Spark creates an empty one itself
            with sentence_first():
                yield from read_ranges(self._options, self._schema, partition.ranges, partition.marks)


class FilteringReader(RocketMQReader):
    """A reader that uses Spark's filters to narrow its offsets. Spark still applies every filter itself."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 (Spark's name)
        """Use filters on topic, broker, queue, offset and store time to narrow the read. Return all filters to
        Spark.
        """
        self._window = window_of(filters)
        yield from filters
