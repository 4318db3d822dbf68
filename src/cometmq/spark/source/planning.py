"""Plans a batch: its offsets, its messages' sizes, and its Spark partitions.

Brokers supply the sizes: a consume queue contains every record's size, so reading a few of its units is enough
(QUERY_CONSUME_QUEUE, which Apache RocketMQ also supports), and no message must be read. Each queue is sampled in
several places, since sizes change with time. A repeated batch is planned again: its partitions may differ, its messages
do not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from cometmq.spark.records.queues import OffsetRange, Offsets, Queue, joined

SMALL_PARTITION: Final = 20_000
"""Minimum number of offsets in a Spark partition. At 300,000 rows per second, they take twice the 30 ms that a
partition costs.
"""
SMALL_PARTITION_BYTES: Final = 32 * 1024 * 1024
"""Minimum number of bytes in a Spark partition, for large messages."""
LARGE_PARTITION: Final = 250_000
"""Maximum number of offsets in a partition, so that a failed task repeats little work."""
_SLIVER: Final = 0.02
"""Minimum remainder after a cut, as a share of a partition's bytes. If the remainder is smaller, the cut moves to the
end of the range. With larger remainders, partitions differ in size, and cores are idle at the end of a batch.
"""


@dataclass(frozen=True, slots=True)
class SizedRange:
    """A range of messages, and the approximate mean size of their records."""

    part: OffsetRange
    mean_bytes: float

    @property
    def size(self) -> float:
        """Return the approximate number of bytes of all records in the range."""
        return len(self.part) * self.mean_bytes


def limit_messages(start: Offsets, end: Offsets, most: int) -> Offsets:
    """Shorten ``[start, end)`` to about ``most`` messages. Each queue gets a share in proportion to its number of
    messages.

    At least one message is read from every queue that has messages, so that small queues do not starve. The sum may
    exceed ``most`` by less than the number of queues.
    """
    held = {queue: max(last - start.get(queue, last), 0) for queue, last in end.items()}
    everything = sum(held.values())
    if everything <= most:
        return dict(end)
    return {
        queue: (start[queue] + max(1, most * held[queue] // everything)) if held[queue] else last
        for queue, last in end.items()
    }


def limit_bytes(start: Offsets, end: Offsets, mean_sizes: Mapping[Queue, float], most: int) -> Offsets:
    """Shorten ``[start, end)`` to about ``most`` bytes of records, based on the mean size in each queue.

    As in :func:`limit_messages`, at least one message is read from every queue that has messages.
    """
    held = {queue: max(last - start.get(queue, last), 0) for queue, last in end.items()}
    everything = sum(count * mean_sizes.get(queue, 0.0) for queue, count in held.items())
    if everything <= most:
        return dict(end)
    share = most / everything
    return {
        queue: start[queue] + max(1, int(held[queue] * share)) if held[queue] else last for queue, last in end.items()
    }


def partition_count(messages: int, size: float, at_least: int, most_bytes: int) -> int:
    """Choose the number of Spark partitions: one for a small batch, the number of cores for a larger batch, and a
    multiple of it for a very large batch, so that no core is idle while another one reads the last partition.

    :param at_least: minimum number of partitions (``minPartitions``).
    :param size: approximate number of bytes of all records in the batch.
    :param most_bytes: maximum number of bytes in a partition (``maxPartitionBytes``).
    """
    wanted = max(-(-messages // SMALL_PARTITION), ceil(size / SMALL_PARTITION_BYTES))
    cores = os.cpu_count() or 1
    needed = max(-(-messages // LARGE_PARTITION), ceil(size / most_bytes))
    return max(min(wanted, cores), ceil(needed / cores) * cores if needed > cores else needed, at_least, 1)


def divide_ranges(pieces: Sequence[SizedRange], count: int) -> list[list[OffsetRange]]:
    """Divide sorted ranges into at most ``count`` partitions with about the same number of bytes.

    Many small queues share a partition, and a large queue is divided among several.
    """
    left = [piece for piece in pieces if len(piece.part)]
    if not left:
        return []
    undealt = sum(piece.size for piece in left)
    room = share = undealt / count
    partitions: list[list[OffsetRange]] = [[]]
    for piece in left:
        first = piece.part.first
        while first < piece.part.end:
            is_full = room <= max(share * _SLIVER, piece.mean_bytes)
            if is_full and partitions[-1] and len(partitions) < count:
                room = share = undealt / (count - len(partitions))
                partitions.append([])
            taken = piece.part.end - first
            if taken * piece.mean_bytes > room + share * _SLIVER and len(partitions) < count:
                taken = max(int(room / piece.mean_bytes), 1)
            partitions[-1].append(OffsetRange(piece.part.queue, first, first + taken))
            first += taken
            room -= taken * piece.mean_bytes
            undealt -= taken * piece.mean_bytes
    return [joined(partition) for partition in partitions]


UNITS: Final = 16
"""Number of consume queue units in a sample."""
_PARTS: Final = 512
"""Total number of samples over all queues; each queue has at least one. A broker needs a tenth of a second for all
samples.
"""
_PARTS_OF_QUEUE: Final = 8
_UNKNOWN_BYTES: Final = 1024.0
"""Assumed record size in bytes if no broker reports sizes."""


def sample_places(ranges: Sequence[OffsetRange]) -> list[tuple[Queue, int, int]]:
    """Return the places whose records are sampled for :func:`sized_ranges`: queue, offset and number of records."""
    return [(*place, UNITS) for place in dict.fromkeys(place for part in _parts(ranges) for place in _ends_of(part))]


def sized_ranges(
    ranges: Sequence[OffsetRange], sampled: Mapping[tuple[Queue, int, int], float | None]
) -> list[SizedRange]:
    """Split ranges into parts, each with the mean size of sampled records at its start and end.

    :param sampled: mean size by place; None if unknown. Parts with unknown sizes get the mean size of the other parts.
    """
    known = [mean for mean in sampled.values() if mean is not None]
    otherwise = sum(known) / len(known) if known else _UNKNOWN_BYTES
    found = []
    for part in _parts(ranges):
        means = [mean for place in _ends_of(part) if (mean := sampled[(*place, UNITS)]) is not None]
        found.append(SizedRange(part, sum(means) / len(means) if means else otherwise))
    return found


def _parts(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    held = [part for part in ranges if len(part)]
    most = max(1, min(_PARTS_OF_QUEUE, _PARTS // max(len(held), 1)))
    parts = []
    for part in held:
        count = min(most, -(-len(part) // UNITS))
        parts += [part.part(number, count) for number in range(count)]
    return parts


def _ends_of(part: OffsetRange) -> tuple[tuple[Queue, int], tuple[Queue, int]]:
    return (part.queue, part.first), (part.queue, max(part.first, part.end - UNITS))
