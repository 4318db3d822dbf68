"""File descriptors of this process: the limit, the number in use, and the reserve for files.

Connections, log files and mappings all need one. A broker without a free descriptor can open no file and refuses every
message; so servers raise the limit and leave a reserve to the store.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import resource

MOST: Final = 1 << 20
"""Represents an infinite limit."""
_SHARE_FOR_FILES: Final = 8
_FEWEST_FOR_FILES: Final = 64
_MOST_FOR_FILES: Final = 8_192


def limit() -> int:
    """Return the limit of this process (``RLIMIT_NOFILE``), which Windows does not have."""
    if sys.platform == "win32":
        return MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)


def raise_limit() -> int:
    """Raise the limit as far as the system allows without privileges; return it."""
    if sys.platform == "win32":
        return MOST
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if limit() < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def in_use() -> int:
    """Return the number of open descriptors; 0 on a system without /dev/fd.

    Linux knows the number since 6.2. Listing them, as everywhere else, takes 2 µs for each.
    """
    try:
        if sys.platform == "linux" and (known := Path("/proc/self/fd").stat().st_size):
            return known
        with os.scandir("/dev/fd") as entries:
            return sum(1 for _ in entries) - 1  # without the directory's own
    except OSError:
        return 0


def kept_for_files() -> int:
    """Return the number of descriptors that connections leave free: an eighth of the limit, at least 64."""
    return min(max(limit() // _SHARE_FOR_FILES, _FEWEST_FOR_FILES), _MOST_FOR_FILES)
