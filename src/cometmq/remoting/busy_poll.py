"""BusyPoll: a server that has just answered looks for the next request for a moment before its loop sleeps.

Theory of operation. A client with one request in flight sends the next one some 50 µs after the answer. A processor
that sleeps in between takes that long to wake, and wakes with cold caches: the same work then costs several times as
much. So the loop goes on without sleeping for :data:`BUSY_POLL_SECONDS` after a turn. After a look in vain the next
turns have none, each time twice as many: a server whose requests are further apart sleeps as ever, and so does an idle
one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.clock import Clock

BUSY_POLL_SECONDS: Final = 0.000_1
"""The longest look: about what a sleep costs, so that a look in vain at most doubles the cost."""
MAX_LEFT_OUT: Final = 255
"""Turns without a look, after many looks in vain."""
_LEAST_PROCESSORS: Final = 2
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""Processor time of a container: microseconds in each period of so many, or ``max`` (cgroups(7), version 2)."""


class BusyPoll:
    """The looks of one server.

    :param call_soon: calls a function in the next round of the event loop, which does not sleep before.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Clock) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._ends = 0.0
        self._turns = 0
        self._rounds_before = 0
        self._is_looking = False
        self._left_out = 0
        """Turns without a look after the next look in vain."""
        self._leaves_out = 0
        """Those of them that are to come."""

    def round_ended(self) -> None:
        """Look for requests from now on, unless looks were in vain of late."""
        self._turns += 1
        if self._is_looking:
            return
        if self._leaves_out:
            self._leaves_out -= 1
            return
        self._is_looking = True
        self._begin()

    def _begin(self) -> None:
        self._rounds_before = self._turns
        self._ends = self._clock.monotonic() + BUSY_POLL_SECONDS
        self._call_soon(self._look)

    def _look(self) -> None:
        if self._turns != self._rounds_before:
            self._left_out = 0
            self._begin()
        elif self._clock.monotonic() < self._ends:
            self._call_soon(self._look)
        else:
            self._is_looking = False
            self._leaves_out = self._left_out
            self._left_out = min(2 * self._left_out + 1, MAX_LEFT_OUT)


def can_busy_poll(quota: Path = _QUOTA) -> bool:
    """Tell whether a client on this machine could run meanwhile, and the container's processor time is not short.

    :param quota: the file of the container's processor time.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        if allowed != "max":
            processors = min(processors, int(allowed) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # no container of that version
    return processors >= _LEAST_PROCESSORS
