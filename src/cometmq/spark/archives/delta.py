"""An archive's table in Delta Lake format, written with the package ``deltalake``, without a JVM or jars.

A commit is one version of the Delta log: the files that it adds (with their rows, partition values and smallest and
largest values) and removes, and ``cometmq.commit``, the rest of the commit, in its ``commitInfo``. It also contains two
of Delta's transactions: ``<query id>: <batch id>``, which Delta's own writers use to recognise a batch, and
``cometmq.commit: <version>``, which names the version of the last commit, also after other programs' versions.

A version's file is created only if it does not exist: of two commits for one version, the second one fails. deltalake
does this with conditional writes in object stores, and with renames that refuse on HDFS. It must not repeat a refused
commit, which was computed from an earlier version: ``max_commit_retries`` is 0. deltalake also reports our own commit
as refused if an answer was lost and the request was sent again; the commit's token shows it (:mod:`.versioned`).

The upkeep jobs do not use deltalake's own functions. ``optimize.compact`` names its files at random, but an archive's
file names contain the queue and its first offset. ``vacuum`` cannot distinguish the files of a batch that is about to
be committed from those of a dead batch: a short ``--keep`` would delete both, and a long one would keep both. It also
rounds to full hours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import msgspec
import numpy as np

from cometmq.archive.commits import APPENDED, COMPACTED, Commit
from cometmq.archive.files import HOUR_MS, DataFile, first_of, hour_ended_ms, hour_of, queue_of
from cometmq.archive.locks import local_directory
from cometmq.errors import pip_install
from cometmq.spark.archives.delta_log import INFO, DeltaLog, commit_in, written_ms
from cometmq.spark.archives.table import DELTA, DELTA_LOG
from cometmq.spark.archives.versioned import CommitConflictError, CommitUnknownError, VersionedTable
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, MAX_TIME_MS, arrow_schema, milliseconds
from cometmq.storage import Location, Storage, StorageError, StorageOptions, StorageUnavailableError
from cometmq.storage.connection import object_store_texts
from cometmq.storage.failures import storage_failure
from cometmq.storage.objects import ObjectStorage

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS: Final = ["topic", "hour"]
_CLEANED_EVERY: Final = 100
"""Number of versions between two clean-ups of old log files, each of which lists the log."""
_USUALLY_WITHIN: Final = 15
"""Number of newest versions that are searched for the last commit, before the table's transactions are."""
_CLOCKS_APART_MS: Final = 3_600_000
"""Versions may have been written by machines whose clocks differ."""
_PLAIN: Final = ":/@+=,"
"""Characters that need not be encoded in a URL, besides letters, digits and ``-._~``."""
_UNSAFE: Final = "AWS_S3_ALLOW_UNSAFE_RENAME"
_TRUE: Final = frozenset({"1", "true", "on", "yes", "y"})
_UNCONDITIONAL: Final = ("aliyuncs.com", "myqcloud.com")
"""Domains of object stores without ``If-None-Match``."""


class DeltaVersion:
    """One version of the table.

    :param table: deltalake's table, or None if it does not exist yet.
    """

    def __init__(self, table: Any, log: DeltaLog, reading: Callable[[], AbstractContextManager[None]]) -> None:
        self.table: Final = table
        self._log = log
        self._reading = reading

    def last(self) -> Commit | None:
        """Read the last commit from the newest version that an archive job wrote.

        :raises ArchiveError: none of the remaining versions was written by an archive job.
        """
        return None if self.table is None else self._last

    @cached_property
    def _last(self) -> Commit:
        newest = self.table.version()
        commit = self._newest_commit(newest, _USUALLY_WITHIN)
        if commit is None:
            # deltalake reads all versions since its last checkpoint; CometMQ 0.1 wrote no such transaction
            known = self._transaction(INFO)
            commit = self._newest_commit(newest if known is None else known, None)
        if commit is not None:
            return commit
        raise ArchiveError(
            "the log of the Delta table no longer contains a commit of an archive job",
            next_step="it was cleaned up past the last commit; archive into another directory",
        )

    def _newest_commit(self, version: int, most: int | None) -> Commit | None:
        """Search a version and those before it, ``most`` in all."""
        commits = (commit_in(actions) for _, actions in islice(self._log.newest_first(version), most))
        return next((commit for commit in commits if commit is not None), None)

    def _transaction(self, name: str) -> int | None:
        with self._reading():
            found: int | None = self.table.transaction_version(name)
        return found

    def batch_of(self, query_id: str) -> int | None:
        """Look up the query's last batch in the last commit, or else in the table's transactions."""
        last = self.last()
        if last is None:
            return None
        return last.batch_id if last.query_id == query_id else self._transaction(query_id)

    def has(self, commit: Commit) -> bool:
        """Return whether the commit is in the versions since the commit before it."""
        if self.table is None:
            return False
        for _, actions in self._log.newest_first(self.table.version()):
            found = commit_in(actions)
            if found is not None and (found.token == commit.token or found.sequence < commit.sequence):
                return found.token == commit.token
        return False

    def files(self) -> list[DataFile]:
        """List the version's files."""
        import pyarrow as pa

        if self.table is None:
            return []
        with self._reading():
            rows: list[dict[str, Any]] = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return sorted((_data_file(row) for row in rows), key=lambda file: (file.committed_ms, file.path))


class DeltaArchive(VersionedTable[DeltaVersion]):
    """The Delta table in a storage."""

    format = DELTA

    def __init__(self, storage: Storage) -> None:
        """Store the place.

        :raises ArchiveError: deltalake is not installed.
        :raises OptionError: Delta's commits would not be safe in this storage.
        """
        try:
            import deltalake
        except ImportError as error:
            raise ArchiveError(
                f"the archive {storage.url} is a Delta table, and the package deltalake is not installed",
                next_step=pip_install("delta"),
            ) from error
        self._delta: Any = deltalake
        self._storage = storage
        self._log = DeltaLog(storage)
        self._options = storage.options if isinstance(storage, ObjectStorage) else StorageOptions()
        self._location = Location.parse(storage.url)
        _demand_conditional_writes(self._location, self._options)
        _demand_plain_path(self._location)
        self._table: Any = None
        self._settings: dict[str, str] = {}

    @property
    def storage(self) -> Storage:
        """The storage of the log and the data files."""
        return self._storage

    def __str__(self) -> str:
        """Return the table's place."""
        return f"the Delta table {self._storage.url}"

    def load(self) -> DeltaVersion:
        """Load the newest version. Only versions that this process has not read yet are read."""
        from deltalake.exceptions import TableNotFoundError

        settings = object_store_texts(self._location, self._options)
        with self._reading():
            if self._table is not None and settings == self._settings:
                self._table.update_incremental()
            elif DELTA_LOG in self._storage.list_directories():
                try:
                    self._table = self._delta.DeltaTable(self._address, storage_options=settings)
                except TableNotFoundError:
                    self._table = None
        self._settings = settings
        return DeltaVersion(self._table, self._log, self._reading)

    def commit(self, before: DeltaVersion, commit: Commit) -> None:
        """Write the next version. Of two concurrent writers, the first one succeeds."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        moves = commit.kind != COMPACTED
        actions: list[Any] = [_add_action(file, moves) for file in commit.files]
        gone = set(commit.removed)
        actions += [
            _remove_action(file, moves, commit.committed_ms)
            for file in (before.files() if gone else ())
            if file.path in gone
        ]
        try:
            with self._failures():
                self._write(before.table, commit, actions)
        except CommitFailedError as error:
            raise CommitConflictError(str(error)) from error
        except StorageUnavailableError as error:
            raise CommitUnknownError(str(error)) from error
        except (StorageError, DeltaError) as error:
            now = self.load()
            if now.has(commit):
                return  # only what deltalake does after a commit has failed, such as a checkpoint
            if isinstance(error, StorageError):
                raise
            if before.table is None and now.table is not None:
                raise CommitConflictError(str(error)) from error
            raise ArchiveError(
                f"version {_next_version(before.table)} of {self} could not be written: {error}",
                next_step="fix the cause and run the job again",
            ) from error

    def _write(self, table: Any, commit: Commit, actions: list[Any]) -> None:
        from deltalake import PostCommitHookProperties
        from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

        version = _next_version(table)
        transactions = [Transaction(INFO, version, commit.committed_ms)]
        if commit.kind == APPENDED:
            transactions.append(Transaction(commit.query_id, commit.batch_id, commit.committed_ms))
        info = msgspec.structs.replace(commit, files=[], removed=[])
        properties = CommitProperties(
            custom_metadata={INFO: msgspec.json.encode(info).decode()},
            app_transactions=transactions,
            max_commit_retries=0,
        )
        hooks = PostCommitHookProperties(cleanup_expired_logs=None if version % _CLEANED_EVERY == 0 else False)
        schema = self._delta.Schema.from_arrow(table_schema())
        if table is not None:
            table.create_write_transaction(
                actions,
                "append",
                schema,
                PARTITIONS,
                commit_properties=properties,
                post_commithook_properties=hooks,
            )
            return
        create_table_with_add_actions(
            self._address,
            schema,
            actions,
            "error",
            PARTITIONS,
            "archive",
            storage_options=self._settings,
            commit_properties=properties,
            post_commithook_properties=hooks,
        )

    def removed_since(self, time_ms: int) -> set[str]:
        """Read the paths of removed files from the log.

        :raises ArchiveError: log entries since that time were cleaned up, so the removed files are unknown.
        """
        table = self.load().table
        found: set[str] = set()
        oldest, begun_ms = 0, time_ms
        for version, actions in self._log.newest_first(-1 if table is None else table.version()):
            at_ms = written_ms(actions)
            oldest, begun_ms = version, begun_ms if at_ms is None else at_ms
            if begun_ms < time_ms - _CLOCKS_APART_MS:
                return found
            removals = [action["remove"] for action in actions if "remove" in action]
            found.update(
                unquote(removed["path"]) for removed in removals if removed.get("deletionTimestamp", time_ms) >= time_ms
            )
        if oldest > 0 and begun_ms > time_ms:
            raise ArchiveError(
                f"the log of {self} begins at {np.datetime64(begun_ms, 'ms')}Z, older entries are cleaned up, so the "
                "files removed before are unknown",
                next_step="use a shorter --keep; to keep files longer, raise the table's property "
                "delta.logRetentionDuration in advance",
            )
        return found

    @property
    def _address(self) -> str:
        """The URL, encoded as deltalake expects it."""
        directory = local_directory(self._storage)
        return quote(self._storage.url, safe=_PLAIN) if directory is None else directory.as_uri()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Describe failures of the storage in sentences without secrets."""
        try:
            yield
        except OSError as error:
            issued = [text for name, text in self._settings.items() if "secret" in name or "token" in name]
            raise storage_failure(self._storage.url, error, [*self._options.secrets, *issued]) from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Name the table whose log is damaged."""
        from deltalake.exceptions import DeltaError

        with self._failures():
            try:
                yield
            except DeltaError as error:
                raise ArchiveError(
                    f"{self} cannot be read: {error}", next_step="restore the files of its log from a backup"
                ) from error


def _demand_conditional_writes(location: Location, options: StorageOptions) -> None:
    """Check that deltalake uses conditional writes, and that the store has them.

    :raises OptionError: two jobs could overwrite each other's versions.
    """
    if location.kind != "s3":
        return
    if os.environ.get(_UNSAFE, "").lower() in _TRUE:
        raise OptionError(
            f"{_UNSAFE} is set: two jobs could overwrite each other's commits in {location}",
            next_step=f"unset {_UNSAFE}; conditional writes need no such setting",
        )
    host = options.endpoint.partition("://")[2].partition("/")[0].partition(":")[0]
    if options.forbid_overwrite_header or host.endswith(_UNCONDITIONAL):
        raise OptionError(
            f"Delta tables need a storage with If-None-Match, which {location} does not have",
            next_step="use --format parquet, or --format iceberg with a catalog",
        )


def _demand_plain_path(location: Location) -> None:
    """Check that deltalake, which decodes some paths twice and does not decode those on HDFS, finds its own files.

    :raises OptionError: it would not find them.
    """
    path = location.path
    if "%" in path or (location.kind == "hdfs" and quote(path, safe=_PLAIN) != path):
        raise OptionError(
            f"a Delta table cannot be in {location}: deltalake does not find files below this name",
            next_step="use a name with letters, digits, - and _",
        )


def _next_version(table: Any) -> int:
    return 0 if table is None else int(table.version()) + 1


def table_schema() -> pa.Schema:
    """Return the columns of an archive's files, plus the hour, which is stored only in the directory name."""
    import pyarrow as pa

    return arrow_schema(ARCHIVE_COLUMNS).append(pa.field("hour", pa.string()))


def _partition(file: DataFile) -> dict[str, str | None]:
    return {"topic": file.topic, "hour": hour_of(file.path)}


def _remove_action(file: DataFile, moves: bool, removed_ms: int) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, moves, removed_ms, file.bytes, _partition(file))


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
