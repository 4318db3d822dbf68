"""Returns free memory of the C library to the system."""

from __future__ import annotations

import ctypes
from typing import Final

MAPPED_FROM_BYTES: Final = 2 * 1024 * 1024
"""Larger blocks, such as the frames of large requests, are mapped one by one and returned to the system when freed."""
KEPT_BYTES: Final = 8 * MAPPED_FROM_BYTES
"""Free bytes at the end of the heap that are kept. A turn with some 1 MB batches uses 10 MB for frames and responses:
Spark's batch write of 600,000 messages of 1 KB costs the broker 0.75 s of processor time if that memory is kept, and
1.3 s if 4 MB are kept and the rest comes back from the kernel page by page."""


def give_back() -> None:
    """Return also the free pages between used blocks; takes some milliseconds, in a thread.

    Does nothing with C libraries that lack ``malloc_trim``.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(KEPT_BYTES))
