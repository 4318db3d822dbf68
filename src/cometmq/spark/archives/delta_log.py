"""The files of a Delta table's log. deltalake reads the log only as a whole; an archive needs its newest entries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from cometmq.archive.commits import Commit
from cometmq.spark.archives.table import DELTA_LOG
from cometmq.storage import ObjectNotFoundError, Storage

INFO: Final = "cometmq.commit"
"""Field of a version's ``commitInfo`` that contains an archive's commit without its files."""
_AT_ONCE_MAX: Final = 16
"""Maximum number of versions that are read at the same time."""

Action = dict[str, Any]


class DeltaLog:
    """The log of the table in a storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def newest_first(self, version: int) -> Iterator[tuple[int, list[Action]]]:
        """Yield a version's number and actions, then those of each version before it, up to the first one whose file is
        missing, since old files are cleaned up.

        The first version is read alone. Then more and more are read at the same time.
        """
        at_once = 1
        with ThreadPoolExecutor(_AT_ONCE_MAX, "delta-log") as threads:
            while version >= 0:
                numbers = range(version, max(version - at_once, -1), -1)
                for number, actions in zip(numbers, threads.map(self._actions, numbers), strict=True):
                    if actions is None:
                        return
                    yield number, actions
                version -= at_once
                at_once = min(2 * at_once, _AT_ONCE_MAX)

    def _actions(self, version: int) -> list[Action] | None:
        try:
            content = self._storage.read(f"{DELTA_LOG}/{version:020d}.json")
        except ObjectNotFoundError:
            return None
        return [json.loads(line) for line in content.splitlines()]


def commit_in(actions: list[Action]) -> Commit | None:
    """Return the archive's commit that a version contains, or None if another program made the version."""
    for action in actions:
        info = action.get("commitInfo")
        if info is not None and INFO in info:
            return msgspec.json.decode(info[INFO], type=Commit)
    return None


def written_ms(actions: list[Action]) -> int | None:
    """Return a version's time in ms since 1970, according to the clock of the writer that created it, if it is
    known.
    """
    commit = commit_in(actions)
    if commit is not None:
        return commit.committed_ms
    times = [action["commitInfo"].get("timestamp") for action in actions if "commitInfo" in action]
    return int(times[0]) if times and times[0] is not None else None
