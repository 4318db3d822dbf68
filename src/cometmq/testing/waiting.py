"""Waiting for something to come true, on whatever clock the test has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from cometmq.clock import Clock, VirtualClock
from cometmq.idle import settle

_LOOK_SECONDS: Final = 0.005
"""Of the real clock, between two looks."""
SIMULATED_SECONDS: Final = 150.0
"""Of the virtual clock, that pass second by second before it skips to an alarm: longer than any lease or time-out."""
AFTER_ALARM_SECONDS: Final = 10.0
"""Of the virtual clock, that pass from an alarm on before it skips again: longer than a client's pauses for retries."""

LONG_SLEEP_SECONDS: Final = 1800.0
"""A timer set for longer than this is somebody's wait, not housekeeping (a consumer's takes 15 minutes at most)."""


async def wait_until(clock: Clock, holds: Callable[[], object], within: float | timedelta) -> bool:
    """Return whether ``holds()`` came true within ``within`` (seconds) of ``clock``.

    A :class:`~cometmq.clock.VirtualClock` is moved: time passes for :data:`SIMULATED_SECONDS`; then the date
    skips to the next alarm or to the end, whichever comes first, and from an alarm on time passes again for
    :data:`AFTER_ALARM_SECONDS`. While something sleeps for longer than :data:`LONG_SLEEP_SECONDS`, all of the
    time passes. Nothing is waited for in real time except the event loop coming to rest.

    :raises NeverIdleError: it does not come to rest.
    """
    seconds = within.total_seconds() if isinstance(within, timedelta) else within
    if isinstance(clock, VirtualClock):
        return await _move_until(clock, holds, seconds)
    end = clock.monotonic() + seconds
    while not holds():
        left = end - clock.monotonic()
        if left <= 0:
            return False
        await clock.sleep(min(_LOOK_SECONDS, left))
    return True


async def _move_until(clock: VirtualClock, holds: Callable[[], object], seconds: float) -> bool:
    end_ms = clock.now_ms() + round(seconds * 1000)
    skips_at = clock.monotonic() + SIMULATED_SECONDS
    await settle()
    while not holds():
        left = (end_ms - clock.now_ms()) / 1000
        if clock.monotonic() > skips_at and not clock.has_timer_over(LONG_SLEEP_SECONDS):
            alarm = clock.next_alarm_in()
            await clock.skip(min(alarm, left))
            skips_at = clock.monotonic() + AFTER_ALARM_SECONDS
            if alarm > left:
                return bool(holds())
        elif not await clock.step(left):
            await clock.run_for(left)
            return bool(holds())
    return True
