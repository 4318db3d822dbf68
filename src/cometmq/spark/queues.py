"""Queues, ranges of their offsets, and offsets as JSON: ``{topic: {broker: {queue id: offset}}}``, sorted.

Spark compares stream offsets as text, so equal offsets must be written equally: topics and brokers stand in
alphabetical order, queues in that of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cometmq.spark.errors import OptionError

OffsetsJson = dict[str, dict[str, dict[str, int]]]


class Queue(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


Offsets = dict[Queue, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of a queue with ``first <= queue offset < end``."""

    queue: Queue
    first: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.first, 0)

    def __str__(self) -> str:
        return f"{self.queue} [{self.first}, {self.end})"


def offsets_to_json(offsets: Mapping[Queue, int]) -> OffsetsJson:
    """Nest offsets by topic, broker and queue, in a fixed order."""
    nested: OffsetsJson = {}
    for queue in sorted(offsets):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return nested


def offsets_from_json(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """Undo :func:`offsets_to_json`.

    :raises OptionError: it is not of that form.
    """
    try:
        return {
            Queue(topic, broker, int(queue_id)): int(offset)
            for topic, brokers in nested.items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError(f"not offsets of the form {{topic: {{broker: {{queue: offset}}}}}}: {nested!r}") from error


def total(ranges: Iterable[OffsetRange]) -> int:
    """Offsets in all of the ranges."""
    return sum(len(part) for part in ranges)


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Ranges in the order of queues and offsets, those that follow each other made one."""
    found: list[OffsetRange] = []
    for part in sorted(ranges, key=lambda part: (part.queue, part.first)):
        if found and found[-1].queue == part.queue and found[-1].end == part.first:
            part = OffsetRange(part.queue, found.pop().first, part.end)
        found.append(part)
    return found
