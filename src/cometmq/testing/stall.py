"""Fails a test that waits for a virtual clock that nobody moves, instead of letting it run into its time limit.

A test is stalled when :data:`STALLED_CHECKS` checks in a row, timed by the real clock, find the event loop idle, the
virtual clock unmoved, and the loop's main task inside a call of CometMQ's client or asleep on the clock. That task is
then cancelled, and the watch moves the clock itself, so that all tasks can end. A test that waits for something else,
such as a process or a real timer, never counts as stalled.

Like :mod:`cometmq.testing.idle` this reads private fields of asyncio: the callbacks of a task. If the callbacks are
missing, no test counts as stalled.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CoroutineType
from typing import Any, Final

from cometmq.errors import CometMQError
from cometmq.testing.clock import VirtualClock
from cometmq.testing.idle import NeverIdleError, is_idle

CHECK_SECONDS: Final = 0.25
"""Real seconds between two checks."""
STALLED_CHECKS: Final = 16
"""Number of consecutive checks that must find the test idle."""
_DRIVE_SECONDS: Final = 0.001

_ROOT: Final = Path(__file__).parents[1]
_CLIENT: Final = f"{_ROOT / 'client'}/"
_CLOCKS: Final = (str(_ROOT / "clock.py"), str(_ROOT / "testing" / "clock.py"))


class StalledClockError(CometMQError):
    """A test waits for the virtual clock, but nothing moves the clock."""


class StallWatch:
    """Watches one clock on the running event loop."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._looks = 0
        self._seen = (0.0, 0)
        self.error: StalledClockError | None = None
        """The error for a stalled test; None unless the test is stalled."""
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def stop(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _check(self) -> None:
        try:
            idle = is_idle()
        except NeverIdleError:  # not asyncio's own loop: nobody can move this clock
            return
        if self.error is not None:
            self._move_clock(idle)
            return
        seen = (self._clock.monotonic(), self._clock.now_ms())
        self._looks = self._looks + 1 if idle and seen == self._seen else 0
        self._seen = seen
        if self._looks >= STALLED_CHECKS:
            self._fail()
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def _fail(self) -> None:
        task = _main_task(self._loop)
        waits = None if task is None else awaited_call(task)
        if task is None or waits is None:
            return
        self.error = StalledClockError(
            f"{waits} is waiting for time to pass, but nothing has moved the virtual clock for "
            f"{CHECK_SECONDS * STALLED_CHECKS:g} s of real time",
            next_step=f"let time pass while it waits: `await clock.run_until({_as_called(waits)}(…), 60)`",
        )
        task.cancel(str(self.error))

    def _move_clock(self, idle: bool) -> None:
        """Move the clock from timer to timer, so that clients close and the test ends."""
        step = self._clock.next_in()
        if idle and step < float("inf"):
            self._clock.advance(step)
        self._timer = self._loop.call_later(_DRIVE_SECONDS, self._check)


def _main_task(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    """Return the task that ``run_until_complete`` waits for."""
    for task in asyncio.all_tasks(loop):
        callbacks = getattr(task, "_callbacks", None) or ()
        if any(getattr(callback, "__name__", "") == "_run_until_complete_cb" for callback, _ in callbacks):
            return task
    return None


def awaited_call(task: asyncio.Task[Any]) -> str | None:
    """Return the client or clock function in which a task is waiting, or None if the task waits for something else."""
    for call in _calls(task.get_coro()):
        if call.cr_code.co_filename.startswith(_CLIENT):
            return call.__qualname__  # the name of the method, even if a wrapper runs
        if call.cr_code.co_filename in _CLOCKS:
            return "clock.sleep" if call.cr_code.co_name == "sleep" else None
    return None


def _calls(awaited: object) -> Iterator[CoroutineType[Any, Any, Any]]:
    while inspect.iscoroutine(awaited):
        yield awaited
        awaited = awaited.cr_await


def _as_called(qualified: str) -> str:
    """Return ``producer.send`` for ``TransactionProducer.send``."""
    owner, _, name = qualified.rpartition(".")
    variable = next((kind for kind in ("producer", "consumer") if owner.lower().endswith(kind)), owner.lower())
    return f"{variable}.{name}"
