"""Computes the hash of the compiled core's sources, which shows whether a core belongs to this package.

``native/build.rs`` stores the hash in the core, and ``hatch_build.py`` stores it in the wheel of this package. In a
clone, the package hashes the sources. So the core cannot be outdated by accident: the caller and the core always have
the same version.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

FILE: Final = "core_sources.txt"
"""The file that contains the hash in an installed package."""
_ROOMS: Final = ("codec/src", "src")


def sources_hash(native: Path) -> str:
    """Hash the core's sources below ``native/``, using Unix line ends on every system.

    :raises OSError: a source cannot be read.
    """
    names = sorted(
        Path(directory, name).relative_to(native).as_posix()
        for room in _ROOMS
        for directory, _, files in os.walk(native / room)
        for name in files
        if name.endswith(".rs")
    )
    found = hashlib.sha1(usedforsecurity=False)
    for name in names:
        with open(native / name, "rb") as file:  # noqa: PTH123 - a clone does this at each start
            text = file.read().replace(b"\r\n", b"\n")
        found.update(name.encode() + b"\0" + text + b"\0")
    return found.hexdigest()
