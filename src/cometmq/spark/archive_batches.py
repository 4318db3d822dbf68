"""Commits the micro-batches of an archive's query, in whatever process Spark calls back for each of them.

That is the process of the job or, with a session of Spark Connect, one that the server has started: there commits are
told to the job by files in the archive's directory, which it shares with driver and executors.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.durable import replace_file
from cometmq.spark.archive_commit import Commit
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.archive_table import TableFormat
from cometmq.spark.archive_writer import commit_rows
from cometmq.spark.checkpoint import query_id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOLD: Final = "_told"
"""Directory of an archive for commits that a job has yet to hear of."""


class BatchCommits:
    """What Spark calls with each micro-batch; holds nothing that cannot be pickled.

    :param tell: told of each commit, in the process where it is made.
    """

    def __init__(
        self, root: Path, wanted: TableFormat | None, checkpoint: Path, tell: Callable[[Commit], None]
    ) -> None:
        self._given = (root, wanted, checkpoint, tell)
        self._checkpoint = checkpoint
        self._tell = tell

    def __reduce__(self) -> tuple[Any, ...]:
        """The connections of a catalog stay where they are."""
        return BatchCommits, self._given

    @cached_property
    def _log(self) -> ArchiveLog:
        root, wanted, *_ = self._given
        return ArchiveLog(root, wanted)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Commit what the tasks of a batch have written, unless it is committed already.

        :raises ArchiveError: it overlaps what is archived.
        """
        query_id = query_id_of(self._checkpoint)
        assert query_id is not None, "Spark writes the checkpoint's metadata before the first batch"
        commit = commit_rows(self._log, query_id, batch_id, frame.collect())
        if commit is not None:
            self._tell(commit)


class ToldCommits:
    """Commits on their way from one process to the other."""

    def __init__(self, root: Path) -> None:
        self._directory = root / _TOLD

    def clear(self) -> None:
        """Forget those that a run which died has not heard of."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def tell(self, commit: Commit) -> None:
        """Write one."""
        self._directory.mkdir(exist_ok=True)
        replace_file(self._directory / f"{commit.sequence:020d}.json", msgspec.json.encode(commit))

    def heard(self) -> Iterator[Commit]:
        """Take those that are there, in their order."""
        for path in sorted(self._directory.glob("[0-9]*.json")):
            yield msgspec.json.decode(path.read_bytes(), type=Commit)
            path.unlink()
