"""The duration of requests that create topics and groups, by result (``InvocationStatus``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.clock import Clock
from cometmq.metrics.family import Histogram
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.processors import Response

CREATION_BOUNDS_MS: Final = (10, 100, 1_000, 3_000, 5_000)

Ended = Callable[[Response], Response]
"""A function that receives the response to a request and returns it."""


class CreationTimes:
    """Durations of create requests in milliseconds, by label values."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.topics: Final[dict[tuple[str, ...], Histogram]] = {}
        """Durations by status and by whether one of the topics is a system topic."""
        self.groups: Final[dict[tuple[str, ...], Histogram]] = {}

    def topic(self, *, is_system: bool) -> Ended:
        """Start measuring a request that creates topics."""
        return self._start(self.topics, "true" if is_system else "false")

    def group(self) -> Ended:
        """Start measuring a request that creates groups."""
        return self._start(self.groups)

    def _start(self, times: dict[tuple[str, ...], Histogram], *labels: str) -> Ended:
        began = self._clock.monotonic()

        def ended(response: Response) -> Response:
            key = ("success" if response.code == ResponseCode.SUCCESS else "failure", *labels)
            found = times.get(key)
            if found is None:
                found = times[key] = Histogram(CREATION_BOUNDS_MS)
            found.observe(round((self._clock.monotonic() - began) * 1000))
            return response

        return ended
