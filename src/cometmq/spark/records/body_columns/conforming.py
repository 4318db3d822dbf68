"""Schemas of a table's files, and rows of older files in the schema of today."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from cometmq.archive.commits import BodyColumn
from cometmq.spark.records.body_columns.types import arrow_fields
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema


def table_schema(body_columns: Iterable[BodyColumn]) -> pa.Schema:
    """Return the schema of a table's files: all columns of an archive, and those that are decoded from bodies."""
    return pa.schema([*arrow_schema(ARCHIVE_COLUMNS), *arrow_fields(body_columns)])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a file in another schema. Columns that the file lacks are null."""
    there = batch.schema.names
    arrays = [
        _conformed(batch.column(field.name), field.type) if field.name in there else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _conformed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        there = {field.name: index for index, field in enumerate(array.type)}
        children = [
            _conformed(array.field(there[field.name]), field.type)
            if field.name in there
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        if array.offset:  # Arrow cannot make a list from a part of the offsets and a mask
            array = array.take(np.arange(len(array)))
        values = _conformed(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, kind, mask=array.is_null())
    return array.cast(kind)
