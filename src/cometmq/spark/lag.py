"""How far a streaming query is behind: by queue, and summed up as Spark's Kafka connector does.

A source in Python has no place for metrics of its own in a query's progress. What it may tell is the offsets: where a
micro-batch ends (``endOffset``) and what the queues held when it was planned (``latestOffset``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cometmq.spark.cluster import Cluster
from cometmq.spark.errors import OptionError
from cometmq.spark.options import parse_options
from cometmq.spark.queues import Offsets, Queue, offsets_from_json
from cometmq.spark.reach import reach


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far one queue is read."""

    queue: Queue
    reached: int
    """The offset after the last one that is read."""
    latest: int
    """The offset after the last one that the queue holds."""

    @property
    def behind(self) -> int:
        """Messages that are not read yet."""
        return max(self.latest - self.reached, 0)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the queues of a source are read."""

    queues: tuple[QueueLag, ...]

    @property
    def messages(self) -> int:
        """Messages that are not read yet, in all queues."""
        return sum(of.behind for of in self.queues)

    @property
    def metrics(self) -> dict[str, float]:
        """The sums of the queues, under the names that Spark's Kafka connector has for the first three."""
        behind = [of.behind for of in self.queues] or [0]
        return {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "offsetsBehindLatest": sum(behind),
        }


def lag_between(reached: Mapping[Queue, int], latest: Mapping[Queue, int]) -> Lag:
    """The lag of what is read against what the queues hold; of a queue that is not in ``reached`` nothing is read."""
    return Lag(tuple(QueueLag(queue, reached.get(queue, 0), latest[queue]) for queue in sorted(latest)))


def lag_of(source: Mapping[str, Any]) -> Lag:
    """The lag when the last micro-batch was planned.

    :param source: an element of ``query.lastProgress["sources"]``; offsets may be JSON or text.
    :raises OptionError: it is no source of format ``rocketmq``.
    """
    return lag_between(_offsets(source, "endOffset"), _offsets(source, "latestOffset"))


def lag_now(source: Mapping[str, Any], namesrv: str, access: Mapping[str, str] | None = None) -> Lag:
    """The lag against what the brokers hold now: messages that came during a long micro-batch count too.

    :param source: as with :func:`lag_of`.
    :param namesrv: nameservers, ``host:port`` separated by ``;``.
    :param access: credentials and TLS, by the options of the source; what they leave open the environment says.
    :raises OptionError: it is no source of format ``rocketmq``, or an option of ``access`` is wrong.
    :raises UnreachableError: no nameserver, or not every broker, answers.
    """
    reached = _offsets(source, "endOffset")
    if not reached:
        return Lag(())
    topics = ",".join(sorted({queue.topic for queue in reached}))
    cluster = Cluster(parse_options({**reach(namesrv, access), "topic": topics}))
    bounds = cluster.bounds(cluster.queues())
    unread = {queue: held.first for queue, held in bounds.items()}
    return lag_between(unread | reached, {queue: held.end for queue, held in bounds.items()})


def _offsets(source: Mapping[str, Any], name: str) -> Offsets:
    value = source.get(name)
    try:
        offset = json.loads(value) if isinstance(value, str) else value
        return offsets_from_json((offset or {}).get("queues", {}))
    except (AttributeError, ValueError) as error:
        raise OptionError(f"{name} is not an offset of format rocketmq: {value!r}") from error
