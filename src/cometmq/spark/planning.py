"""Arithmetic of a batch: which offsets it holds, and how they are dealt out to Spark partitions. No I/O."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from cometmq.spark.queues import OffsetRange, Offsets, Queue, total

SMALL_PARTITION: Final = 20_000
"""Offsets worth a Spark partition: at 300 k rows/s they take twice the 30 ms that a partition costs."""
LARGE_PARTITION: Final = 250_000
"""Offsets from which a partition is cut in any case, so that a failed task repeats little."""
_SLIVER: Final = 0.1
"""A cut that would leave less than this share of a partition's rows in a piece moves to the end of the piece."""


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


def partition_count(messages: int, at_least: int) -> int:
    """How many Spark partitions a batch is worth: one if small, all cores if not, more if it is very large."""
    wanted = -(-messages // SMALL_PARTITION)
    most = max(os.cpu_count() or 1, -(-messages // LARGE_PARTITION))
    return max(min(wanted, most), at_least, 1)


def dealt(ranges: Sequence[OffsetRange], count: int) -> list[list[OffsetRange]]:
    """Deal ranges out to at most ``count`` partitions of about equal size, in order.

    Many small queues share a partition, and a large queue is cut over several.
    """
    left = [part for part in ranges if len(part)]
    messages = total(left)
    if not messages:
        return []
    share = -(-messages // count)
    sliver = int(share * _SLIVER)
    partitions: list[list[OffsetRange]] = [[]]
    room = share
    for part in left:
        first = part.first
        while first < part.end:
            if room <= sliver and len(partitions) < count:
                partitions.append([])
                room = share
            taken = part.end - first
            if taken > room + sliver and len(partitions) < count:
                taken = max(room, 1)
            partitions[-1].append(OffsetRange(part.queue, first, first + taken))
            first += taken
            room -= taken
    return partitions
