"""The memory of a server process: settings of Python's garbage collector and of the C library's allocator."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

from cometmq.free_memory import KEPT_BYTES, MAPPED_FROM_BYTES

GC_YOUNG_OBJECTS: Final = 50_000
"""Allocations between two collections of the youngest generation: about a second of full load, since
the hot path makes no cycles and what it allocates dies by reference counting."""
GC_MIDDLE_RUNS: Final = 20
GC_OLD_RUNS: Final = 50

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8


def share_memory() -> None:
    """Let all threads take memory from one heap; call it before the first thread is made.

    By default glibc gives each thread a heap of its own, which keeps what the thread has needed once. A broker with
    20,000 topics kept 15 MB of free memory so, of the threads that write its tables and checkpoints.
    """
    _set_option(_ARENA_MAX, 1)


def settle_memory() -> None:
    """Freeze the objects of start-up, collect garbage rarely, and keep little free memory from now on.

    By default glibc raises both thresholds with each larger block that is freed, up to 32 and 64 MB (``mallopt(3)``). A
    process that got some frames of 16 MB kept 50 MB of free memory so. C libraries without ``mallopt`` keep their own
    rules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_MIDDLE_RUNS, GC_OLD_RUNS)
    _set_option(_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    _set_option(_TRIM_THRESHOLD, KEPT_BYTES)


def _set_option(option: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)
