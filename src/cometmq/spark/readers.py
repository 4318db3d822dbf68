"""The reader behind ``spark.read``, and what that of streams shares; partitions carry all that their tasks need."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cometmq.spark.cluster import Bounds, Cluster
from cometmq.spark.errors import DataLossError, OptionError
from cometmq.spark.missing_topics import demand_present
from cometmq.spark.options import (
    EARLIEST,
    LATEST,
    SourceOptions,
    Start,
    Times,
    demand_batch,
    named_paths,
    offset_named,
)
from cometmq.spark.planning import dealt, partition_count
from cometmq.spark.pushdown import Window, window_of
from cometmq.spark.queues import OffsetRange, Offsets, Queue, total
from cometmq.spark.record_sizes import sized
from cometmq.spark.worker_memory import in_lasting_worker

log = logging.getLogger("cometmq.spark")


@dataclass
class RangePartition(InputPartition):
    """Ranges that one task reads, in order."""

    ranges: tuple[OffsetRange, ...]


@in_lasting_worker
def read_ranges(options: SourceOptions, schema: StructType, ranges: Sequence[OffsetRange]) -> Iterator[Any]:
    """Yield the messages of ``ranges`` as Arrow record batches of ``schema``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from cometmq.spark.apart import bad_bodies
    from cometmq.spark.decode import Records, decode
    from cometmq.spark.fetch import Fetcher

    arrow = to_arrow_schema(schema, timezone="UTC")
    with bad_bodies(fail=options.fail_on_bad_body, directory=options.bad_records_path) as on_bad_body:
        for chunk in Fetcher(options).fetch(ranges):
            records = Records(chunk.data)
            if options.tags:
                records = records.tagged(options.tags)
            yield from decode(records, arrow, broker_name=chunk.queue.broker, on_bad_body=on_bad_body)


def partitions_of(options: SourceOptions, cluster: Cluster, ranges: Sequence[OffsetRange]) -> list[RangePartition]:
    """Deal ranges out to Spark partitions.

    :raises UnreachableError: a broker does not tell how large their messages are.
    """
    pieces = sized(cluster, ranges)
    size = sum(piece.size for piece in pieces)
    count = partition_count(total(ranges), size, options.min_partitions, options.max_partition_bytes)
    return [RangePartition(tuple(part)) for part in dealt(pieces, count)]


def resolve_start(options: SourceOptions, cluster: Cluster, bounds: dict[Queue, Bounds], default: Start) -> Offsets:
    """Find where reading begins in each queue.

    :raises DataLossError: an offset asked for is no longer there, or not yet, and ``failOnDataLoss`` is true.
    """
    if options.starting_timestamp is not None:
        first = {queue: held.first for queue, held in bounds.items()}
        return first | cluster.offsets_at(bounds, _times("startingTimestamp", options.starting_timestamp, bounds))
    start = default if options.starting_offsets is None else options.starting_offsets
    _demand_known("startingOffsets", start, bounds)
    return {queue: _resolve(options, queue, held, start, EARLIEST) for queue, held in bounds.items()}


def resolve_end(options: SourceOptions, cluster: Cluster, bounds: dict[Queue, Bounds]) -> Offsets:
    """Find where reading ends in each queue.

    :raises DataLossError: as :func:`resolve_start`.
    """
    if options.ending_timestamp is not None:
        last = {queue: held.end for queue, held in bounds.items()}
        return last | cluster.offsets_at(bounds, _times("endingTimestamp", options.ending_timestamp, bounds))
    _demand_known("endingOffsets", options.ending_offsets, bounds)
    return {queue: _resolve(options, queue, held, options.ending_offsets, LATEST) for queue, held in bounds.items()}


def _times(name: str, times: Times, queues: Iterable[Queue]) -> Times:
    """Demand that times by topic name only topics that are read."""
    if isinstance(times, dict) and (absent := sorted(set(times) - {queue.topic for queue in queues})):
        raise OptionError(f"option {name} names topic {absent[0]}, which is not read")
    return times


def demand_topics(options: SourceOptions, queues: Iterable[Queue]) -> None:
    """Demand that every topic asked for by name has queues.

    :raises OptionError: naming those that have none.
    """
    demand_present(
        options.topics,
        (queue.topic for queue in queues),
        f"no broker that is registered with {';'.join(options.namesrv_addr)} has topic",
        next_step="is the name right, and is its broker running?",
        known=Cluster(options).topics,
    )


def _demand_known(name: str, start: Start, queues: Iterable[Queue]) -> None:
    """Demand that offsets in JSON name only queues that there are."""
    if isinstance(start, str):
        return
    known = {queue[:depth] for queue in queues for depth in (1, 2, 3)}
    for path in named_paths(start):
        if path not in known:
            raise OptionError(
                f"option {name} names {'/'.join(map(str, path))}, which no registered broker has",
                next_step="the levels are topic, broker and queue",
            )


def _resolve(options: SourceOptions, queue: Queue, held: Bounds, start: Start, unnamed: str) -> int:
    named = offset_named(start, queue)
    if named is None:
        named = unnamed
    if named == EARLIEST:
        return held.first
    if named == LATEST:
        return held.end
    return within_bounds(options, queue, held, int(named))


def within_bounds(options: SourceOptions, queue: Queue, held: Bounds, offset: int) -> int:
    """Return ``offset`` if the queue holds it; else fail, or warn and return the nearest that it holds.

    :raises DataLossError: it does not, and ``failOnDataLoss`` is true.
    """
    if held.first <= offset <= held.end:
        return offset
    nearest = held.first if offset < held.first else held.end
    what = f"{queue} holds offsets {held.first} to {held.end}, not {offset}"
    if options.fail_on_data_loss:
        raise DataLossError(what, next_step=f"option failOnDataLoss=false goes on at {nearest}")
    log.warning("%s; going on at %d", what, nearest)
    return nearest


class RocketMQReader(DataSourceReader):
    """Reads what the queues hold between two sets of offsets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Check what was asked for.

        :raises OptionError: it cannot be read as a batch.
        """
        demand_batch(options)
        self._options = options
        self._schema = schema
        self._window = Window()

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the brokers for their bounds and deal the offsets out."""
        cluster = Cluster(self._options)
        queues = cluster.queues()
        demand_topics(self._options, queues)
        bounds = cluster.bounds(queues)
        start = resolve_start(self._options, cluster, bounds, EARLIEST)
        end = resolve_end(self._options, cluster, bounds)
        start, end = self._window.narrowed(start, end, lambda time_ms: cluster.offsets_at(bounds, time_ms))
        ranges = [OffsetRange(queue, start[queue], end[queue]) for queue in queues if self._window.holds(queue)]
        return list(partitions_of(self._options, cluster, ranges))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Pull and decode one partition."""
        if isinstance(partition, RangePartition):  # Spark makes up an empty partition where there is none
            yield from read_ranges(self._options, self._schema, partition.ranges)


class FilteringReader(RocketMQReader):
    """A reader that also narrows its offsets by Spark's filters; Spark still applies every filter itself."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 (Spark's name)
        """Take note of filters on topic, broker, queue, offset and store time; all go back to Spark as well."""
        self._window = window_of(filters)
        yield from filters
