"""Arithmetic of a batch: which offsets it holds, and how they are dealt out to Spark partitions. No I/O."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from cometmq.spark.queues import OffsetRange, Offsets, Queue, joined

SMALL_PARTITION: Final = 20_000
"""Offsets worth a Spark partition: at 300 k rows/s they take twice the 30 ms that a partition costs."""
SMALL_PARTITION_BYTES: Final = 32 * 1024 * 1024
"""The same for large messages."""
LARGE_PARTITION: Final = 250_000
"""Offsets from which a partition is cut in any case, so that a failed task repeats little."""
_SLIVER: Final = 0.1
"""A cut that would leave less than this share of a partition's bytes in a piece moves to the end of the piece."""


@dataclass(frozen=True, slots=True)
class SizedRange:
    """Messages of a queue, and how large a stored record is there, about."""

    part: OffsetRange
    mean_bytes: float

    @property
    def size(self) -> float:
        """Bytes of all its records."""
        return len(self.part) * self.mean_bytes


def limited(start: Offsets, end: Offsets, most: int) -> Offsets:
    """Shorten ``[start, end)`` to about ``most`` messages, each queue in proportion to what it holds.

    Every queue that has messages gets at least one, so that a small one does not wait for ever; the sum may
    therefore exceed ``most`` by less than the number of queues.
    """
    held = {queue: max(last - start.get(queue, last), 0) for queue, last in end.items()}
    everything = sum(held.values())
    if everything <= most:
        return dict(end)
    return {
        queue: (start[queue] + max(1, most * held[queue] // everything)) if held[queue] else last
        for queue, last in end.items()
    }


def limited_bytes(start: Offsets, end: Offsets, mean_sizes: Mapping[Queue, float], most: int) -> Offsets:
    """Shorten ``[start, end)`` to about ``most`` bytes of records, given what one is of each queue.

    As with :func:`limited`, every queue that has messages gets at least one.
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
    """How many Spark partitions a batch is worth: one if small, all cores if not, more if it is very large.

    :param size: bytes of all its records, about.
    :param most_bytes: bytes of one partition (``maxPartitionBytes``).
    """
    wanted = max(-(-messages // SMALL_PARTITION), ceil(size / SMALL_PARTITION_BYTES))
    return max(min(wanted, os.cpu_count() or 1), -(-messages // LARGE_PARTITION), ceil(size / most_bytes), at_least, 1)


def dealt(pieces: Sequence[SizedRange], count: int) -> list[list[OffsetRange]]:
    """Deal ranges, which are sorted, out to at most ``count`` partitions of about as many bytes each.

    Many small queues share a partition, and a large queue is cut over several.
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
            if room <= share * _SLIVER and len(partitions) < count:
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
