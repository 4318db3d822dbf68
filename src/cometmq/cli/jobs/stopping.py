"""How a job that commits step by step is ended from outside: after the step under way, not in the middle of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_sigterm(on_signal: Callable[[], object] = lambda: None) -> Iterator[threading.Event]:
    """Give an event that SIGTERM sets within the block, for the job to see; ``on_signal`` is called before."""
    stop = threading.Event()

    def handle(*_: object) -> None:
        on_signal()
        stop.set()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
