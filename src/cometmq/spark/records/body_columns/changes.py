"""The rule for changes of a table's columns.

Bodies have no fixed schema: a producer adds a field, or sends a number that is too large for its column. The rule says
what happens to the column. Columns are never removed, renamed or narrowed, so old files and old queries stay valid.

============================  =======================================================
found in a body               column
============================  =======================================================
a field without a column      is added, with the type of its first values
a field missing, or null      null
an integer beyond 32 bits     ``int`` becomes ``bigint``
a number beyond 32 bits       ``float`` becomes ``double``
a new field in an object      is added to the struct, also in arrays
any other type                unchanged: the value is null, and ``bodyError`` names it
============================  =======================================================

The types that a value needs are described by :func:`type_of_value`; there, ``int`` and ``float`` mean "fits into".
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from cometmq.archive.commits import BodyColumn
from cometmq.spark.errors import OptionError
from cometmq.spark.records.body_columns.types import (
    COLUMNS_MAX,
    DEPTH_MAX,
    arrow_type,
    is_usable_name,
    leaves,
    type_text,
)

if TYPE_CHECKING:
    import pyarrow as pa

ERROR_COLUMN: Final = BodyColumn("bodyError", "string")
"""Column with the reason why a body or one of its fields has no value."""
INT_MAX: Final = 2**31 - 1
BIGINT_MAX: Final = 2**63 - 1
FLOAT_MAX: Final = 3.4028234663852886e38


def type_of_value(value: Any, depth: int = 0) -> pa.DataType:
    """Return the narrowest type for a decoded value; null if the value says nothing about it."""
    import pyarrow as pa

    if depth > DEPTH_MAX:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int32() if -INT_MAX - 1 <= value <= INT_MAX else pa.int64()
    if isinstance(value, float | Decimal):
        return pa.float32() if abs(float(value)) <= FLOAT_MAX else pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, bytes):
        return pa.binary()
    if isinstance(value, datetime.datetime):
        return pa.timestamp("us", None if value.tzinfo is None else "UTC")
    if isinstance(value, datetime.date):
        return pa.date32()
    if isinstance(value, list):
        element = pa.null()
        for item in value:
            element = merged(None, element, type_of_value(item, depth + 1))
        return element if pa.types.is_null(element) else pa.list_(element)
    if isinstance(value, dict):
        fields = [
            pa.field(name, kind)
            for name, item in value.items()
            if is_usable_name(name) and not pa.types.is_null(kind := type_of_value(item, depth + 1))
        ]
        return pa.struct(_without_doubles(fields)) if fields else pa.null()
    return pa.null()


def merged(committed: pa.DataType | None, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type for the values of both types, or ``one`` if the rule allows none.

    :param committed: the type of the column in committed files; None if the column is new and any type is possible.
    """
    import pyarrow as pa

    is_list, is_struct = pa.types.is_list, pa.types.is_struct
    if pa.types.is_null(one):
        return other
    if pa.types.is_null(other) or one == other:
        return one
    if is_struct(one) and is_struct(other):
        return _merged_structs(committed, one, other)
    if is_list(one) and is_list(other):
        before = committed.value_type if committed is not None and is_list(committed) else None
        return pa.list_(merged(before, one.value_type, other.value_type))
    if (one, other) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return other
    if committed is None and _is_number(one) and pa.types.is_floating(other):
        return pa.float64()
    return one


def _merged_structs(committed: pa.DataType | None, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    before = {} if committed is None or not pa.types.is_struct(committed) else {of.name: of.type for of in committed}
    fields = {field.name: field.type for field in one}
    for field in other:
        kind = fields.get(field.name, pa.null())
        fields[field.name] = merged(before.get(field.name), kind, field.type)
    return pa.struct(_without_doubles(pa.field(name, kind) for name, kind in fields.items()))


def _without_doubles(fields: Iterable[pa.Field]) -> list[pa.Field]:
    """Leave out fields whose names differ only in case from an earlier one, as most engines cannot tell them apart."""
    found: dict[str, pa.Field] = {}
    for field in fields:
        found.setdefault(field.name.casefold(), field)
    return list(found.values())


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def settled(kind: pa.DataType, committed: pa.DataType | None = None) -> pa.DataType:
    """Return the type of a new column: integers are ``bigint`` and other numbers ``double``, so that later values fit.

    :param committed: type of the column in committed files, which stays as it is.
    """
    import pyarrow as pa

    if committed is not None and kind == committed:
        return kind
    if pa.types.is_struct(kind):
        is_known = committed is not None and pa.types.is_struct(committed)
        before = {of.name: of.type for of in committed} if is_known and committed is not None else {}
        return pa.struct([pa.field(of.name, settled(of.type, before.get(of.name))) for of in kind])
    if pa.types.is_list(kind):
        is_known = committed is not None and pa.types.is_list(committed)
        return pa.list_(settled(kind.value_type, committed.value_type if is_known and committed is not None else None))
    if committed is None:
        return {pa.int32(): pa.int64(), pa.float32(): pa.float64()}.get(kind, kind)
    return kind


def changed_columns(
    known: Sequence[BodyColumn], wanted: Iterable[Mapping[str, pa.DataType]]
) -> tuple[list[BodyColumn], list[str]]:
    """Return the columns after a change, and sentences that describe the change.

    :param known: the columns of the table.
    :param wanted: types that the bodies of several tasks need, by column. If they disagree about a new column, the
        first one wins.
    """
    import pyarrow as pa

    committed = {column.name: arrow_type(column.type) for column in known}
    kinds: dict[str, pa.DataType] = dict(committed)
    for types in wanted:
        for name, kind in types.items():
            kinds[name] = merged(committed.get(name), kinds.get(name, pa.null()), kind)
    columns, changes, count = [], [], 0
    for name, kind in kinds.items():
        before = committed.get(name)
        final = settled(kind, before)
        count += leaves(final)
        if before is None and (count > COLUMNS_MAX or pa.types.is_null(final)):
            continue
        if before is not None and count > COLUMNS_MAX:
            final = before
        columns.append(BodyColumn(name, type_text(final)))
        if before is None:
            changes.append(f"{name} {type_text(final)} is new")
        elif final != before:
            changes.append(f"{name} {type_text(before)} becomes {type_text(final)}")
    return columns, changes


def with_given(known: Sequence[BodyColumn], given: Sequence[BodyColumn]) -> list[BodyColumn]:
    """Return a table's columns with those that the user has given: new ones are added, and types may widen.

    :raises OptionError: a given type cannot hold the values of the table's column.
    """
    import pyarrow as pa

    types = {column.name: arrow_type(column.type) for column in known}
    for column in given:
        wanted, before = arrow_type(column.type), types.get(column.name, pa.null())
        after = merged(types.get(column.name), before, wanted)
        if not _holds(after, wanted):
            raise OptionError(
                f"column {column.name} of the table is {type_text(before)}, which cannot become {column.type}",
                next_step="leave the column as it is, or give the field another name in a new table; int may become "
                "bigint, float may become double, and structs may get new fields",
            )
        types[column.name] = after
    return [BodyColumn(name, type_text(kind)) for name, kind in types.items()]


def _holds(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if a column holds every value of the wanted type."""
    import pyarrow as pa

    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        there = {field.name: field.type for field in kind}
        return all(field.name in there and _holds(there[field.name], field.type) for field in wanted)
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return _holds(kind.value_type, wanted.value_type)
    wider = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}
    return bool(kind == wanted or wider.get(wanted) == kind)
