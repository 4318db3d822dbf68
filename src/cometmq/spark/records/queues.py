"""Queues, ranges of their offsets, and offsets as JSON: ``{topic: {broker: {queue id: offset}}}``, sorted.

Spark compares stream offsets as text, so equal offsets must be written equally: topics and brokers in alphabetical
order, queues by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cometmq.client.blocking.cluster import Queue as Queue
from cometmq.spark.errors import OptionError

OffsetsJson = dict[str, dict[str, dict[str, int]]]


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

    def part(self, number: int, count: int) -> OffsetRange:
        """Return one of ``count`` parts of about the same length, the first one for ``number`` 0."""
        first, end = (self.first + len(self) * at // count for at in (number, number + 1))
        return OffsetRange(self.queue, first, end)


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


def steps_of(ranges: Sequence[OffsetRange], most: int) -> Iterator[list[OffsetRange]]:
    """Cut ranges into steps of about ``most`` offsets; each takes an equal share of every queue."""
    count = -(-sum(map(len, ranges)) // most)
    for step in range(count):
        yield [part for of in ranges if len(part := of.part(step, count))]


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Sort ranges by queue and offset, and join those that follow each other."""
    found: list[OffsetRange] = []
    for part in sorted(ranges, key=lambda part: (part.queue, part.first)):
        if found and found[-1].queue == part.queue and found[-1].end == part.first:
            part = OffsetRange(part.queue, found.pop().first, part.end)
        found.append(part)
    return found
