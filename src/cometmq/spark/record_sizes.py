"""How large messages are, asked of the brokers: what Spark partitions are cut by.

A consume queue has the size of every record, so a few of its units (QUERY_CONSUME_QUEUE, which Apache RocketMQ has
too) tell without reading a single message. Each queue is looked at in several places, since sizes change with time.
The same batch gives the same answer again, so that a repeated one is cut as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cometmq.spark.planning import SizedRange
from cometmq.spark.queues import OffsetRange

if TYPE_CHECKING:
    from cometmq.spark.cluster import Cluster

UNITS: Final = 16
"""Units of one look."""
_PARTS: Final = 512
"""Parts into which all queues together are cut, but for one of each: the looks take a broker a tenth of a second."""
_PARTS_OF_QUEUE: Final = 8
_UNKNOWN_BYTES: Final = 1024.0
"""Of a record, where no broker tells."""


def sized(cluster: Cluster, ranges: Sequence[OffsetRange]) -> list[SizedRange]:
    """Cut ranges into parts, each with the mean size of its records: that of some at its begin and at its end.

    :raises UnreachableError: a broker does not answer.
    """
    held = [part for part in ranges if len(part)]
    most = max(1, min(_PARTS_OF_QUEUE, _PARTS // max(len(held), 1)))
    parts = [piece for part in held for piece in _cut(part, min(most, -(-len(part) // UNITS)))]
    looks = {(part.queue, at): UNITS for part in parts for at in _looked_at(part)}
    means = dict(zip(looks, cluster.record_sizes([(*place, count) for place, count in looks.items()]), strict=True))
    known = [mean for mean in means.values() if mean is not None]
    otherwise = sum(known) / len(known) if known else _UNKNOWN_BYTES
    found = []
    for part in parts:
        told = [mean for at in _looked_at(part) if (mean := means[part.queue, at]) is not None]
        found.append(SizedRange(part, sum(told) / len(told) if told else otherwise))
    return found


def _looked_at(part: OffsetRange) -> tuple[int, int]:
    return part.first, max(part.first, part.end - UNITS)


def _cut(part: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [part.first + len(part) * at // count for at in range(count + 1)]
    return [OffsetRange(part.queue, first, end) for first, end in pairwise(edges)]
