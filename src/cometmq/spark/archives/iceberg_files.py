"""The columns of an archive and its data files, as an Iceberg table describes them.

Data files are described as pyiceberg's ``parquet_file_to_data_file`` does, except for the bounds of times: pyiceberg
reads these as Python's ``datetime``, which ends with the year 9999, but the clocks of producers and brokers may show
any time. Here the bounds remain microseconds. The hours of partitions, which pyiceberg also writes as text, end with
that year: later times are assigned to its last hour, so predicates with any possible date still find them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cometmq.spark.records.columns import ARCHIVE_COLUMNS, BY_NAME

COUNTED: Final = ("topic", "queueId", "queueOffset", "keys", "uniqKey", "tags", "bornTimestamp", "storeTimestamp")
"""Columns whose smallest and largest values Iceberg stores. The files contain statistics only for these columns."""
_TIMES: Final = ("bornTimestamp", "storeTimestamp")
_CALENDAR_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last time that pyiceberg can convert: the beginning of the year 1 and the end of the year 9999."""


def archive_schema() -> Any:
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


def integer_of(stored: bytes) -> int:
    """Convert a bound from its stored form; times are in microseconds."""
    return int.from_bytes(stored, "little", signed=True)


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
