"""The steps for stopping a broker, in reverse order of its start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from cometmq.clock import Clock

SLOW_SECONDS: Final = 0.05
"""Minimum duration in seconds of a step that is logged as slow."""


class Stops:
    """The steps for stopping a broker's parts. The object is falsy when no steps are left."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps = AsyncExitStack()
        self._slow: list[str] = []
        self._left = 0

    def __bool__(self) -> bool:
        return self._left > 0

    def add(self, name: str, work: Callable[[], Awaitable[object] | None]) -> None:
        """Add a step; :meth:`run` executes it before the steps that were added earlier."""

        async def step() -> None:
            self._left -= 1
            began = self._clock.monotonic()
            try:
                if (waiting := work()) is not None:
                    await waiting
            finally:
                if (took := self._clock.monotonic() - began) >= SLOW_SECONDS:
                    self._slow.append(f"{name} {took:.2f} s")

        self._left += 1
        self._steps.push_async_callback(step)

    async def run(self) -> str:
        """Execute all steps, even if one fails; return the names and durations of slow steps.

        An error in a step is raised after the last step.
        """
        await self._steps.aclose()
        slow, self._slow = self._slow, []
        return ", ".join(slow)
