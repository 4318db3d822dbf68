"""Tunes a server process's memory: Python's garbage collector and the C library's allocator."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

from cometmq.free_memory import KEPT_BYTES, MAPPED_FROM_BYTES

GC_YOUNG_OBJECTS: Final = 50_000
"""Number of allocations between two collections of the youngest generation. It corresponds to about a second of full
load, since the hot path creates no cycles and its objects are freed by reference counting.
"""
GC_MIDDLE_RUNS: Final = 20
GC_OLD_RUNS: Final = 50

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8


def collect_rarely() -> None:
    """Collect garbage rarely.

    With Python's thresholds, each of a store's 100,000 queues is looked at several times while the store is opened.
    """
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_MIDDLE_RUNS, GC_OLD_RUNS)


def use_one_heap() -> None:
    """Make all threads allocate from one heap. Must be called before the first thread starts.

    By default, glibc gives each thread its own heap, which never shrinks below the size that the thread once needed. In
    a broker with 20,000 topics, the threads that write tables and checkpoints kept 15 MB of free memory that way.
    """
    _set_option(_ARENA_MAX, 1)


def tune_memory() -> None:
    """Freeze the objects created at start-up, collect garbage rarely, and keep little free memory.

    By default, glibc raises both of its thresholds, for mapping blocks and for returning memory, whenever a larger
    block is freed, up to 32 and 64 MB (``mallopt(3)``). A process that received several frames of 16 MB kept 50 MB of
    free memory that way. C libraries without ``mallopt`` are not changed.

    Nothing is collected before: the start leaves less than a thousand objects in cycles, and to look for them would
    keep the clients of a large store waiting, who are connected by now (40 ms for 100,000 objects).
    """
    gc.freeze()
    collect_rarely()
    _set_option(_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    _set_option(_TRIM_THRESHOLD, KEPT_BYTES)


def _set_option(option: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)
