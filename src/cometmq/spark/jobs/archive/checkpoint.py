"""The checkpoint of the archive query. Spark writes it, and the archive job reads it before the query starts.

Spark first writes ``metadata``, then ``offsets/0`` and, when batch 0 is done, ``commits/0``. Each file has a hidden
name before it is complete. If Spark is killed while it writes ``offsets/0``, it refuses to start again with the
remaining directory (``STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY``), although no batch was planned.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from cometmq.spark.errors import ArchiveError
from cometmq.spark.storage import Directory
from cometmq.storage import Storage, open_storage

SET_ASIDE: Final = "_dead"
"""Checkpoint directory for incomplete files from starts that were killed."""
STARTING_OFFSETS: Final = "_starting_offsets.json"
"""Checkpoint file that contains the offsets at which the first start began."""
_METADATA: Final = "metadata"
_LOGS: Final = ("offsets", "commits")

_log = logging.getLogger(__name__)


class Checkpoint:
    """A checkpoint, which may not exist yet. It can be pickled."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Store the directory."""
        self._directory = Directory(root)

    def __str__(self) -> str:
        return str(self._directory)

    @property
    def storage(self) -> Storage:
        """The checkpoint's directory."""
        return open_storage(self._directory.root)

    def query_id(self) -> str | None:
        """Return the query id that Spark assigned, or None if the checkpoint is new.

        :raises ArchiveError: the directory is not a checkpoint.
        """
        content = self._directory.read(_METADATA)
        if content is None:
            return None
        try:
            identity: Any = json.loads(content)
            return str(identity["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(
                f"{self._directory.path(_METADATA)} is not the metadata of a Spark checkpoint",
                next_step="use another checkpoint: a new one continues where the archive's last commit ends",
            ) from error

    def last_committed_batch(self) -> int | None:
        """Return the last batch that Spark marked as done."""
        return max(self._batches("commits"), default=None)

    def has_begun(self) -> bool:
        """Return True if a batch was ever planned. In that case, the checkpoint determines where the query
        continues.
        """
        return any(map(self._batches, _LOGS))

    def set_aside_dead_start(self) -> Path | None:
        """Move the files left by a start that was killed before its first batch. Return their new path, or None if
        nothing was moved.

        A checkpoint that contains a planned batch is not changed.
        """
        directory = self._directory
        if not directory.exists("offsets") or self.has_begun():
            return None
        left = [name for log in (*_LOGS, "state") for name in directory.names(f"{log}/*")]
        try:
            self.query_id()
        except ArchiveError:  # never by a kill, but by a power cut
            left += [name for name in (".metadata.crc", _METADATA) if directory.exists(name)]
        if not left:
            return None
        aside = next(name for n in itertools.count() if not directory.exists(name := f"{SET_ASIDE}/{n}"))
        for name in left:
            with suppress(FileNotFoundError):  # a driver of Spark Connect may still be at it
                directory.move({name: f"{aside}/{name}"})
        _log.warning(
            "a killed start left %s without a first batch; its files are now in %s", self, directory.path(aside)
        )
        return directory.path(aside)

    def _batches(self, log: str) -> list[int]:
        names = map(PurePosixPath, self._directory.names(f"{log}/*"))
        return [int(path.name) for path in names if path.name.isdecimal()]
