"""An archive's table in Delta Lake format, written with the package ``deltalake``, without a JVM or jars.

A commit is one version of the Delta log: the files that it adds (with their rows, partition values and smallest and
largest values) and removes, the transaction ``<query id>: <batch id>``, which Delta's own writers use to recognise a
batch, and ``cometmq.commit``, the rest of the commit, in its ``commitInfo``.

The upkeep jobs do not use deltalake's own functions. ``optimize.compact`` names its files at random, but an archive's
file names contain the queue and its first offset. ``vacuum`` cannot distinguish the files of a batch that is about to
be committed from those of a dead batch: a short ``--keep`` would delete both, and a long one would keep both. It also
rounds to full hours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import numpy as np

from cometmq.archive.commits import APPENDED, COMPACTED, Commit
from cometmq.archive.files import HOUR_MS, DataFile, first_of, hour_ended_ms, hour_of, queue_of
from cometmq.spark.archives.table import DELTA, DELTA_LOG, demand_local
from cometmq.spark.archives.versioned import CommitConflictError, VersionedTable
from cometmq.spark.errors import ArchiveError
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, MAX_TIME_MS, arrow_schema, milliseconds
from cometmq.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS: Final = ["topic", "hour"]
_INFO: Final = "cometmq.commit"
_VERSION: Final = re.compile(rf"{DELTA_LOG}/\d{{20}}\.json")
_SEARCHED_VERSIONS: Final = (1, 100, None)
"""Number of versions to search for an archive job's last commit, which is usually the newest version."""
_TOKENS_SEARCHED: Final = 100
"""Number of versions to search for a commit that was just made."""


class DeltaVersion:
    """One version of the table.

    :param table: deltalake's table, or None if it does not exist yet.
    """

    def __init__(self, table: Any, place: str) -> None:
        self.table: Final = table
        self._place = place

    def last(self) -> Commit | None:
        """Read the last commit from the newest version that an archive job wrote.

        :raises ArchiveError: none of the remaining versions was written by an archive job.
        """
        if self.table is None:
            return None
        for most in _SEARCHED_VERSIONS:
            for commit in self._commits(most):
                return commit
        raise ArchiveError(
            f"the Delta table {self._place} no longer names an archive job",
            next_step="its log was cleaned up past the last commit; archive into another directory",
        )

    def batch_of(self, query_id: str) -> int | None:
        """Look up the query's last batch in the table's transactions."""
        found: int | None = None if self.table is None else self.table.transaction_version(query_id)
        return found

    def has(self, token: str) -> bool:
        """Search the newest versions."""
        return self.table is not None and any(commit.token == token for commit in self._commits(_TOKENS_SEARCHED))

    def files(self) -> list[DataFile]:
        """List the version's files."""
        import pyarrow as pa

        if self.table is None:
            return []
        rows: list[dict[str, Any]] = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return sorted((_data_file(row) for row in rows), key=lambda file: (file.committed_ms, file.path))

    def _commits(self, most: int | None) -> Iterator[Commit]:
        for version in self.table.history(most):
            if _INFO in version:
                yield msgspec.json.decode(version[_INFO], type=Commit)


class DeltaArchive(VersionedTable[DeltaVersion]):
    """The Delta table in a directory."""

    format = DELTA

    def __init__(self, storage: Storage) -> None:
        """Store the directory.

        :raises ArchiveError: deltalake is not installed, or the storage is not local.
        """
        directory = demand_local(storage, DELTA)
        self._storage = storage
        self._directory = directory
        try:
            import deltalake
        except ImportError as error:
            raise ArchiveError(
                f"the archive {directory} is a Delta table, and the package deltalake is not installed",
                next_step="pip install 'cometmq[delta]'",
            ) from error
        self._delta: Any = deltalake

    @property
    def storage(self) -> Storage:
        """The storage of the log and the data files."""
        return self._storage

    def __str__(self) -> str:
        """Return the table's place."""
        return f"the Delta table {self._directory}"

    def load(self) -> DeltaVersion:
        """Load the newest version."""
        there = (self._directory / DELTA_LOG).exists()
        table = self._delta.DeltaTable(str(self._directory)) if there else None
        return DeltaVersion(table, str(self._directory))

    def commit(self, before: DeltaVersion, commit: Commit) -> None:
        """Write the next version. Of two concurrent writers, the first one succeeds."""
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import CommitProperties, RemoveAction, Transaction, create_table_with_add_actions

        moves = commit.kind != COMPACTED
        actions: list[Any] = [_add_action(file, moves) for file in commit.files]
        gone = set(commit.removed)
        actions += [
            RemoveAction(file.path, moves, commit.committed_ms, file.bytes, _partition(file))
            for file in (before.files() if gone else ())
            if file.path in gone
        ]
        info = msgspec.structs.replace(commit, files=[], removed=[])
        properties = CommitProperties(
            custom_metadata={_INFO: msgspec.json.encode(info).decode()},
            app_transactions=[Transaction(commit.query_id, commit.batch_id, commit.committed_ms)]
            if commit.kind == APPENDED
            else None,
            max_commit_retries=0,
        )
        schema, table = self._delta.Schema.from_arrow(table_schema()), before.table
        try:
            if table is None:
                create_table_with_add_actions(
                    str(self._directory), schema, actions, "error", PARTITIONS, "archive", commit_properties=properties
                )
            else:
                table.create_write_transaction(actions, "append", schema, PARTITIONS, commit_properties=properties)
        except CommitFailedError as error:
            raise CommitConflictError(str(error)) from error
        except DeltaError as error:
            if table is None and (self._directory / DELTA_LOG).exists():
                raise CommitConflictError(str(error)) from error
            raise ArchiveError(
                f"version {0 if table is None else table.version() + 1} of {self} could not be written: {error}",
                next_step="fix the cause and run the job again",
            ) from error

    def removed_since(self, time_ms: int) -> set[str]:
        """Read the paths of removed files from the log.

        :raises ArchiveError: log entries since that time were cleaned up, so the removed files are unknown.
        """
        versions = sorted(found.key for found in self._storage.list_objects(DELTA_LOG) if _VERSION.fullmatch(found.key))
        is_cut = int(PurePosixPath(versions[0]).stem) > 0
        if is_cut and (begun_ms := _written_ms(self._actions(versions[0]))) > time_ms:
            raise ArchiveError(
                f"the log of the Delta table {self._directory} begins at {np.datetime64(begun_ms, 'ms')}Z, older "
                "entries are cleaned up, so the files removed before are unknown",
                next_step="use a shorter --keep; to keep files longer, raise the table's property "
                "delta.logRetentionDuration in advance",
            )
        found = set()
        for version in versions:
            for action in self._actions(version):
                removed = action.get("remove")
                if removed is not None and removed.get("deletionTimestamp", time_ms) >= time_ms:
                    found.add(unquote(removed["path"]))
        return found

    def _actions(self, version: str) -> Iterator[dict[str, Any]]:
        return map(json.loads, self._storage.read(version).splitlines())


def table_schema() -> pa.Schema:
    """Return the columns of an archive's files, plus the hour, which is stored only in the directory name."""
    import pyarrow as pa

    return arrow_schema(ARCHIVE_COLUMNS).append(pa.field("hour", pa.string()))


def _written_ms(actions: Iterable[dict[str, Any]]) -> int:
    """Return a version's time in ms since 1970, according to the clock of the writer that created it."""
    for action in actions:
        if info := action.get("commitInfo"):
            own = msgspec.json.decode(info[_INFO], type=Commit).committed_ms if _INFO in info else None
            return int(info["timestamp"] if own is None else own)
    return 0


def _partition(file: DataFile) -> dict[str, str | None]:
    return {"topic": file.topic, "hour": hour_of(file.path)}


def _add_action(file: DataFile, moves: bool) -> Any:
    from deltalake.transaction import AddAction

    place = {"brokerName": file.broker, "queueId": file.queue_id}
    stats = {
        "numRecords": file.rows,
        "minValues": place | {"queueOffset": file.first} | _time_bound(file.min_store_ms),
        "maxValues": place | {"queueOffset": file.end - 1} | _time_bound(file.max_store_ms),
        "nullCount": {"body": file.bad_bodies},
    }
    return AddAction(file.path, file.bytes, _partition(file), file.committed_ms, moves, json.dumps(stats))


def _time_bound(time_ms: int) -> dict[str, str]:
    """Return a bound of ``storeTimestamp``, or nothing for a year after 9999, which Delta's log cannot express."""
    if not 0 <= time_ms <= MAX_TIME_MS:
        return {}
    return {"storeTimestamp": f"{np.datetime64(time_ms, 'ms')}Z"}


def _data_file(row: dict[str, Any]) -> DataFile:
    path = unquote(row["path"])
    times = (row.get("min.storeTimestamp"), row.get("max.storeTimestamp"))
    end_ms = hour_ended_ms(path)
    return DataFile(
        path,
        *queue_of(path),
        first=first_of(path),
        end=row["max.queueOffset"] + 1,
        rows=row["num_records"],
        bytes=row["size_bytes"],
        min_store_ms=end_ms - HOUR_MS if times[0] is None else milliseconds(times[0]),
        max_store_ms=end_ms - 1 if times[1] is None else milliseconds(times[1]),
        bad_bodies=row["null_count.body"] or 0,
        committed_ms=row["modification_time"],
    )
