"""Avro bodies, read and written with fastavro. Each body is one binary datum without a file header.

The types match Spark's own ``from_avro``: a union of several types is a struct with fields ``member0``, ``member1``, …,
one of which is set. Recursive schemas, for which Spark has no type, are rejected.

fastavro does not report which type in a union a value had (int or long?). In Avro, a record adds no bytes to its
fields. So each type in such a union is read and written as a record with one field, which has the name of the struct's
field: the bytes are the same, and the field identifies the type.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq.errors import pip_install
from cometmq.spark.bodies.codec import FAILFAST, PERMISSIVE, decoded, encoded
from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Schema = str | Path | Mapping[str, Any]
"""A schema: JSON text, parsed JSON, or the path of its file (``.avsc``)."""

_PLAIN: Final = {
    "boolean": "BooleanType",
    "int": "IntegerType",
    "long": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "bytes": "BinaryType",
    "string": "StringType",
    "enum": "StringType",
    "fixed": "BinaryType",
}
_LOGICAL: Final = {
    "date": "DateType",
    "timestamp-millis": "TimestampType",
    "timestamp-micros": "TimestampType",
    "local-timestamp-millis": "TimestampNTZType",
    "local-timestamp-micros": "TimestampNTZType",
}
_WIDER: Final = ((frozenset({"int", "long"}), "LongType"), (frozenset({"float", "double"}), "DoubleType"))
"""Pairs of types that Spark reads as one type if they form a union."""
_MEMBER: Final = "CometMQUnionMember"
_BASE_ONLY: Final = ("time-millis", "time-micros", "duration", "uuid")
"""Logical types that Spark lacks. Their values have the underlying types."""


def from_avro(
    body: Column | str,
    schema: Schema,
    *,
    writer_schema: Schema | None = None,
    mode: str = PERMISSIVE,
    with_reason: bool = False,
) -> Column:
    """Decode a column of bodies.

    :param schema: schema of the values.
    :param writer_schema: schema of the bodies, if it differs; Avro resolves the difference.
    :param mode: PERMISSIVE: a body that does not match the schema becomes null; FAILFAST: the body fails the query.
    :param with_reason: return ``struct<value, reason>`` with the reason why the value is null.
    :raises OptionError: a schema or the mode is invalid.
    """
    codec = AvroCodec(_text(schema), None if writer_schema is None else _text(writer_schema))
    return decoded(codec, body, called="from_avro", mode=mode, with_reason=with_reason)


def to_avro(value: Column | str, schema: Schema, *, mode: str = FAILFAST) -> Column:
    """Encode a column of values. A missing field gets its default value.

    :param value: a struct for a record schema, or a value of the schema's type.
    :param mode: FAILFAST: a value that does not match the schema fails the query; PERMISSIVE: the value becomes null.
    :raises OptionError: the schema or the mode is invalid.
    """
    return encoded(AvroCodec(_text(schema)), value, called="to_avro", mode=mode)


@dataclass(frozen=True)
class AvroCodec:
    """A codec for one Avro schema, stored as JSON text."""

    schema: str
    writer_schema: str | None = None

    def __post_init__(self) -> None:
        self.spark_type  # noqa: B018 (so that a bad schema is an error when the query is written)
        if self.writer_schema is not None and (_read(self.schema).unions or _read(self.writer_schema).unions):
            raise OptionError(
                "a union of several Avro types cannot be resolved against a writer schema",
                next_step="leave out writer_schema, and read the bodies with the schema they were written with",
            )

    @property
    def name(self) -> str:
        """Return "Avro" followed by the record's name."""
        parsed = _read(self.schema).parsed
        return f"Avro {parsed.get('name', parsed['type'])}" if isinstance(parsed, dict) else "Avro"

    @property
    def spark_type(self) -> DataType:
        """Return the Spark type of the decoded values."""
        return _spark_type(_read(self.schema).parsed, {}, ())

    def decode(self, body: bytes) -> Any:
        """Decode one datum that fills the entire body."""
        return avro_value(body, self.schema, self.writer_schema)

    def encode(self, value: Any) -> bytes:
        """Encode a value as one datum."""
        from fastavro import schemaless_writer

        target = io.BytesIO()
        schemaless_writer(target, _read(self.schema).parsed, value)
        return target.getvalue()


def avro_value(body: bytes, schema: str, writer_schema: str | None = None) -> Any:
    """Decode one datum that fills the entire body. This function does not need Spark.

    :param schema: JSON text.
    :raises OptionError: the schema is invalid.
    :raises Exception: the body does not match the schema.
    """
    from fastavro import schemaless_reader

    source = io.BytesIO(body)
    if writer_schema is None:
        value = schemaless_reader(source, _read(schema).parsed, None)
    else:
        value = schemaless_reader(source, _read(writer_schema).parsed, _read(schema).parsed)
    if source.tell() != len(body):
        raise ValueError(f"{len(body) - source.tell()} bytes follow the datum")
    return value


def _text(schema: Schema) -> str:
    if isinstance(schema, Path):
        try:
            return schema.read_text(encoding="utf-8")
        except OSError as error:
            raise OptionError(f"cannot read the Avro schema: {error}") from error
    return schema if isinstance(schema, str) else json.dumps(schema)


@dataclass(frozen=True)
class _Read:
    """A schema parsed by fastavro."""

    parsed: Any
    unions: bool
    """True if any union in the schema is read as a record."""


@lru_cache(maxsize=64)
def _read(text: str) -> _Read:
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError as error:
        raise OptionError("fastavro is not installed", next_step=pip_install("avro")) from error
    numbers = itertools.count()
    try:
        parsed = parse_schema(_prepared(json.loads(text), numbers))
    except (ValueError, TypeError, SchemaParseException, UnknownType) as error:
        raise OptionError(
            f"invalid Avro schema: {error}", next_step="pass JSON text or the Path of an .avsc file"
        ) from error
    return _Read(parsed, unions=next(numbers) > 0)


def _prepared(schema: Any, numbers: Iterator[int]) -> Any:
    """Remove logical types whose Python values Spark does not accept, and add the records that represent union types.

    :param numbers: counter that numbers the added records.
    """
    if isinstance(schema, list):
        return _prepared_union(schema, numbers)
    if not isinstance(schema, dict):
        return schema
    prepared = {name: value for name, value in schema.items() if name != "logicalType" or value not in _BASE_ONLY}
    for name in ("type", "items", "values"):
        if name in prepared:
            prepared[name] = _prepared(prepared[name], numbers)
    if isinstance(prepared.get("fields"), list):
        prepared["fields"] = [_prepared_field(field, numbers) for field in prepared["fields"]]
    return prepared


def _prepared_field(field: Any, numbers: Iterator[int]) -> Any:
    """Prepare a field. A union's default value has the union's first type."""
    prepared = _prepared(field, numbers)
    match prepared:
        case {"type": [{"name": str(name)}, *_], "default": default} if name.startswith(_MEMBER):
            return prepared | {"default": {"member0": default}}
    return prepared


def _prepared_union(schema: list[Any], numbers: Iterator[int]) -> list[Any]:
    names = [part["type"] if isinstance(part, dict) and "type" in part else part for part in schema]
    several = [name for name in names if name != "null"]
    if len(several) == 2 and any(set(map(str, several)) == pair for pair, _ in _WIDER):
        return names  # Spark ignores logical types here, too
    members = itertools.count()
    return [
        "null"
        if name == "null"
        else _prepared(part, numbers)
        if len(several) == 1
        else _member(part, next(members), numbers)
        for part, name in zip(schema, names, strict=True)
    ]


def _member(schema: Any, member: int, numbers: Iterator[int]) -> dict[str, Any]:
    """Create a record with one field for a type in a union. The record has no namespace, so the names inside it keep
    their own namespaces.
    """
    field = {"name": f"member{member}", "type": _prepared(schema, numbers)}
    return {"type": "record", "name": f"{_MEMBER}{next(numbers)}", "fields": [field]}


def _spark_type(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> DataType:
    """Return the Spark type of a parsed schema. ``named`` collects named types, and ``inside`` contains the enclosing
    records.
    """
    from pyspark.sql import types

    if isinstance(schema, list):
        kinds = [part for part in schema if part != "null"]
        if len(kinds) < 2:
            return _spark_type(kinds[0] if kinds else "null", named, inside)
        if all(isinstance(kind, dict) for kind in kinds):
            records = cast("list[types.StructType]", [_spark_type(kind, named, inside) for kind in kinds])
            return types.StructType([field for record in records for field in record.fields])
        return getattr(types, next(wide for pair, wide in _WIDER if pair == set(kinds)))()  # type: ignore[no-any-return]
    if isinstance(schema, str):
        if schema in _PLAIN:
            return getattr(types, _PLAIN[schema])()  # type: ignore[no-any-return]
        if schema in inside:
            raise OptionError(f"Avro type {schema} contains itself; Spark has no recursive types")
        if schema not in named:
            raise OptionError(f"Avro type {schema} alone has no values")
        return _spark_type(named[schema], named, inside)
    kind = schema["type"]
    if "name" in schema:
        named[schema["name"]] = schema
    logical = schema.get("logicalType")
    if logical in _LOGICAL:
        return getattr(types, _LOGICAL[logical])()  # type: ignore[no-any-return]
    if logical == "decimal":
        return types.DecimalType(schema["precision"], schema.get("scale", 0))
    if kind == "record":
        below = (*inside, schema["name"])
        fields = [types.StructField(of["name"], _spark_type(of["type"], named, below)) for of in schema["fields"]]
        return types.StructType(fields)
    if kind == "array":
        return types.ArrayType(_spark_type(schema["items"], named, inside))
    if kind == "map":
        return types.MapType(types.StringType(), _spark_type(schema["values"], named, inside))
    return _spark_type(kind, named, inside)
