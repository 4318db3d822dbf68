"""An archive's table in Apache Iceberg format, written with the package ``pyiceberg``, without a JVM or jars.

A commit swaps the table's metadata once: it adds a snapshot with the added and removed files, and sets the table's
properties ``cometmq.commit`` (the commit without its files) and ``cometmq.batch.<query id>``. Properties outlive the
expiry of snapshots. The snapshot's summary also contains the query, the batch and the commit's token.

Catalogs compare only the snapshot that a commit was computed from, so every commit makes a snapshot, even one without
files. pyiceberg must not repeat a refused commit, since it would replace the properties of the commit before it:
``commit.retry.num-retries`` is 0, and is set to 0 again if another program has changed it.

``_iceberg.json`` in the archive's directory names the table's catalog. By default, this is an SQL catalog in
``_catalog.db`` in the same directory. Files have the same paths below the directory as in the other formats. A table
without a directory has its files below ``data`` in the location that its catalog has chosen. Iceberg's partitions are
the topic and the hour of ``storeTimestamp``, unless the user names others.

pyiceberg expires the snapshots (:meth:`IcebergArchive.forget`). It can neither compact files nor search for files that
no snapshot names. CometMQ implements both in :mod:`cometmq.spark.jobs.archive.upkeep` and
:meth:`.log.ArchiveLog.sweep`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import msgspec

from cometmq.archive.commits import APPENDED, Commit
from cometmq.archive.files import DataFile, first_of, queue_of
from cometmq.archive.locks import local_directory
from cometmq.errors import pip_install
from cometmq.spark.archives.catalogs import CatalogUnavailableError, IcebergCatalog, storage_options_from
from cometmq.spark.archives.iceberg_files import archive_schema, iceberg_file, integer_of
from cometmq.spark.archives.iceberg_tables import (
    MADE,
    NAMES,
    PROPERTIES,
    RETRIES,
    demand_columns,
    demand_partitions,
    partition_spec,
    take_over,
    update_body_columns,
)
from cometmq.spark.archives.table import ICEBERG, ICEBERG_POINTER, TableFormat
from cometmq.spark.archives.versioned import CommitConflictError, CommitUnknownError, VersionedTable
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.storage import ObjectNotFoundError, Storage, StorageOptions, open_storage

OWN_CATALOG: Final = "_catalog.db"
DEFAULT_TABLE: Final = "cometmq.archive"
ADDRESS: Final = "iceberg://"
"""Beginning of the address of a table whose location its catalog has chosen."""
_COMMIT: Final = "cometmq.commit"
_BATCH: Final = "cometmq.batch."
_TOKEN: Final = "cometmq.token"
_KIND: Final = "cometmq.kind"
_AT: Final = "cometmq.committed-ms"


class _Pointer(msgspec.Struct, frozen=True):
    """The table's name, and the name of its catalog in pyiceberg's configuration (None for the archive's own
    catalog).
    """

    catalog: str | None
    table: str


class IcebergVersion:
    """The table as its metadata describes it at one moment.

    :param table: pyiceberg's table, or None if it does not exist yet.
    :param root: the location below which its data files are.
    """

    def __init__(self, table: Any, root: str) -> None:
        self.table: Final = table
        self._root = root

    def last(self) -> Commit | None:
        """Read the last commit from the table's properties."""
        text = None if self.table is None else self.table.properties.get(_COMMIT)
        return None if text is None else msgspec.json.decode(text, type=Commit)

    def batch_of(self, query_id: str) -> int | None:
        """Look up the query's last batch in the table's properties."""
        text = None if self.table is None else self.table.properties.get(_BATCH + query_id)
        return None if text is None else int(text)

    def has(self, commit: Commit) -> bool:
        """Return whether the last commit or a remaining snapshot has the commit's token."""
        last = self.last()
        if last is not None and last.token == commit.token:
            return True
        return self.table is not None and any(_summary_value(of, _TOKEN) == commit.token for of in self._snapshots())

    def files(self) -> list[DataFile]:
        """List the files named in the current snapshot's manifests."""
        if self.table is None or self.table.current_snapshot() is None:
            return []
        times = {of.snapshot_id: _committed_ms(of) for of in self._snapshots() if _summary_value(of, _KIND) == APPENDED}
        schema = self.table.schema()
        time, offset = (schema.find_field(name).field_id for name in ("storeTimestamp", "queueOffset"))
        found = []
        for entry in _entries(self.table, self.table.current_snapshot()):
            file = entry.data_file
            path = self.path_of(file.file_path)
            found.append(
                DataFile(
                    path,
                    *queue_of(path),
                    first=first_of(path),
                    end=integer_of(file.upper_bounds[offset]) + 1,
                    rows=file.record_count,
                    bytes=file.file_size_in_bytes,
                    min_store_ms=integer_of(file.lower_bounds[time]) // 1000,
                    max_store_ms=integer_of(file.upper_bounds[time]) // 1000,
                    bad_bodies=0,
                    committed_ms=times.get(entry.snapshot_id, 0),
                )
            )
        return sorted(found, key=lambda file: (file.committed_ms, file.path))

    def named_since(self, time_ms: int) -> set[str]:
        """Return the paths of the files in all remaining snapshots that were current at that time or later."""
        if self.table is None:
            return set()
        return {
            self.path_of(entry.data_file.file_path)
            for snapshot in self.current_since(time_ms)
            for entry in _entries(self.table, snapshot)
        }

    def current_since(self, time_ms: int) -> list[Any]:
        """Return the snapshots that were current at ``time_ms`` or later."""
        snapshots = sorted(self._snapshots(), key=lambda of: of.sequence_number or 0)
        ended = [_committed_ms(following) for following in snapshots[1:]]
        return [of for of, end in zip(snapshots, [*ended, time_ms], strict=False) if end >= time_ms]

    def location_of(self, path: str) -> str:
        """Return the location of a data file."""
        return f"{self._root}/{path}"

    def path_of(self, location: str) -> str:
        """Return the path of a data file.

        :raises ArchiveError: the file is not below the table's root.
        """
        prefix = f"{self._root}/"
        if not location.startswith(prefix):
            raise ArchiveError(
                f"the Iceberg table names {location}, which lies outside of {self._root}",
                next_step="Iceberg stores absolute paths: move the archive back to where it was created",
            )
        return location.removeprefix(prefix)

    def _snapshots(self) -> list[Any]:
        snapshots: list[Any] = self.table.metadata.snapshots
        return snapshots


class IcebergArchive(VersionedTable[IcebergVersion]):
    """An archive's Iceberg table, in a directory or at a location that its catalog has chosen."""

    format = ICEBERG

    def __init__(self, storage: Storage | None, wanted: TableFormat | None) -> None:
        """Store the table's location. The table may not exist yet.

        :param storage: the archive's directory, or None if the catalog chooses the location.
        :raises ArchiveError: pyiceberg is not installed, or the archive's table is not ``wanted``.
        :raises OptionError: the storage is not local, and no catalog is named.
        """
        try:
            import pyiceberg.catalog  # noqa: F401
        except ImportError as error:
            place = f"{wanted.catalog}" if storage is None and wanted is not None else f"{storage and storage.url}"
            raise ArchiveError(
                f"the archive {place} is an Iceberg table, and the package pyiceberg is not installed",
                next_step=pip_install("iceberg"),
            ) from error
        self._directory = storage
        self._wanted = wanted or TableFormat(ICEBERG)
        asked = None
        if self._wanted.catalog is not None or self._wanted.table is not None:
            asked = _Pointer(self._wanted.catalog, self._wanted.table or DEFAULT_TABLE)
        saved = None if storage is None else _saved_pointer(storage)
        self._pointer = saved or asked or _Pointer(None, DEFAULT_TABLE)
        if storage is not None and saved is not None and asked is not None and asked != saved:
            raise ArchiveError(
                f"the archive {storage.url} is table {saved.table} of {saved.catalog or 'its own catalog'}, "
                f"not {asked.table} of {asked.catalog}",
                next_step="leave out --catalog and --table to continue it",
            )
        self._root = None if storage is None else _root_of(storage)
        properties = self._wanted.catalog_options or {}
        if self._pointer.catalog is None:
            properties = _own_catalog(storage)
        self._catalog = IcebergCatalog(self._pointer.catalog or "archive", properties)

    def __str__(self) -> str:
        """Return the table's name and place."""
        place = f" of {self._directory.url}" if self._directory is not None else f" of the catalog {self._catalog.name}"
        return f"the Iceberg table {self._pointer.table}{place}"

    @property
    def url(self) -> str:
        """Return the archive's directory, or the name of its table."""
        if self._directory is not None:
            return self._directory.url
        return f"{ADDRESS}{self._pointer.catalog}/{self._pointer.table}"

    @cached_property
    def storage(self) -> Storage:
        """The storage of the data files, with the credentials that the catalog has issued.

        :raises OptionError: the catalog chooses the location, and the table does not exist yet.
        """
        if self._directory is not None:
            return self._directory
        table = self._open()
        if table is None:
            raise OptionError(f"{self} does not exist", next_step="create it: cometmq pipeline archive")
        root = _data_root(table)
        return open_storage(root, storage_options_from(table.io.properties, root, StorageOptions()))

    def prepare(self) -> None:
        """Create the table if the catalog chooses its location."""
        if self._directory is None and self._open() is None:
            self._create()

    def load(self) -> IcebergVersion:
        """Load the table's metadata."""
        table = self._open()
        return IcebergVersion(table, self._root or ("" if table is None else _data_root(table)))

    def commit(self, before: IcebergVersion, commit: Commit) -> None:
        """Replace the table's metadata. Of two concurrent writers, the first one succeeds."""
        from pyiceberg.exceptions import CommitFailedException

        table = before.table or self._create()
        demand_same_snapshot(before)
        try:
            demand_columns(table, self._pointer.table)
            demand_partitions(table, self._pointer.table)
            if table.properties.get(RETRIES) != "0":
                with table.transaction() as change:
                    change.set_properties({RETRIES: "0"})
                table.refresh()
            with table.transaction() as change:
                _stage(change, table, before, commit)
                # pyiceberg would delete the manifests of a refused commit. The catalog also refuses a commit that it
                # already has, if the answer was lost and a proxy has sent the request again.
                change._snapshot_producers = []
        except CommitFailedException as error:
            raise CommitConflictError(str(error)) from error
        except (ArchiveError, FileNotFoundError):
            raise
        except Exception as error:
            failure = self._catalog.failure(error)
            if failure is None or isinstance(failure, CatalogUnavailableError):
                raise CommitUnknownError(str(failure or self._catalog.describe(error))) from None
            raise failure from None

    def removed_since(self, time_ms: int) -> set[str]:
        """Return all paths in snapshots that were current at that time or later, which include the removed files."""
        return self.load().named_since(time_ms)

    def forget(self, time_ms: int) -> None:
        """Expire the snapshots that stopped being current before this time."""
        from pyiceberg.exceptions import CommitFailedException

        version = self.load()
        if version.table is None:
            return
        metadata = version.table.metadata
        current = {snapshot.snapshot_id for snapshot in version.current_since(time_ms)}
        current |= {ref.snapshot_id for ref in metadata.refs.values()}
        old = [of.snapshot_id for of in metadata.snapshots if of.snapshot_id not in current]
        if old:
            with suppress(CommitFailedException):  # a job has committed in the meantime: the next call expires them
                version.table.maintenance.expire_snapshots().by_ids(old).commit()

    # The catalog ----------------------------------------------------------------------------------

    def _open(self) -> Any:
        """Load the table, or return None if it does not exist yet or is not an archive.

        :raises ArchiveError: the directory was moved.
        """
        if self._directory is not None and self._directory.stat(ICEBERG_POINTER) is None:
            return None
        try:
            table = self._catalog.load_table(self._pointer.table)
        except FileNotFoundError as error:
            raise self._moved(str(error)) from error
        if self._directory is None:
            return table if table is not None and MADE in table.properties else None
        if table is not None and table.metadata.location != self._root:
            raise self._moved(f"it was created in {table.metadata.location}")
        return table

    def _moved(self, reason: str) -> ArchiveError:
        return ArchiveError(
            f"the Iceberg table {self._pointer.table} does not belong to {self.url}: {reason}",
            next_step="Iceberg stores absolute paths: move the directory back to where it was created, or link "
            "it there, and use that path; or archive into another directory",
        )

    def _create(self) -> Any:
        """Create an empty table. If the job is killed later, the next run uses this table.

        The pointer is written last, so other processes see no archive in the directory before the table is complete.

        :raises ArchiveError: the catalog has another table of this name.
        """
        name, schema = self._pointer.table, archive_schema()
        spec = partition_spec(schema, self._wanted.partition)
        table = self._catalog.create_table(name, schema, self._root, spec, PROPERTIES)
        if self._root is not None and table.metadata.location != self._root:
            raise ArchiveError(
                f"the catalog has a table {name} already, in {table.metadata.location} and not in {self._root}",
                next_step="choose another name with --table, or leave out --to to use the location of that table",
            )
        if MADE not in table.properties:
            if not self._wanted.take_over:
                raise ArchiveError(
                    f"the catalog has a table {name} already, which is not the archive in {self.url}",
                    next_step="choose another name with --table, or continue in this table with --take-over",
                )
            self._catalog.ask(lambda: take_over(table, name))
        if self._directory is not None:
            self._directory.put(ICEBERG_POINTER, msgspec.json.encode(self._pointer))
        return table


def _saved_pointer(storage: Storage) -> _Pointer | None:
    try:
        return msgspec.json.decode(storage.read(ICEBERG_POINTER), type=_Pointer)
    except ObjectNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ArchiveError(
            f"{storage.describe(ICEBERG_POINTER)} is damaged: {error}", next_step="restore it from a backup"
        ) from error


def _root_of(storage: Storage) -> str:
    directory = local_directory(storage)
    return storage.url if directory is None else f"file://{directory}"


def _data_root(table: Any) -> str:
    """Return the place for the data files of a table whose location the catalog has chosen."""
    return f"{table.metadata.location.rstrip('/')}/data"


def _own_catalog(storage: Storage | None) -> dict[str, str]:
    """Return the properties of the SQL catalog in an archive's directory.

    :raises OptionError: the directory is not local.
    """
    directory = None if storage is None else local_directory(storage)
    if directory is None:
        raise OptionError(
            f"an Iceberg table in {storage.url if storage else 'a catalog'} needs the name of a catalog",
            next_step="add --catalog NAME --table lake.orders, for a catalog of type rest, glue, hive or sql "
            "(PostgreSQL)",
        )
    return {"type": "sql", "uri": f"sqlite:///{directory / OWN_CATALOG}", "warehouse": f"file://{directory}"}


def demand_same_snapshot(version: IcebergVersion) -> None:
    """Check that the table still contains what the last commit has added.

    :raises ArchiveError: somebody has rolled the table back to an earlier snapshot.
    """
    last, table = version.last(), version.table
    if last is None or not last.token:
        return
    snapshot = table.current_snapshot()
    while snapshot is not None and (token := _summary_value(snapshot, _TOKEN)) is None:
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)  # None if it has expired
    if snapshot is not None and token != last.token:
        raise ArchiveError(
            f"somebody has set the table {table.name()[-1]} to an earlier snapshot, so messages that were archived are "
            "no longer in it",
            next_step="set it to its newest snapshot again (CALL system.set_current_snapshot), or archive into a new "
            "table",
        )


def _stage(change: Any, table: Any, before: IcebergVersion, commit: Commit) -> None:
    """Add a commit to a transaction: the table's properties, and one snapshot."""
    info = msgspec.structs.replace(commit, files=[], removed=[], covered=[])
    last = before.last()
    update_body_columns(change, table, [] if last is None else last.body_columns, commit.body_columns)
    # files know no ids of columns
    properties = {NAMES: change.table_metadata.schema().name_mapping.model_dump_json()}
    properties[_COMMIT] = msgspec.json.encode(info).decode()
    if commit.kind == APPENDED:
        properties[_BATCH + commit.query_id] = str(commit.batch_id)
    change.set_properties(properties)
    summary = {
        "cometmq.query": commit.query_id,
        "cometmq.batch": str(commit.batch_id),
        _KIND: commit.kind,
        _AT: str(commit.committed_ms),
        _TOKEN: commit.token,
    }
    gone = {before.location_of(path) for path in commit.removed}
    made = change.update_snapshot(snapshot_properties=summary)
    with made.overwrite() if gone else made.merge_append() if commit.files else made.fast_append() as snapshot:
        for entry in _entries(table, table.current_snapshot()) if gone else ():
            if entry.data_file.file_path in gone:
                snapshot.delete_data_file(entry.data_file)
        for new in commit.files:
            location = before.location_of(new.path)
            snapshot.append_data_file(iceberg_file(table.io, change.table_metadata, location))


def _entries(table: Any, snapshot: Any) -> Iterable[Any]:
    for manifest in snapshot.manifests(table.io):
        yield from manifest.fetch_manifest_entry(table.io)


def _summary_value(snapshot: Any, name: str) -> str | None:
    said: str | None = None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
    return said


def _committed_ms(snapshot: Any) -> int:
    """Return a snapshot's time according to the clock of the job that wrote it."""
    return int(_summary_value(snapshot, _AT) or snapshot.timestamp_ms)
