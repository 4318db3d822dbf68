"""The pace of this machine at this moment, beside that of the machine on which the limits of tests were set.

A limit in seconds says something of the product only together with the machine. So a test whose time is over its limit
measures the machine by some work that never changes, and multiplies the limit by what this takes longer than there.
"""

from __future__ import annotations

import gc
import json
import statistics
import time

_WORK_S = 0.0023
"""What the work takes on the machine of the limits, when it does nothing else."""
_MEASURE_S = 0.25
"""Some turns of each process that wants the processor."""


def slowness() -> float:
    """How many times longer work takes here now, with all that runs beside it; at least 1."""
    return max(statistics.mean(_times()) / _WORK_S, 1.0)


def slowness_of_processor() -> float:
    """How many times longer work takes here while it has the processor; at least 1."""
    return max(statistics.median(_times()) / _WORK_S, 1.0)


def is_in_time(took_s: float, most_s: float) -> bool:
    """Tell whether a time is within a limit, as this machine is now."""
    return took_s < most_s or took_s < most_s * slowness()


def slowness_of_thread() -> float:
    """How many times longer the work takes now in processor time of this thread; at least 1.

    It takes the time of the work twice, so that a test can ask again and again between what it measures. The first time
    gets what that has left in the caches and to the collector of garbage.
    """
    times: list[float] = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(2):
            began = time.thread_time()
            _work()
            times.append(time.thread_time() - began)
    finally:
        if was_enabled:
            gc.enable()
    return max(min(times) / _WORK_S, 1.0)


class Patience:
    """The time that is waited for something: longer where the machine is slow when it would be over."""

    def __init__(self, seconds: float) -> None:
        self._least = seconds
        self._began = time.monotonic()
        self.seconds = seconds
        """That is waited in all, as far as is known."""

    @property
    def left_s(self) -> float:
        """What is left of it, as far as is known; for a wait that ends earlier by itself."""
        return max(self._began + self.seconds - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more is waited for."""
        if time.monotonic() < self._began + self.seconds:
            return False
        self.seconds = max(self.seconds, self._least * slowness())
        return time.monotonic() >= self._began + self.seconds


def _times() -> list[float]:
    ends = time.monotonic() + _MEASURE_S
    times: list[float] = []
    while not times or time.monotonic() < ends:
        began = time.monotonic()
        _work()
        times.append(time.monotonic() - began)
    return times


def _work() -> None:
    """Objects, text and tables, as a broker handles them."""
    table = {f"topic-{number}": {"queue": number, "name": "x" * (number % 50)} for number in range(3_000)}
    assert len(json.loads(json.dumps(table))) == len(table)
