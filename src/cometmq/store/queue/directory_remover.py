"""DirectoryRemover: removes the directories of deleted topics in a thread, so that no request has to wait.

A directory is first moved to ``comet/removed``, so that the topic can be created again immediately. Directories left
there by a crash are removed at the next start.
"""

from __future__ import annotations

import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

REMOVED: Final = "removed"
"""The name of the trash directory below ``comet``."""


class DirectoryRemover:
    """Removes directories in a thread.

    :param trash: directory to which they are moved first. It must be in the same file system.
    """

    def __init__(self, trash: Path) -> None:
        self._trash = trash
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cometmq-store-remove")

    def resume(self) -> None:
        """Remove the directories that an earlier process left in the trash directory."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for left in self._trash.iterdir():
                self._submit(left)

    def remove(self, directory: Path) -> None:
        """Remove a directory if it exists. Its path is free when this method returns."""
        if not directory.exists():
            return
        moved = self._trash / secrets.token_hex(8)
        try:
            self._trash.mkdir(parents=True, exist_ok=True)
            directory.rename(moved)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            self._submit(moved)

    def _submit(self, moved: Path) -> None:
        self._worker.submit(shutil.rmtree, moved, ignore_errors=True)

    def close(self) -> None:
        """Wait until all directories have been removed."""
        self._worker.shutdown()
