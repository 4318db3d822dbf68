"""Memory of Spark's Python workers, which go from task to task: neither given back after each, nor searched.

A batch takes some dozens of megabytes and frees them. Left alone, glibc gives each time back to the kernel what is
free at the heap's end, and the next batch gets it page by page, zeroed: a fifth of a second for a million messages.
And ``pyspark.daemon`` collects garbage after each task, before the worker takes the next one: it would look through
everything that was ever imported, for some 45 ms.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Final, ParamSpec, TypeVar

KEPT_BYTES: Final = 128 * 1024 * 1024
"""Free bytes at the heap's end that stay with the process: a few batches."""
_MAPPED_FROM_BYTES: Final = 32 * 1024 * 1024
"""Blocks below are taken from the heap instead of mapped one by one; the most that glibc takes."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3

_Asked = ParamSpec("_Asked")
_Row = TypeVar("_Row")


def in_lasting_worker(read: Callable[_Asked, Iterator[_Row]]) -> Callable[_Asked, Iterator[_Row]]:
    """Make the generator of a task's rows one that keeps its worker's memory in order."""

    @wraps(read)
    def rows(*args: _Asked.args, **named: _Asked.kwargs) -> Iterator[_Row]:
        keep_freed_memory()
        yield from read(*args, **named)
        leave_out_what_stays()

    return rows


@cache
def keep_freed_memory() -> None:
    """Tell malloc, once in a process; C libraries without ``mallopt`` are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


@cache
def leave_out_what_stays() -> None:
    """Take what there is now, modules above all, out of every later search, once in a process, when a task is done.

    What is let go of afterwards is found as ever.
    """
    gc.collect()
    gc.freeze()
