"""ConfigFile: a table kept as one JSON file with its previous version beside it (``ConfigManager``).

At every moment the file or its ``<name>.bak`` is whole; a load falls back to ``.bak``. Nameserver, broker and
store keep their tables so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cometmq import fastjson
from cometmq.durable import replace_file


class ConfigFile:
    """One file of ``config/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")

    def load(self) -> Any | None:
        """Return what the file holds, else what its ``.bak`` holds; ``None`` when neither holds anything.

        :raises FastjsonError: a file exists and neither can be read as JSON.
        """
        failure: fastjson.FastjsonError | None = None
        for candidate in (self.path, self._backup):
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

    def save(self, content: bytes | Iterable[bytes]) -> None:
        """Replace the file, whole or in pieces; when this returns, the new content survives a power cut.

        :raises OSError: it could not be written; the old file is then still there.
        """
        replace_file(self.path, content, backup=self._backup)
