"""ConfigFile: a table kept as one JSON file with its previous version beside it (``ConfigManager``).

A save writes ``<name>.tmp``, keeps the old file as ``<name>.bak`` and puts the new one in its place, so
that at every moment one of the two is whole; a load falls back to ``.bak``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cometmq import fastjson


class ConfigFile:
    """One file of ``config/``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Any | None:
        """Return what the file holds, else what its ``.bak`` holds; ``None`` when neither exists.

        :raises FastjsonError: a file exists and neither can be read as JSON.
        """
        failure: fastjson.FastjsonError | None = None
        for candidate in (self.path, self._beside(".bak")):
            try:
                text = candidate.read_bytes()
                if text.strip():
                    return fastjson.loads(text)
            except FileNotFoundError:
                continue
            except fastjson.FastjsonError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return None

    def save(self, content: bytes) -> None:
        """Replace the file; when this returns, the new content survives a power cut.

        :raises OSError: it could not be written; the old file is then still there.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._beside(".tmp")
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            backup = self._beside(".bak")
            backup.unlink(missing_ok=True)
            os.link(self.path, backup)
        fresh.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)
