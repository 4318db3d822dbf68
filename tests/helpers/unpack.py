"""Unpack recorded stores of real brokers."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(packed: Path, place: Path) -> None:
    """Extract all files of an archive that is known into a directory."""
    with tarfile.open(packed) as archive:
        # Python 3.11.3 and older have no filters, Python 3.12 and 3.13 warn without one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(place)
