"""The boot of the machine: what was seen of files is known after a crash only in the boot in which it was seen."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the ID of the machine's boot, or an empty string if the system does not report one."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
