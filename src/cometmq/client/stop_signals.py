"""Ends a running consumer on SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Calls functions on the first SIGINT or SIGTERM; a second signal has its usual effect.

    Signals that the program handles itself are left to the program. Python calls handlers in the main thread only.
    """

    def __init__(self) -> None:
        self._stops: list[Callable[[], object]] = []
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def calling(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call ``stop`` if a signal arrives inside the ``with`` block; this has no effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._stops.append(stop)
        if len(self._stops) == 1:
            self._install()
        try:
            yield
        finally:
            self._stops.remove(stop)
            if not self._stops:
                self._restore()

    def _install(self) -> None:
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if _is_default(before):
                self._before[number] = before
                signal.signal(number, self._stop)

    def _restore(self) -> None:
        while self._before:
            number, before = self._before.popitem()
            if signal.getsignal(number) == self._stop:
                signal.signal(number, before)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._restore()
        for stop in self._stops:
            stop()


def _is_default(handler: object) -> bool:
    """Return whether a handler is Python's default handler or the one set by ``asyncio.run``."""
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(owner, asyncio.Runner)


STOP_SIGNALS: Final = StopSignals()
"""The signal handling of this process."""
