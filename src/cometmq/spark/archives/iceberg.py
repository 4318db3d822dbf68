"""An archive's table in Apache Iceberg format, written with the package ``pyiceberg``, without a JVM or jars.

A commit swaps the table's metadata once: it adds a snapshot with the added and removed files, and sets the table's
properties ``cometmq.commit`` (the commit without its files) and ``cometmq.batch.<query id>``. Properties outlive the
expiry of snapshots. The snapshot's summary also contains the query and the batch.

``_iceberg.json`` in the archive's directory names the table's catalog. By default, this is an SQL catalog in
``_catalog.db`` in the same directory. Files have the same paths below the directory as in the other formats. Iceberg's
partitions are the topic and the hour of ``storeTimestamp``.

Data files are described as pyiceberg's ``parquet_file_to_data_file`` does, except for the bounds of times: pyiceberg
reads these as Python's ``datetime``, which ends with the year 9999, but the clocks of producers and brokers may show
any time. Here the bounds remain microseconds. The hours of partitions, which pyiceberg also writes as text, end with
that year: later times are assigned to its last hour, so predicates with any possible date still find them.

pyiceberg expires the snapshots (:meth:`IcebergArchive.forget`). It can neither compact files nor search for files that
no snapshot names. CometMQ implements both in :mod:`cometmq.spark.jobs.archive.upkeep` and
:meth:`.log.ArchiveLog.sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec

from cometmq.archive.commits import APPENDED, Commit
from cometmq.archive.files import DataFile, first_of, queue_of
from cometmq.spark.archives.table import ICEBERG, ICEBERG_POINTER, TableFormat, VersionedTable, demand_local
from cometmq.spark.errors import ArchiveError
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, BY_NAME
from cometmq.storage import ObjectNotFoundError, Storage

T = TypeVar("T")

OWN_CATALOG: Final = "_catalog.db"
DEFAULT_TABLE: Final = "cometmq.archive"
_COMMIT: Final = "cometmq.commit"
_BATCH: Final = "cometmq.batch."
_KIND: Final = "cometmq.kind"
_AT: Final = "cometmq.committed-ms"
_NAMES: Final = "schema.name-mapping.default"
_COUNTED: Final = ("topic", "queueId", "queueOffset", "keys", "uniqKey", "tags", "bornTimestamp", "storeTimestamp")
"""Columns whose smallest and largest values Iceberg stores. The files contain statistics only for these columns."""
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in _COUNTED},
}


class _Pointer(msgspec.Struct, frozen=True):
    """The table's name, and the name of its catalog in pyiceberg's configuration (None for the archive's own
    catalog).
    """

    catalog: str | None
    table: str


class IcebergArchive(VersionedTable):
    """The Iceberg table that belongs to a directory."""

    format = ICEBERG

    def __init__(self, storage: Storage, wanted: TableFormat | None) -> None:
        """Store the table's location. The table may not exist yet.

        :raises ArchiveError: pyiceberg is not installed, or the archive's table is not ``wanted``.
        """
        directory = demand_local(storage, ICEBERG)
        self._storage = storage
        self._directory = directory
        try:
            import pyiceberg.catalog
        except ImportError as error:
            raise ArchiveError(
                f"the archive {directory} is an Iceberg table, and the package pyiceberg is not installed",
                next_step="pip install 'cometmq[iceberg]'",
            ) from error
        self._load_catalog: Any = pyiceberg.catalog.load_catalog
        asked = None
        if wanted is not None and (wanted.catalog is not None or wanted.table is not None):
            asked = _Pointer(wanted.catalog, wanted.table or DEFAULT_TABLE)
        saved = self._saved_pointer()
        self._pointer = saved or asked or _Pointer(None, DEFAULT_TABLE)
        if saved is not None and asked is not None and asked != saved:
            raise ArchiveError(
                f"the archive {directory} is table {saved.table} of {saved.catalog or 'its own catalog'}, "
                f"not {asked.table} of {asked.catalog}",
                next_step="leave out --catalog and --table to continue it",
            )

    def _saved_pointer(self) -> _Pointer | None:
        try:
            return msgspec.json.decode(self._storage.read(ICEBERG_POINTER), type=_Pointer)
        except ObjectNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise ArchiveError(
                f"{self._storage.describe(ICEBERG_POINTER)} is damaged: {error}", next_step="restore it from a backup"
            ) from error

    def last(self) -> Commit | None:
        """Read the last commit from the table's properties."""
        table = self._open()
        text = None if table is None else table.properties.get(_COMMIT)
        return None if text is None else msgspec.json.decode(text, type=Commit)

    def batch_of(self, query_id: str) -> int | None:
        """Look up the query's last batch in the table's properties."""
        table = self._open()
        text = None if table is None else table.properties.get(_BATCH + query_id)
        return None if text is None else int(text)

    def files(self) -> list[DataFile]:
        """List the files named in the current snapshot's manifests."""
        table = self._open()
        if table is None or table.current_snapshot() is None:
            return []
        times = {
            of.snapshot_id: _committed_ms(of)
            for of in table.metadata.snapshots
            if _summary_value(of, _KIND) == APPENDED
        }
        schema = table.schema()
        time, offset = (schema.find_field(name).field_id for name in ("storeTimestamp", "queueOffset"))
        found = []
        for entry in _entries(table, table.current_snapshot()):
            file = entry.data_file
            path = self._place(file.file_path)
            found.append(
                DataFile(
                    path,
                    *queue_of(path),
                    first=first_of(path),
                    end=_integer(file.upper_bounds[offset]) + 1,
                    rows=file.record_count,
                    bytes=file.file_size_in_bytes,
                    min_store_ms=_integer(file.lower_bounds[time]) // 1000,
                    max_store_ms=_integer(file.upper_bounds[time]) // 1000,
                    bad_bodies=0,
                    committed_ms=times.get(entry.snapshot_id, 0),
                )
            )
        return sorted(found, key=lambda file: (file.committed_ms, file.path))

    def commit(self, commit: Commit) -> None:
        """Swap the metadata. Of two concurrent writers, the first one succeeds."""
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
        gone = {self._location(path) for path in commit.removed}
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
                f"the Iceberg table {self._pointer.table} of {self._directory} could not be changed: {error}",
                next_step="nothing was committed; another program wrote to the table, so run the job again",
            ) from error

    def removed_since(self, time_ms: int) -> set[str]:
        """Compare all remaining snapshots that were current at that time or later."""
        table = self._open()
        if table is None:
            return set()
        return {
            self._place(entry.data_file.file_path)
            for snapshot in _current_since(table, time_ms)
            for entry in _entries(table, snapshot)
        }

    def forget(self, time_ms: int) -> None:
        """Expire the snapshots that stopped being current before this time."""
        table = self._open()
        if table is None:
            return
        current = {snapshot.snapshot_id for snapshot in _current_since(table, time_ms)}
        current |= {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [of.snapshot_id for of in table.metadata.snapshots if of.snapshot_id not in current]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    # The catalog ----------------------------------------------------------------------------------

    @cached_property
    def _catalog(self) -> Any:
        if self._pointer.catalog is not None:
            try:
                return _retry_once(lambda: self._load_catalog(self._pointer.catalog))
            except ValueError as error:
                raise ArchiveError(
                    f"pyiceberg's configuration has no catalog {self._pointer.catalog}: {error}",
                    next_step="describe it in ~/.pyiceberg.yaml, on driver and executors",
                ) from error
        own = {
            "type": "sql",
            "uri": f"sqlite:///{self._directory / OWN_CATALOG}",
            "warehouse": f"file://{self._directory}",
        }
        return _retry_once(lambda: self._load_catalog("archive", **own))

    def _open(self) -> Any:
        """Load the table, or return None if it does not exist yet.

        :raises ArchiveError: the directory was moved.
        """
        from pyiceberg.exceptions import NoSuchTableError

        if not (self._directory / ICEBERG_POINTER).exists():
            return None
        try:
            table = self._catalog.load_table(self._pointer.table)
        except NoSuchTableError:
            return None
        except FileNotFoundError as error:
            raise self._moved(str(error)) from error
        if table.metadata.location != self._location(""):
            raise self._moved(f"it was created in {table.metadata.location}")
        return table

    def _moved(self, reason: str) -> ArchiveError:
        return ArchiveError(
            f"the Iceberg table {self._pointer.table} does not belong to {self._directory}: {reason}",
            next_step="Iceberg stores absolute paths: move the directory back to where it was created, or link "
            "it there, and use that path; or archive into another directory",
        )

    def _create(self) -> Any:
        """Create an empty table. If the job is killed later, the next run uses this table.

        The pointer is written last, so other processes see no archive in the directory before the table is complete.
        """
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import HourTransform, IdentityTransform

        namespace = self._pointer.table.rpartition(".")[0]
        if namespace:
            _retry_once(lambda: self._catalog.create_namespace_if_not_exists(namespace))
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
                    f"the catalog has a table {self._pointer.table} already, which is not the archive in "
                    f"{self._directory}",
                    next_step="choose another name with --table",
                ) from error
        self._storage.put(ICEBERG_POINTER, msgspec.json.encode(self._pointer))
        return table

    def _location(self, path: str) -> str:
        return f"file://{self._directory}/{path}".rstrip("/")

    def _place(self, location: str) -> str:
        prefix = f"file://{self._directory}/"
        if not location.startswith(prefix):
            raise ArchiveError(
                f"the Iceberg table {self._pointer.table} names {location}, which lies outside of {self._directory}",
                next_step="Iceberg stores absolute paths: move the archive back to where it was created",
            )
        return location.removeprefix(prefix)


def _retry_once(make: Callable[[], T]) -> T:
    """Open or create something in a catalog, and retry once if that fails.

    SQL catalogs first check that the object does not exist. They fail if another job creates it after the check.
    """
    try:
        return make()
    except ValueError:
        raise
    except Exception:
        return make()


def _schema() -> Any:
    """Return the columns of an archive's files as an Iceberg schema."""
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


def _summary_value(snapshot: Any, name: str) -> str | None:
    said: str | None = None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
    return said


def _committed_ms(snapshot: Any) -> int:
    """Return a snapshot's time according to the clock of the job that wrote it."""
    return int(_summary_value(snapshot, _AT) or snapshot.timestamp_ms)


def _current_since(table: Any, time_ms: int) -> list[Any]:
    """Return the snapshots that were current at ``time_ms`` or later."""
    snapshots = sorted(table.metadata.snapshots, key=lambda of: of.sequence_number or 0)
    ended = [_committed_ms(following) for following in snapshots[1:]]
    return [of for of, end in zip(snapshots, [*ended, time_ms], strict=False) if end >= time_ms]


def _integer(stored: bytes) -> int:
    """Convert a bound from its stored form; times are in microseconds."""
    return int.from_bytes(stored, "little", signed=True)


_TIMES: Final = ("bornTimestamp", "storeTimestamp")
_CALENDAR_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last time that pyiceberg can convert: the beginning of the year 1 and the end of the year 9999."""


def iceberg_file(io: Any, metadata: Any, location: str) -> Any:
    """Describe the Parquet file at ``location`` for the table with this metadata. The facts are read from the file's
    footer.

    :param io: pyiceberg's ``FileIO`` for the table.
    """
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    file, schema = io.new_input(location), metadata.schema()
    with file.open() as opened:
        footer = pq.read_metadata(opened)
    ids = parquet_path_to_id_mapping(schema)
    plan = compute_statistics_plan(schema, metadata.properties)
    for name in _TIMES:
        plan[ids[name]] = replace(plan[ids[name]], mode=MetricsMode(MetricModeTypes.COUNTS))
    counted = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer, stats_columns=plan, parquet_column_mapping=ids
    )
    counted.column_aggregates.update({ids[name]: _bounds(footer, name, _CALENDAR_US) for name in _TIMES})
    partition = counted.partition(metadata.spec(), schema)
    counted.column_aggregates.update({ids[name]: _bounds(footer, name) for name in _TIMES})
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(file),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **counted.to_serialized_dict(),
    )


def _bounds(footer: Any, name: str, limits: tuple[int, int] = (-(1 << 63), (1 << 63) - 1)) -> Any:
    """Return a column's smallest and largest times in the form in which pyiceberg stores them."""
    from pyiceberg.io.pyarrow import StatsAggregator
    from pyiceberg.types import TimestamptzType

    bounds = StatsAggregator(TimestamptzType(), "INT64")
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema == name:
                bounds.update_min(_clipped(column.statistics.min_raw, *limits))
                bounds.update_max(_clipped(column.statistics.max_raw, *limits))
    return bounds


def _clipped(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)
