"""Queues, offset ranges, and offsets as JSON: ``{topic: {broker: {queue id: offset}}}``, sorted.

Spark compares stream offsets as text, so equal offsets must have equal text: topics and brokers are in alphabetical
order, queues are sorted by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from cometmq.message.queues import Queue as Queue
from cometmq.spark.errors import OptionError

T = TypeVar("T")
Nested = dict[str, dict[str, dict[str, T]]]
OffsetsJson = Nested[int]
MarksJson = Nested[list[int]]

Offsets = dict[Queue, int]


class Mark(NamedTuple):
    """A message by which its queue is recognized, even if its topic was deleted and recreated.

    A topic that was deleted and recreated counts its messages from 0. No two messages on a broker have the same log
    offset and store time, so the message at this queue offset is a different one.
    """

    offset: int
    physical_offset: int
    stored_ms: int


Marks = Mapping[Queue, Mark]
NO_MARKS: Final[Marks] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A queue's messages with ``first <= queue offset < end``."""

    queue: Queue
    first: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.first, 0)

    def __str__(self) -> str:
        return f"{self.queue} [{self.first}, {self.end})"

    def part(self, number: int, count: int) -> OffsetRange:
        """Return one of ``count`` parts of about the same length. Part 0 is the first one."""
        first, end = (self.first + len(self) * at // count for at in (number, number + 1))
        return OffsetRange(self.queue, first, end)


def _nested(values: Mapping[Queue, T]) -> Nested[T]:
    nested: Nested[T] = {}
    for queue in sorted(values):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = values[queue]
    return nested


def offsets_to_json(offsets: Mapping[Queue, int]) -> OffsetsJson:
    """Nest offsets by topic, broker and queue, in a fixed order."""
    return _nested(offsets)


def marks_to_json(marks: Mapping[Queue, Mark]) -> MarksJson:
    """Nest marks like offsets. Each mark is a queue offset, a log offset, and a store time in ms since 1970."""
    return _nested({queue: list(mark) for queue, mark in marks.items()})


def marks_from_json(nested: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]) -> dict[Queue, Mark]:
    """Parse the result of :func:`marks_to_json`.

    :raises OptionError: the text is malformed.
    """
    try:
        return {
            Queue(topic, broker, int(queue_id)): Mark(*map(int, mark))
            for topic, brokers in nested.items()
            for broker, queues in brokers.items()
            for queue_id, mark in queues.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError(f"malformed marks; expected {{topic: {{broker: {{queue: mark}}}}}}: {nested!r}") from error


def offsets_from_json(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """Parse the result of :func:`offsets_to_json`.

    :raises OptionError: the text is malformed.
    """
    try:
        return {
            Queue(topic, broker, int(queue_id)): int(offset)
            for topic, brokers in nested.items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"malformed offsets; expected {{topic: {{broker: {{queue: offset}}}}}}: {nested!r}"
        ) from error


def steps_of(ranges: Sequence[OffsetRange], most: int) -> Iterator[list[OffsetRange]]:
    """Split ranges into steps of about ``most`` offsets. Each step takes an equal share of every queue."""
    count = -(-sum(map(len, ranges)) // most)
    for step in range(count):
        yield [part for of in ranges if len(part := of.part(step, count))]


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Sort ranges by queue and offset, and join adjacent ranges."""
    found: list[OffsetRange] = []
    for part in sorted(ranges, key=lambda part: (part.queue, part.first)):
        if found and found[-1].queue == part.queue and found[-1].end == part.first:
            part = OffsetRange(part.queue, found.pop().first, part.end)
        found.append(part)
    return found
