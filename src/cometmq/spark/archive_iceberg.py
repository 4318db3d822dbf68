"""An archive's table as Apache Iceberg, by the package ``pyiceberg``: no JVM, no jars.

A commit is one swap of the table's metadata: a snapshot with the files added and removed, and the table's properties
``cometmq.commit`` (all else that the commit says, but for its files) and ``cometmq.batch.<query id>``, so that they
outlive the expiry of snapshots. The snapshot's summary names query and batch too.

``_iceberg.json`` in the archive's directory says which catalog knows the table; without one that is configured for
pyiceberg it is an SQL catalog in ``_catalog.db`` beside it. Files keep their places below the directory, as with the
other formats; Iceberg's partitions are the topic and the hour of ``storeTimestamp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from cometmq.durable import replace_file
from cometmq.spark.archive_commit import APPENDED, Commit, DataFile, file_named
from cometmq.spark.archive_iceberg_file import iceberg_file
from cometmq.spark.archive_table import ICEBERG, ICEBERG_POINTER, TableFormat
from cometmq.spark.columns import ARCHIVE_COLUMNS, BY_NAME
from cometmq.spark.errors import ArchiveError

T = TypeVar("T")

OWN_CATALOG: Final = "_catalog.db"
DEFAULT_TABLE: Final = "cometmq.archive"
_COMMIT: Final = "cometmq.commit"
_BATCH: Final = "cometmq.batch."
_KIND: Final = "cometmq.kind"
_AT: Final = "cometmq.committed-ms"
_NAMES: Final = "schema.name-mapping.default"
_COUNTED: Final = ("topic", "queueId", "queueOffset", "keys", "uniqKey", "tags", "bornTimestamp", "storeTimestamp")
"""Columns of whose values Iceberg keeps the smallest and the largest; the files have them of these alone."""
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in _COUNTED},
}


class _Pointer(msgspec.Struct, frozen=True):
    """Which table it is; ``catalog`` is the name of one that pyiceberg is configured for, or none for our own."""

    catalog: str | None
    table: str


class IcebergArchive:
    """The Iceberg table of a directory."""

    format = ICEBERG

    def __init__(self, root: Path, wanted: TableFormat | None) -> None:
        """Take note of where the table is, or shall be.

        :raises ArchiveError: pyiceberg is not installed, or the archive's table is another than ``wanted``.
        """
        self._root = root
        try:
            import pyiceberg.catalog
        except ImportError as error:
            raise ArchiveError(
                f"the archive {root} is an Iceberg table, and the package pyiceberg is not installed",
                next_step="pip install 'cometmq[iceberg]'",
            ) from error
        self._load_catalog: Any = pyiceberg.catalog.load_catalog
        path = root / ICEBERG_POINTER
        asked = None
        if wanted is not None and (wanted.catalog is not None or wanted.table is not None):
            asked = _Pointer(wanted.catalog, wanted.table or DEFAULT_TABLE)
        if path.exists():
            self._pointer = msgspec.json.decode(path.read_bytes(), type=_Pointer)
            if asked is not None and asked != self._pointer:
                raise ArchiveError(
                    f"the archive {root} is table {self._pointer.table} of "
                    f"{self._pointer.catalog or 'its own catalog'}, not {asked.table} of {asked.catalog}",
                    next_step="leave --catalog and --table out to go on with it",
                )
        else:
            self._pointer = asked or _Pointer(None, DEFAULT_TABLE)

    def last(self) -> Commit | None:
        """Read it from the table's properties."""
        table = self._open()
        text = None if table is None else table.properties.get(_COMMIT)
        return None if text is None else msgspec.json.decode(text, type=Commit)

    def batch_of(self, query_id: str) -> int | None:
        """Look the query up in the table's properties."""
        table = self._open()
        text = None if table is None else table.properties.get(_BATCH + query_id)
        return None if text is None else int(text)

    def files(self) -> list[DataFile]:
        """Read them from the manifests of the current snapshot."""
        table = self._open()
        if table is None or table.current_snapshot() is None:
            return []
        times = {of.snapshot_id: _committed_ms(of) for of in table.metadata.snapshots if _said(of, _KIND) == APPENDED}
        at = table.schema().find_field("storeTimestamp").field_id
        found = []
        for entry in _entries(table, table.current_snapshot()):
            file = entry.data_file
            edges = (_milliseconds(file.lower_bounds[at]), _milliseconds(file.upper_bounds[at]))
            came_ms = times.get(entry.snapshot_id, 0)
            place = self._place(file.file_path)
            found.append(file_named(place, file.record_count, file.file_size_in_bytes, edges, 0, came_ms))
        return sorted(found, key=lambda file: (file.committed_ms, file.path))

    def commit(self, commit: Commit, removed: Sequence[DataFile]) -> None:
        """Swap the metadata; whoever swapped it first wins."""
        from pyiceberg.exceptions import CommitFailedException

        table = self._open() or self._create()
        info = msgspec.structs.replace(commit, files=[], removed=[], covered=[])
        properties = {_NAMES: table.schema().name_mapping.model_dump_json()}  # files know no ids of columns
        properties |= {_COMMIT: msgspec.json.encode(info).decode(), _BATCH + commit.query_id: str(commit.batch_id)}
        summary = {
            "cometmq.query": commit.query_id,
            "cometmq.batch": str(commit.batch_id),
            _KIND: commit.kind,
            _AT: str(commit.committed_ms),
        }
        gone = {self._location(file.path) for file in removed}
        try:
            with table.transaction() as change:
                change.set_properties(properties)
                if gone or commit.files:
                    made = change.update_snapshot(snapshot_properties=summary)
                    with made.overwrite() if gone else made.merge_append() as snapshot:
                        for entry in _entries(table, table.current_snapshot()) if gone else ():
                            if entry.data_file.file_path in gone:
                                snapshot.delete_data_file(entry.data_file)
                        for new in commit.files:
                            location = self._location(new.path)
                            snapshot.append_data_file(iceberg_file(table.io, change.table_metadata, location))
        except CommitFailedException as error:
            raise ArchiveError(
                f"the Iceberg table {self._pointer.table} of {self._root} could not be changed: {error}",
                next_step="somebody else wrote to it; run it again, nothing was committed",
            ) from error

    def removed_since(self, time_ms: int) -> set[str]:
        """Look at all snapshots that are kept and were current then or later."""
        table = self._open()
        if table is None:
            return set()
        return {
            self._place(entry.data_file.file_path)
            for snapshot in _current_since(table, time_ms)
            for entry in _entries(table, snapshot)
        }

    def forget(self, time_ms: int) -> None:
        """Expire the snapshots that were current before this time alone."""
        table = self._open()
        if table is None:
            return
        kept = {snapshot.snapshot_id for snapshot in _current_since(table, time_ms)}
        kept |= {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [of.snapshot_id for of in table.metadata.snapshots if of.snapshot_id not in kept]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    # The catalog ----------------------------------------------------------------------------------

    @cached_property
    def _catalog(self) -> Any:
        if self._pointer.catalog is not None:
            try:
                return _made(lambda: self._load_catalog(self._pointer.catalog))
            except ValueError as error:
                raise ArchiveError(
                    f"pyiceberg is configured for no catalog of the name {self._pointer.catalog}: {error}",
                    next_step="describe it in ~/.pyiceberg.yaml, on driver and executors",
                ) from error
        own = {"type": "sql", "uri": f"sqlite:///{self._root / OWN_CATALOG}", "warehouse": f"file://{self._root}"}
        return _made(lambda: self._load_catalog("archive", **own))

    def _open(self) -> Any:
        """The table as it is now; None if it was not made yet.

        :raises ArchiveError: the directory is not where it was made.
        """
        from pyiceberg.exceptions import NoSuchTableError

        if not (self._root / ICEBERG_POINTER).exists():
            return None
        try:
            table = self._catalog.load_table(self._pointer.table)
        except NoSuchTableError:
            return None
        except FileNotFoundError as error:
            raise self._moved(str(error)) from error
        if table.metadata.location != self._location(""):
            raise self._moved(f"it was made in {table.metadata.location}")
        return table

    def _moved(self, told: str) -> ArchiveError:
        return ArchiveError(
            f"the Iceberg table {self._pointer.table} is not one of {self._root}: {told}",
            next_step="Iceberg names files by their whole paths: put the directory, or a link to it, where it was "
            "made, and name it so; or archive anew into another directory",
        )

    def _create(self) -> Any:
        """Make the table, empty: a job that is killed behind this finds it so.

        The pointer comes last: until then others see no archive here.
        """
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import HourTransform, IdentityTransform

        namespace = self._pointer.table.rpartition(".")[0]
        if namespace:
            _made(lambda: self._catalog.create_namespace_if_not_exists(namespace))
        schema = _schema()
        spec = PartitionSpec(
            PartitionField(schema.find_field("topic").field_id, 1000, IdentityTransform(), "topic"),
            PartitionField(schema.find_field("storeTimestamp").field_id, 1001, HourTransform(), "hour"),
        )
        place = self._location("")
        try:
            table = self._catalog.create_table(self._pointer.table, schema, place, spec, properties=_PROPERTIES)
        except TableAlreadyExistsError as error:
            table = self._catalog.load_table(self._pointer.table)
            if table.metadata.location != place or table.current_snapshot() is not None:
                raise ArchiveError(
                    f"the catalog has a table {self._pointer.table} already, which is no archive in {self._root}",
                    next_step="name another with --table",
                ) from error
        replace_file(self._root / ICEBERG_POINTER, msgspec.json.encode(self._pointer))
        return table

    def _location(self, path: str) -> str:
        return f"file://{self._root}/{path}".rstrip("/")

    def _place(self, location: str) -> str:
        prefix = f"file://{self._root}/"
        if not location.startswith(prefix):
            raise ArchiveError(
                f"the Iceberg table {self._pointer.table} names {location}, which lies outside of {self._root}",
                next_step="Iceberg names files by their whole paths: put the archive where it was made",
            )
        return location.removeprefix(prefix)


def _made(make: Callable[[], T]) -> T:
    """Open or make something of a catalog; once more, if that fails.

    SQL catalogs look first whether it is there, and fail if another job makes it between that and their turn.
    """
    try:
        return make()
    except ValueError:
        raise
    except Exception:
        return make()


def _schema() -> Any:
    """The columns of an archive's files, in Iceberg's types."""
    from pyiceberg import types
    from pyiceberg.schema import Schema

    count = len(ARCHIVE_COLUMNS)
    known = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestamptzType(),
        "map<string,string>": types.MapType(
            key_id=count + 1,
            key_type=types.StringType(),
            value_id=count + 2,
            value_type=types.StringType(),
            value_required=False,
        ),
    }
    return Schema(
        *(
            types.NestedField(number, name, known[BY_NAME[name].type], required=False)
            for number, name in enumerate(ARCHIVE_COLUMNS, 1)
        )
    )


def _entries(table: Any, snapshot: Any) -> Iterable[Any]:
    for manifest in snapshot.manifests(table.io):
        yield from manifest.fetch_manifest_entry(table.io)


def _said(snapshot: Any, name: str) -> str | None:
    said: str | None = None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
    return said


def _committed_ms(snapshot: Any) -> int:
    """When a snapshot was made, by the clock of the job that made it."""
    return int(_said(snapshot, _AT) or snapshot.timestamp_ms)


def _current_since(table: Any, time_ms: int) -> list[Any]:
    """The snapshots that were current at some moment from ``time_ms`` on."""
    snapshots = sorted(table.metadata.snapshots, key=lambda of: of.sequence_number or 0)
    ended = [_committed_ms(following) for following in snapshots[1:]]
    return [of for of, end in zip(snapshots, [*ended, time_ms], strict=False) if end >= time_ms]


def _milliseconds(stored: bytes) -> int:
    """A bound of ``storeTimestamp``: microseconds, little-endian."""
    return int.from_bytes(stored, "little", signed=True) // 1000
