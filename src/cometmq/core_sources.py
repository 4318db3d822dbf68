"""The hash of the sources of the compiled core, by which a package and a core that belong together know each other.

``native/build.rs`` puts it into the core, ``hatch_build.py`` into the wheel of this package. In a clone the package
reads the sources themselves. So no change of the core can be forgotten: what calls it and what is called are of one
state.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

FILE: Final = "core_sources.txt"
"""The file of an installed package with the hash."""
_ROOMS: Final = ("codec/src", "src")


def sources_hash(native: Path) -> str:
    """Hash the sources of the core below ``native/``, with the line ends of Unix on every system.

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
