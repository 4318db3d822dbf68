"""Busy polling: after a response, a server polls briefly for the next request before its event loop sleeps.

Theory of operation. A client with one request in flight sends the next one about 50 µs after the answer. A processor
that sleeps in between takes that long to wake up, and its caches are cold, so that the same work costs several times as
much. So the loop does not sleep for :data:`BUSY_POLL_SECONDS` after a round. After a poll that finds nothing, a number
of rounds do not poll; this number doubles each time. So an idle server, or one with few requests, sleeps as usual.
A client reads a large response for longer than a poll lasts, so no poll follows one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.clock import Clock

BUSY_POLL_SECONDS: Final = 0.000_1
"""Maximum duration of a poll, about the cost of a sleep, so that a useless poll at most doubles the cost."""
MAX_SKIPPED_ROUNDS: Final = 255
"""Maximum number of rounds without polling after repeated useless polls."""
_LEAST_PROCESSORS: Final = 2
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""The file with a container's processor limit: a quota or ``max``, and the period, in microseconds (cgroups(7), v2)."""


class BusyPoll:
    """Decides when a server polls, and runs the polls.

    :param call_soon: calls a function in the next round of the event loop, without sleeping first.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Clock) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._polls_until = 0.0
        self._rounds = 0
        self._rounds_before = 0
        self._is_polling = False
        self._skipped_rounds = 0
        """Number of rounds that will be skipped after the next poll that finds nothing."""
        self._rounds_to_skip = 0
        """Number of rounds still to be skipped."""

    def round_ended(self) -> None:
        """Start polling for requests, unless recent polls found none."""
        self._rounds += 1
        if self._is_polling:
            return
        if self._rounds_to_skip:
            self._rounds_to_skip -= 1
            return
        self._is_polling = True
        self._begin()

    def _begin(self) -> None:
        self._rounds_before = self._rounds
        self._polls_until = self._clock.monotonic() + BUSY_POLL_SECONDS
        self._call_soon(self._poll)

    def _poll(self) -> None:
        if self._rounds != self._rounds_before:
            self._skipped_rounds = 0
            self._begin()
        elif self._clock.monotonic() < self._polls_until:
            self._call_soon(self._poll)
        else:
            self._is_polling = False
            self._rounds_to_skip = self._skipped_rounds
            self._skipped_rounds = min(2 * self._skipped_rounds + 1, MAX_SKIPPED_ROUNDS)


def can_busy_poll(quota: Path = _QUOTA) -> bool:
    """Return whether the container's processor quota leaves a core for local clients during polls.

    :param quota: the file with the container's processor quota.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        if allowed != "max":
            processors = min(processors, int(allowed) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # the process is not in a container with cgroups version 2
    return processors >= _LEAST_PROCESSORS
