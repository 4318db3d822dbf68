"""The heap of Spark's Python workers: what one batch has freed is kept for the next.

A batch takes some dozens of megabytes and frees them. Left alone, glibc gives each time back to the kernel what is
free at the heap's end, and the next batch gets it page by page, zeroed: a fifth of a second for a million messages.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

KEPT_BYTES: Final = 128 * 1024 * 1024
"""Free bytes at the heap's end that stay with the process: a few batches."""
_MAPPED_FROM_BYTES: Final = 32 * 1024 * 1024
"""Blocks below are taken from the heap instead of mapped one by one; the most that glibc takes."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


@cache
def keep_freed_memory() -> None:
    """Tell malloc, once in a process; C libraries without ``mallopt`` are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
