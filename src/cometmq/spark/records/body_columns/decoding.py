"""Decodes bodies into columns.

A body that cannot be decoded, or a field that does not fit its column, never stops a table: the row keeps its raw body,
the value is null, and the column ``bodyError`` states the reason.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from cometmq.archive.commits import BodyColumn
from cometmq.spark.records.body_columns.changes import (
    BIGINT_MAX,
    ERROR_COLUMN,
    FLOAT_MAX,
    INT_MAX,
    merged,
    type_of_value,
)
from cometmq.spark.records.body_columns.types import arrow_type, is_usable_name, type_text
from cometmq.spark.records.columns import BY_NAME

Parse = Callable[[bytes], Mapping[str, Any]]
"""Function that decodes one body into its fields. It raises an exception for a body that it cannot decode."""

_RESERVED: Final = frozenset(
    name.casefold() for name in (*BY_NAME, ERROR_COLUMN.name, "hour", "day", "month", "year", "queueId_part")
) - {"priority", "expiretimestamp"}
"""Names of message columns and partitions. The two that are left out may be names of fields: tables have no such column
of their own.
"""
_PREFIX: Final = "body_"
_REASONS_MAX: Final = 3
"""Maximum number of fields that a reason names."""
_REASON_CHARS: Final = 300
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Decoded:
    """The values of some bodies."""

    columns: list[pa.Array]
    """One array for each column of the table."""
    wanted: Mapping[str, pa.DataType]
    """Types that values need and that the columns do not have, by column."""


class MisfitError(ValueError):
    """A value does not fit its column."""


def column_name(field: str) -> str:
    """Return the column for a field. A field with the name of a message column gets a prefix."""
    return f"{_PREFIX}{field}" if field.casefold() in _RESERVED else field


def field_name(column: str) -> str:
    """Return the field whose values are in a column."""
    rest = column.removeprefix(_PREFIX)
    return rest if rest.casefold() in _RESERVED else column


class BodyDecoder:
    """Decodes bodies into the columns of a table."""

    def __init__(self, parse: Parse, columns: Sequence[BodyColumn]) -> None:
        self._parse = parse
        self._types = {of.name: arrow_type(of.type) for of in columns if of != ERROR_COLUMN}
        self._fields = {field_name(name): name for name in self._types}
        self._converters = {name: converter(kind, field_name(name)) for name, kind in self._types.items()}
        self._folded = {name.casefold() for name in self._types}
        self._columns = columns

    def decode(self, bodies: pa.Array) -> Decoded:
        """Decode an array of bodies."""
        documents: list[Mapping[str, Any]] = []
        reasons: dict[int, list[str]] = {}
        for row, body in enumerate(bodies.to_pylist()):
            document: Mapping[str, Any] = {}
            try:
                if body is None:
                    raise ValueError("the body cannot be decompressed")
                document = self._parse(body)
            except Exception as error:  # decoders raise anything on bytes that are not theirs
                reasons[row] = [str(error) or type(error).__name__]
            documents.append(document)
        wanted: dict[str, pa.DataType] = {}
        arrays = [
            self._column(field, self._types[name], documents, reasons, wanted) for field, name in self._fields.items()
        ]
        self._look_for_new_fields(documents, wanted)
        errors: list[str | None] = [None] * len(documents)
        for row, found in reasons.items():
            errors[row] = "; ".join(found[:_REASONS_MAX])[:_REASON_CHARS]
        values = dict(zip(self._types, arrays, strict=True))
        values[ERROR_COLUMN.name] = pa.array(errors, pa.string())
        return Decoded([values[of.name] for of in self._columns], wanted)

    def _column(
        self,
        field: str,
        kind: pa.DataType,
        documents: Sequence[Mapping[str, Any]],
        reasons: dict[int, list[str]],
        wanted: dict[str, pa.DataType],
    ) -> pa.Array:
        values = [document.get(field) for document in documents]
        if set(map(type, values)) <= _QUICK.get(kind, _NO_TYPES):
            try:
                return pa.array(values, kind)
            except (pa.ArrowException, OverflowError):
                pass  # a number is too large: find it
        fitted: list[Any] = []
        name = self._fields[field]
        convert = self._converters[name]
        found = Findings([])
        for row, value in enumerate(values):
            fitted.append(convert(value, found))
            if found.misfits:
                reasons.setdefault(row, []).extend(found.misfits)
            if found.misfits or found.has_more:
                found = Findings([])
                needed = merged(kind, wanted.get(name, kind), type_of_value(value))
                if needed != kind:
                    wanted[name] = needed
        return _array(fitted, kind, field, reasons)

    def _look_for_new_fields(self, documents: Sequence[Mapping[str, Any]], wanted: dict[str, pa.DataType]) -> None:
        known = self._fields.keys()
        for document in documents:
            if document.keys() <= known:
                continue
            for field, value in document.items():
                name = column_name(field)
                if field in known or name.casefold() in self._folded or not is_usable_name(name):
                    continue
                kind = merged(None, wanted.get(name, pa.null()), type_of_value(value))
                if not pa.types.is_null(kind) and (name in wanted or name.casefold() not in map(str.casefold, wanted)):
                    wanted[name] = kind


def _array(values: list[Any], kind: pa.DataType, path: str, reasons: dict[int, list[str]]) -> pa.Array:
    """Convert values to Arrow. A value that Arrow refuses becomes null, so that it cannot stop the table."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                values[row] = None
                reasons.setdefault(row, []).append(_misfit(value, kind, path))
        return pa.array(values, kind)


_NONE: Final = type(None)
_NO_TYPES: Final[frozenset[type]] = frozenset()
_QUICK: Final[Mapping[pa.DataType, frozenset[type]]] = {
    pa.bool_(): frozenset({bool, _NONE}),
    pa.int32(): frozenset({int, _NONE}),
    pa.int64(): frozenset({int, _NONE}),
    pa.float64(): frozenset({float, _NONE}),
    pa.string(): frozenset({str, _NONE}),
    pa.binary(): frozenset({bytes, _NONE}),
}
"""Types of values that Arrow converts at once and exactly. Arrow would also take True for an integer."""


@dataclass(slots=True)
class Findings:
    """The findings of one value's conversion."""

    misfits: list[str]
    """A sentence for each part that does not fit."""
    has_more: bool = False
    """True if an object has a field that its type lacks."""


Convert = Callable[[Any, Findings], Any]
"""Function that returns a value as Arrow accepts it, or None if it does not fit."""


def converter(kind: pa.DataType, path: str) -> Convert:
    """Return the function that converts values to a type. Work that depends only on the type is done in this call.

    :param path: name of the column or field, for sentences about values that do not fit.
    """
    if pa.types.is_struct(kind):
        return _struct_converter(kind, path)
    if pa.types.is_list(kind):
        item = converter(kind.value_type, f"{path}[]")
        return _demanding(kind, path, list, lambda value, found: [item(one, found) for one in value])
    if pa.types.is_map(kind):
        item = converter(kind.item_type, f"{path}{{}}")

        def pairs(value: Any, found: Findings) -> Any:
            members = value.items() if isinstance(value, dict) else value
            return [(str(name), item(one, found)) for name, one in members]

        return _demanding(kind, path, (dict, list), pairs)

    def convert(value: Any, found: Findings) -> Any:
        try:
            return None if value is None else _fit_plain(value, kind)
        except (ValueError, OverflowError, ArithmeticError):
            found.misfits.append(_misfit(value, kind, path))
            return None

    return convert


def _struct_converter(kind: pa.DataType, path: str) -> Convert:
    fields = {of.name: converter(of.type, f"{path}.{of.name}") for of in kind}
    members, known = tuple(fields.items()), fields.keys()

    def convert(value: Any, found: Findings) -> Any:
        found.has_more = found.has_more or not value.keys() <= known
        return {name: one(value.get(name), found) for name, one in members}

    return _demanding(kind, path, dict, convert)


def _demanding(kind: pa.DataType, path: str, expected: Any, convert: Convert) -> Convert:
    """Return a converter that accepts only values of the expected Python types."""

    def checked(value: Any, found: Findings) -> Any:
        if value is None:
            return None
        if not isinstance(value, expected):
            found.misfits.append(_misfit(value, kind, path))
            return None
        return convert(value, found)

    return checked


def _misfit(value: Any, kind: pa.DataType, path: str) -> str:
    kinds = {bool: "a boolean", int: "an integer", float: "a number", Decimal: "a number", str: "a text"}
    more = {list: "an array", dict: "an object"}
    found = (kinds | more).get(type(value), f"a {type(value).__name__}")
    return f"{path}: {found} does not fit {type_text(kind)}"


def _fit_plain(value: Any, kind: pa.DataType) -> Any:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if kind == pa.bool_():
        _demand(isinstance(value, bool))
    elif kind in (pa.int32(), pa.int64()):
        if isinstance(value, datetime.timedelta):
            value, is_int = value // datetime.timedelta(microseconds=1), True
        most = INT_MAX if kind == pa.int32() else BIGINT_MAX
        _demand(is_int and -most - 1 <= value <= most)
    elif kind in (pa.float32(), pa.float64()):
        _demand(is_int or isinstance(value, float | Decimal))
        value = float(value)
        _demand(kind == pa.float64() or abs(value) <= FLOAT_MAX or value != value or abs(value) == float("inf"))
    elif kind == pa.string():
        _demand(isinstance(value, str))
    elif kind == pa.binary():
        value = base64.b64decode(value, validate=True) if isinstance(value, str) else value
        _demand(isinstance(value, bytes))
    elif pa.types.is_decimal(kind):
        value = _decimal(value, kind)
    elif pa.types.is_date(kind):
        value = datetime.date.fromisoformat(value) if isinstance(value, str) else value
        _demand(isinstance(value, datetime.date) and not isinstance(value, datetime.datetime))
    elif pa.types.is_timestamp(kind):
        value = _timestamp(value, is_int, kind)
    else:
        raise MisfitError
    return value


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    _demand(isinstance(value, int | float | str | Decimal) and not isinstance(value, bool))
    try:
        number = Decimal(str(value))
        rounded = number.quantize(Decimal(1).scaleb(-kind.scale))
    except InvalidOperation as error:
        raise MisfitError from error
    _demand(number.is_finite() and rounded == number and len(rounded.as_tuple().digits) <= kind.precision)
    return rounded


def _timestamp(value: Any, is_int: bool, kind: pa.DataType) -> datetime.datetime:
    """Return a time. A number counts milliseconds since 1970, as RocketMQ's times do."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    elif is_int:
        value = _EPOCH + datetime.timedelta(milliseconds=value)
    _demand(isinstance(value, datetime.datetime))
    utc: datetime.datetime = (
        value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
    )
    return utc if kind.tz is not None else utc.replace(tzinfo=None)


def _demand(good: bool) -> None:
    if not good:
        raise MisfitError
