"""Free memory that the C library keeps, which the system may have back."""

from __future__ import annotations

import ctypes
from typing import Final

MAPPED_FROM_BYTES: Final = 2 * 1024 * 1024
"""Larger blocks, such as the frames of large requests, are mapped one by one and go back to the system when freed."""
KEPT_BYTES: Final = 8 * MAPPED_FROM_BYTES
"""Free bytes at the heap's end that stay. A turn with some batches of 1 MB takes 10 MB for frames, records and answers:
Spark's batch write of 600,000 messages of 1 KB costs the broker 0.75 s of processor time where that memory stays, and
1.3 s where 4 MB stay and the rest comes back from the kernel page by page."""


def give_back() -> None:
    """Give the system the free pages between blocks in use, too: some milliseconds, for a thread.

    C libraries without ``malloc_trim`` keep their own rules.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(KEPT_BYTES))
