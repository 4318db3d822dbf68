"""ConfigFile: a table in a JSON file, with its previous version in ``<name>.bak`` (``ConfigManager``).

At any moment at least one of the two files is complete; ``.bak`` is loaded if the other one is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cometmq import fastjson
from cometmq.durable import replace_file


class ConfigFile:
    """One file in ``config/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")

    def load(self) -> Any | None:
        """Return the content of the file, or else of its ``.bak`` file; return None if both are empty or missing.

        :raises FastjsonError: at least one file exists, and none is valid JSON.
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
        """Replace the file durably; ``content`` may have one or many pieces.

        :raises OSError: the file cannot be written; the old one is unchanged.
        """
        replace_file(self.path, content, backup=self._backup)
