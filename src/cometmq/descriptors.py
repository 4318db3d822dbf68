"""File descriptors of this process: how many it may have, how many it has, how many are kept free for files.

Connections, log files and mappings all count. A process without a free one can open no file: a broker then refuses
every message. So servers raise the limit as far as they may, and leave some to the store.
"""

from __future__ import annotations

import os
import resource
from typing import Final

MOST: Final = 1 << 20
"""What counts as the limit where there is none."""
_SHARE_FOR_FILES: Final = 8
_FEWEST_FOR_FILES: Final = 64
_MOST_FOR_FILES: Final = 8_192


def limit() -> int:
    """How many descriptors this process may have (``RLIMIT_NOFILE``)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)


def raise_limit() -> int:
    """Raise the limit as far as the system allows without privileges; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if limit() < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def in_use() -> int:
    """How many descriptors are open now; 0 on a system that does not tell."""
    try:
        with os.scandir("/dev/fd") as entries:
            return sum(1 for _ in entries) - 1  # one is of the directory itself
    except OSError:
        return 0


def kept_for_files() -> int:
    """How many descriptors connections leave free: an eighth, at least 64."""
    return min(max(limit() // _SHARE_FOR_FILES, _FEWEST_FOR_FILES), _MOST_FOR_FILES)
