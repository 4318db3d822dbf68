"""The sockets of this process."""

from __future__ import annotations

import os
from contextlib import suppress


def open_sockets() -> int:
    """Count them. Files do not count: the store of a broker in this process opens some ahead, when it has the time."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count
