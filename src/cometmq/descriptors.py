"""File descriptors of this process: their limit, the number in use, and the reserve for files.

Each connection, log file and mapping needs a descriptor. A broker that has no free descriptor cannot open files and
refuses all messages. So servers raise the limit and keep a reserve for the store.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import resource

MOST: Final = 1 << 20
"""A value that represents an infinite limit."""
_SHARE_FOR_FILES: Final = 8
_FEWEST_FOR_FILES: Final = 64
_MOST_FOR_FILES: Final = 8_192


def limit() -> int:
    """Return the limit of this process (``RLIMIT_NOFILE``); infinite on Windows."""
    if sys.platform == "win32":
        return MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)


def raise_limit() -> int:
    """Raise the limit as far as the system allows without privileges; return the new limit."""
    if sys.platform == "win32":
        return MOST
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if limit() < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def in_use() -> int:
    """Return the number of open descriptors, or 0 on a system that has no /dev/fd.

    Linux reports the number directly since version 6.2. On all other systems the descriptors are listed, which takes 2
    µs for each.
    """
    try:
        if sys.platform == "linux" and (known := Path("/proc/self/fd").stat().st_size):
            return known
        with os.scandir("/dev/fd") as entries:
            return sum(1 for _ in entries) - 1  # not counting the descriptor of the directory itself
    except OSError:
        return 0


def kept_for_files() -> int:
    """Return the number of descriptors reserved for files: an eighth of the limit, from 64 to 8,192."""
    return min(max(limit() // _SHARE_FOR_FILES, _FEWEST_FOR_FILES), _MOST_FOR_FILES)
