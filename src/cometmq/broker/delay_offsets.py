"""How far each delay level is delivered, on disk (``DelayOffsetSerializeWrapper``).

Apache's ``config/delayOffset.json`` holds the next offset of each level's queue. Beside it
``comet/delayOffset.json`` holds the same offsets and the log position at which they were true: after a
crash, what was delivered since stands in the log behind that position
(:mod:`cometmq.broker.delay_recovery`). Both are written only once the disk has the log up to there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.broker.table_file import TableFile, TableFileError
from cometmq.durable import replace_file

_log = logging.getLogger(__name__)

NO_POSITION: Final = -1


class DelayProgress(msgspec.Struct, frozen=True):
    """The next offset of each level's queue, and the log position at which that was true."""

    offsets: dict[int, int]
    position: int = NO_POSITION
    """``NO_POSITION`` when it is not known: another broker has delivered since."""


class DelayOffsets:
    """The two files of one store.

    :param root: the directory of the whole store.
    """

    def __init__(self, root: Path) -> None:
        self._file = TableFile(root / "config" / "delayOffset.json")
        self._exact = root / "comet" / "delayOffset.json"
        self._saved: dict[int, int] = {}

    def load(self) -> tuple[DelayProgress, list[str]]:
        """How far delivery was, and a line for each entry that cannot be used.

        :raises TableFileError: Apache's file cannot be read, or holds no table of offsets.
        """
        findings: list[str] = []
        loaded: Any = self._file.load_raw()
        table = loaded.get("offsetTable", {}) if isinstance(loaded, dict) else {} if loaded is None else None
        if not isinstance(table, dict):
            raise TableFileError(self._file.path, "it holds no offsetTable")
        offsets = {}
        for level, offset in table.items():
            try:
                offsets[int(level)] = int(offset)
            except (OverflowError, TypeError, ValueError):
                findings.append(f"delayOffset.json: entry {level!r} left out")
        self._saved = offsets
        exact = self._load_exact()
        if loaded is None and exact is None:  # nothing was delivered before the log began
            return DelayProgress({}, 0), findings
        # A level that Apache's file is ahead in was delivered by another broker, so the position is not true any more.
        if exact is not None and all(offset <= exact.offsets.get(level, 0) for level, offset in offsets.items()):
            return exact, findings
        return DelayProgress(dict(offsets)), findings

    def _load_exact(self) -> DelayProgress | None:
        try:
            return msgspec.json.decode(self._exact.read_bytes(), type=DelayProgress)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError):
            return None

    def save(self, progress: DelayProgress) -> None:
        """Write both files; a failure is logged, the next call tries again.

        Between the two the exact one is ahead, which :meth:`load` knows.
        """
        try:
            replace_file(self._exact, msgspec.json.encode(progress))
        except OSError as error:
            _log.error("cannot write %s: %s; it will be tried again", self._exact, error)
            return
        if progress.offsets != self._saved or not self._file.path.exists():
            self._file.write({"offsetTable": progress.offsets})
            if not self._file.failed:
                self._saved = dict(progress.offsets)
