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

from cometmq.broker.table_file import TableFile, int64, offset_table, set_aside
from cometmq.durable import replace_file

_log = logging.getLogger(__name__)

NO_POSITION: Final = -1


class DelayProgress(msgspec.Struct, frozen=True):
    """The next offset of each level's queue, and the log position at which that was true."""

    offsets: dict[int, int]
    position: int = NO_POSITION
    """``NO_POSITION`` when it is not known: another broker has delivered since."""
    moved: dict[int, int] = {}
    """Those of the offsets that stand behind messages which are not due yet, since these moved into the timer."""


class DelayOffsets:
    """The two files of one store.

    :param root: the directory of the whole store.
    """

    def __init__(self, root: Path) -> None:
        self._file = TableFile(root / "config" / "delayOffset.json")
        self._exact = root / "comet" / "delayOffset.json"
        self._saved: dict[int, int] = {}

    def load(self) -> tuple[DelayProgress, list[str]]:
        """How far delivery was, and a line for each thing found wrong.

        Where a file is damaged the log tells what was delivered, all of it that is kept.
        """
        offsets = self._file.load(_offsets)
        findings = list(self._file.findings)
        if findings:  # what a .bak says is too old to deliver from
            offsets = None
        self._saved = offsets or {}
        exact, wrong = self._load_exact()
        # A level that Apache's file is ahead in was delivered by another broker, so the position is not true any more.
        if exact is not None and all(offset <= exact.offsets.get(level, 0) for level, offset in self._saved.items()):
            return exact, findings
        if wrong is not None:
            findings.append(wrong)
        if findings:
            findings.append("how far delay levels are delivered is read from the log")
        if findings or offsets is None:  # with neither file nothing was delivered before the log began
            return DelayProgress({}, 0), findings
        return DelayProgress(offsets), findings

    def _load_exact(self) -> tuple[DelayProgress | None, str | None]:
        """What the exact file holds, and what is wrong with it."""
        try:
            progress = msgspec.json.decode(self._exact.read_bytes(), type=DelayProgress)
        except FileNotFoundError:
            return None, None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return None, set_aside(self._exact, f"cannot be used: {error}")
        values = (*progress.offsets.values(), progress.position, *progress.offsets, *progress.moved.values())
        if not all(NO_POSITION <= value < 1 << 63 for value in values):
            return None, set_aside(self._exact, "cannot be used: an offset is out of range")
        return progress, None

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


def _offsets(loaded: Any) -> dict[int, int]:
    return {int64(level): int64(offset) for level, offset in offset_table(loaded).items()}
