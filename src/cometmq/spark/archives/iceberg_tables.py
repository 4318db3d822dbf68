"""Iceberg tables of archives: how they are created, and which changes by other programs they tolerate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cometmq.archive.commits import BodyColumn
from cometmq.spark.archives.iceberg_files import COUNTED, archive_schema
from cometmq.spark.errors import ArchiveError
from cometmq.spark.records.body_columns.types import arrow_fields

RETRIES: Final = "commit.retry.num-retries"
NAMES: Final = "schema.name-mapping.default"
MADE: Final = "cometmq.archive"
"""Property of the tables that archive jobs have created or taken over."""
PROPERTIES: Final = {
    MADE: "1",
    RETRIES: "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in COUNTED},
}
_FIRST_PARTITION_ID: Final = 1000


def partition_spec(schema: Any, partition: str) -> Any:
    """Return the partitions of a new table, from names such as ``topic,day``."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import (
        DayTransform,
        HourTransform,
        IdentityTransform,
        MonthTransform,
        YearTransform,
    )

    periods: Mapping[str, Any] = {
        "hour": HourTransform(),
        "day": DayTransform(),
        "month": MonthTransform(),
        "year": YearTransform(),
    }
    return PartitionSpec(
        *(
            PartitionField(
                schema.find_field("storeTimestamp" if name in periods else name).field_id,
                number,
                periods.get(name, IdentityTransform()),
                name if name in periods or name == "topic" else f"{name}_part",
            )
            for number, name in enumerate(partition.split(","), _FIRST_PARTITION_ID)
        )
    )


def take_over(table: Any, name: str) -> None:
    """Prepare a table that no archive job has created. Columns that it lacks are added.

    :raises ArchiveError: the table has files, or a column of another type, or columns that an archive cannot fill.
    """
    wanted = {field.name: field.field_type for field in archive_schema().fields}
    there = {field.name: field for field in table.schema().fields}
    differences = [
        f"column {name} is {there[name].field_type}, not {kind}"
        for name, kind in wanted.items()
        if name in there and _shape(there[name].field_type) != _shape(kind)
    ]
    differences += [f"column {field.name} is required" for field in there.values() if field.required]
    snapshot = table.current_snapshot()
    if snapshot is not None and any(snapshot.manifests(table.io)):
        differences.append("it contains rows")
    if differences:
        raise ArchiveError(
            f"the table {name} cannot become an archive: {'; '.join(differences)}",
            next_step="name a new table with --table, or change this one",
        )
    with table.transaction() as change:
        change.set_properties(PROPERTIES)
    add_columns(table)


def demand_columns(table: Any, name: str) -> None:
    """Check that nobody has dropped or changed a column of an archive, and add columns that are new in this version.

    :raises ArchiveError: a column was dropped, renamed or changed.
    """
    wanted = archive_schema()
    there = {field.name: field.field_type for field in table.schema().fields}
    before = {field.name for schema in table.schemas().values() for field in schema.fields}
    missing = [field.name for field in wanted.fields if field.name not in there]
    gone = [column for column in missing if column in before]
    changed = [
        field.name
        for field in wanted.fields
        if field.name in there and _shape(there[field.name]) != _shape(field.field_type)
    ]
    if gone or changed:
        what = [f"the column {column} was dropped or renamed" for column in gone]
        what += [f"the column {column} has another type now" for column in changed]
        raise ArchiveError(
            f"somebody has altered the table {name}: {'; '.join(what)}",
            next_step="add dropped columns again (ALTER TABLE … ADD COLUMN) or rename them back; the archived files "
            "still contain them",
        )
    if missing:
        add_columns(table)


def add_columns(table: Any) -> None:
    """Add the columns that a table lacks."""
    there = {field.name for field in table.schema().fields}
    missing = [field for field in archive_schema().fields if field.name not in there]
    if missing:
        with table.update_schema() as change:
            for field in missing:
                change.add_column(field.name, field.field_type)


def update_body_columns(change: Any, table: Any, known: Sequence[BodyColumn], columns: Sequence[BodyColumn]) -> None:
    """Add the columns of a commit that are decoded from bodies to a transaction, and widen types.

    :param known: the columns of the last commit.

    :raises ArchiveError: somebody has added a column with the same name and another type, or has dropped a column.
    """
    import pyarrow as pa
    from pyiceberg.exceptions import ValidationError

    there = {field.name for field in table.schema().fields}
    gone = [column.name for column in known if column.name not in there]
    if gone:
        raise ArchiveError(
            f"somebody has altered the table {table.name()[-1]}: the column {gone[0]} was dropped or renamed",
            next_step="add it again (ALTER TABLE … ADD COLUMN) or rename it back; the files still contain it",
        )
    missing = [column for column in columns if column not in known]
    if not missing:
        return
    try:
        with change.update_schema() as update:
            update.union_by_name(pa.schema(arrow_fields(missing)))
    except (ValidationError, ValueError) as error:
        raise ArchiveError(
            f"the table {table.name()[-1]} cannot have the columns {', '.join(of.name for of in missing)}: {error}",
            next_step="drop or rename the table's own column of this name, or continue in a new table",
        ) from error


def demand_partitions(table: Any, name: str) -> None:
    """Check that each data file belongs to one partition.

    :raises ArchiveError: the table has a partition that does not follow from the topic, the queue and the hour.
    """
    schema, allowed = table.schema(), {"topic": {"identity"}, "queueId": {"identity"}}
    allowed["storeTimestamp"] = {"hour", "day", "month", "year"}
    for field in table.spec().fields:
        column = schema.find_column_name(field.source_id) or ""
        if str(field.transform) not in allowed.get(column, ()):
            raise ArchiveError(
                f"the table {name} has the partition {field.name} ({field.transform} of {column}), but a file of an "
                "archive contains one queue and one hour",
                next_step="partition it by topic, queueId, and hour, day, month or year of storeTimestamp",
            )


def _shape(kind: Any) -> str:
    """Return a type without the ids of its fields."""
    from pyiceberg.types import MapType

    return f"map<{kind.key_type},{kind.value_type}>" if isinstance(kind, MapType) else str(kind)
