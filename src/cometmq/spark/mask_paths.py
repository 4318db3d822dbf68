"""Where a field stands in JSON: ``$.user.phone``, ``$.items[*].email``, ``$["odd name"]``, ``$.first[0]``.

A path finds places, so that what stands there can be replaced. Where an array is met without ``[*]`` or a number, or
an object without a name, there is no such field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cometmq.spark.errors import OptionError

ANY: Final = None
"""The step ``[*]``: every element of an array."""
_STEP: Final = re.compile(
    r"""\.(?P<name>[^.\[\]"'\s]+) | \[(?P<any>\*)\] | \[(?P<index>[0-9]{1,9})\] | \[(?P<quoted>"(?:[^"\\]|\\.)*")\]""",
    re.VERBOSE,
)

Step = str | int | None


class Place(NamedTuple):
    """One value: ``container[key]``."""

    container: Any
    key: Any
    indices: tuple[int, ...]
    """What each ``[*]`` of the path stood for."""

    @property
    def value(self) -> Any:
        """What stands there."""
        return self.container[self.key]


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path below ``$``."""

    text: str
    steps: tuple[Step, ...]

    def places(self, document: Any) -> Iterator[Place]:
        """Every place in a document that the path leads to."""
        yield from _follow([document], 0, (0, *self.steps), ())

    def at(self, document: Any, indices: Sequence[int]) -> Any:
        """The one value that the path leads to when each ``[*]`` is one of ``indices``; ``None`` for none."""
        left = iter(indices)
        value = document
        for step in self.steps:
            key = next(left) if step is ANY else step
            if isinstance(value, dict) if isinstance(key, str) else isinstance(value, list) and key < len(value):
                try:
                    value = value[key]
                except KeyError:
                    return None
            else:
                return None
        return value

    @property
    def wildcards(self) -> tuple[tuple[Step, ...], ...]:
        """The path up to each ``[*]``."""
        return tuple(self.steps[:at] for at, step in enumerate(self.steps) if step is ANY)


def _follow(container: Any, at: int, steps: Sequence[Step], indices: tuple[int, ...]) -> Iterator[Place]:
    step = steps[at]
    if step is ANY:
        if isinstance(container, list):
            for index in range(len(container)):
                yield from _arrive(container, index, at, steps, (*indices, index))
    elif isinstance(step, str):
        if isinstance(container, dict) and step in container:
            yield from _arrive(container, step, at, steps, indices)
    elif isinstance(container, list) and step < len(container):
        yield from _arrive(container, step, at, steps, indices)


def _arrive(container: Any, key: Any, at: int, steps: Sequence[Step], indices: tuple[int, ...]) -> Iterator[Place]:
    if at + 1 == len(steps):
        yield Place(container, key, indices)
    else:
        yield from _follow(container[key], at + 1, steps, indices)


def parse_path(text: str) -> JsonPath:
    """Read a path.

    :raises OptionError: it is none.
    """
    steps: list[Step] = []
    at = 1
    while text.startswith("$") and at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            break
        if match["name"] is not None:
            steps.append(match["name"])
        elif match["quoted"] is not None:
            steps.append(json.loads(match["quoted"]))
        else:
            steps.append(ANY if match["any"] else int(match["index"]))
        at = match.end()
    if not steps or at != len(text):
        raise OptionError(
            f"{text!r} is no path into JSON", next_step='write $.user.phone, $.items[*].email, $["odd name"] or $.a[0]'
        )
    return JsonPath(text, tuple(steps))
