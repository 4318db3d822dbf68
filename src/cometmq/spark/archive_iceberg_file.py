"""What an Iceberg table says of a data file of an archive: sizes, counts, bounds, partition.

It is what pyiceberg's ``parquet_file_to_data_file`` makes of it, but for the bounds of times: pyiceberg reads these as
Python's ``datetime``, which ends with the year 9999, and clocks of producers and brokers may say anything. Here they
are taken as the microseconds that they are. The hours of partitions, which pyiceberg writes as text too, end with the
calendar: what lies beyond is in its last hour, and found by every predicate that names a time of the calendar.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

_TIMES: Final = ("bornTimestamp", "storeTimestamp")
_CALENDAR_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""Beginning of the year 1 and end of the year 9999."""


def iceberg_file(io: Any, metadata: Any, location: str) -> Any:
    """Describe the Parquet file at ``location``, by its footer, for the table with this metadata.

    :param io: pyiceberg's ``FileIO`` of the table.
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


def _bounds(footer: Any, name: str, within: tuple[int, int] = (-(1 << 63), (1 << 63) - 1)) -> Any:
    """The smallest and the largest time of a column, as pyiceberg holds them."""
    from pyiceberg.io.pyarrow import StatsAggregator
    from pyiceberg.types import TimestamptzType

    bounds = StatsAggregator(TimestamptzType(), "INT64")
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema == name:
                bounds.update_min(_clipped(column.statistics.min_raw, *within))
                bounds.update_max(_clipped(column.statistics.max_raw, *within))
    return bounds


def _clipped(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)
