"""Formats of bodies that become columns: JSON, Avro and Protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from cometmq.archive.commits import BodyColumn
from cometmq.paths import local_path
from cometmq.spark.bodies.avro import AvroCodec
from cometmq.spark.bodies.protobuf import ProtobufCodec
from cometmq.spark.errors import OptionError
from cometmq.spark.records.body_columns.changes import ERROR_COLUMN, with_given
from cometmq.spark.records.body_columns.decoding import BodyDecoder, column_name
from cometmq.spark.records.body_columns.types import parse_columns

JSON: Final = "json"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
NONE: Final = "none"
_SCHEMA_BYTES_MAX: Final = 16 * 1024 * 1024
ADD: Final = "add"
KEEP: Final = "keep"
STOP: Final = "stop"
CHANGES: Final = (ADD, KEEP, STOP)
"""Ways to treat fields that the columns do not hold: add columns, keep the columns, or stop."""


@dataclass(frozen=True)
class JsonBodies:
    """Bodies that are JSON objects."""

    exact: bool = False
    """True if a column is a decimal, which needs the digits of numbers as they are written."""

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        from decimal import Decimal

        return msgspec.json.Decoder(float_hook=Decimal) if self.exact else msgspec.json.Decoder()

    def parse(self, body: bytes) -> Mapping[str, Any]:
        """Decode one body.

        :raises ValueError: the body is not a JSON object.
        """
        try:
            found = self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(f"not JSON: {error}") from error
        if not isinstance(found, dict):
            raise ValueError("the body is JSON, but not an object")
        return found


@dataclass(frozen=True)
class CodecBodies:
    """Bodies in a format with a schema: Avro records or Protobuf messages."""

    codec: AvroCodec | ProtobufCodec

    def parse(self, body: bytes) -> Mapping[str, Any]:
        """Decode one body.

        :raises ValueError: the body does not match the schema.
        """
        try:
            found: Mapping[str, Any] = self.codec.decode(body)
        except Exception as error:  # codecs raise anything on bytes that are not theirs
            raise ValueError(f"not {self.codec.name}: {str(error) or type(error).__name__}") from error
        return found

    def columns(self) -> tuple[BodyColumn, ...]:
        """Return the schema's columns.

        :raises OptionError: the schema is not that of a record, or a column has a name that no table can have.
        """
        from pyspark.sql.types import StructType

        kind = self.codec.spark_type
        if not isinstance(kind, StructType):
            raise OptionError(f"{self.codec.name} is not a record, so it has no columns")
        texts = ((field.name, _type_text(field.dataType)) for field in kind)
        return tuple(BodyColumn(name, text) for name, text in texts if text is not None)


def _type_text(kind: Any) -> str | None:
    """Return the text of a Spark type in a table. Keys of maps become text, and intervals microseconds.

    The result is None for messages without fields, which no file can hold: their columns come with the first field.
    """
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        texts = ((field.name, _type_text(field.dataType)) for field in kind)
        members = [f"`{name}`:{text}" for name, text in texts if text is not None]
        return f"struct<{','.join(members)}>" if members else None
    if isinstance(kind, types.ArrayType):
        element = _type_text(kind.elementType)
        return element and f"array<{element}>"
    if isinstance(kind, types.MapType):
        value = _type_text(kind.valueType)
        return value and f"map<string,{value}>"
    return "bigint" if isinstance(kind, types.DayTimeIntervalType) else str(kind.simpleString())


def bodies_of(name: str, schema: str | None, message: str | None, change: str) -> Bodies | None:
    """Return how bodies become columns, from the options of a job; None if they do not.

    :raises OptionError: an option is missing or invalid.
    """
    if message is not None and name != PROTOBUF:
        raise OptionError(f"a message type is only for {PROTOBUF}, not for {name}", option="message")
    if name == NONE:
        return None
    if name == JSON:
        given = () if schema is None else parse_columns(_text(schema))
        exact = any("decimal" in column.type for column in given)
        return Bodies(JsonBodies(exact), given, change)
    if schema is None or (name == PROTOBUF and message is None):
        raise OptionError(
            f"{name} bodies need a schema",
            next_step="give the .avsc file with --schema"
            if name == AVRO
            else "give the descriptor file with --schema and the message type with --message",
        )
    codec = AvroCodec(_read(schema).decode()) if name == AVRO else ProtobufCodec(str(message), _read(schema))
    found = CodecBodies(codec)
    return Bodies(found, found.columns(), change)


def _text(schema: str) -> str:
    """Return the columns that an option contains or names a file of.

    :raises OptionError: the file cannot be read.
    """
    is_text = any(character in schema for character in " <`")
    return schema if is_text else _read(schema).decode()


def _read(file: str) -> bytes:
    """Read a schema.

    :raises OptionError: the file cannot be read, or is too large.
    """
    try:
        with local_path(file).open("rb") as opened:
            content = opened.read(_SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise OptionError(
            f"cannot read the schema {file}: {error.strerror}",
            next_step="name a file, or write columns as in 'id bigint, paid boolean'",
        ) from error
    if len(content) > _SCHEMA_BYTES_MAX:
        raise OptionError(f"the schema {file} has more than {_SCHEMA_BYTES_MAX:,} bytes")
    return content


@dataclass(frozen=True)
class Bodies:
    """The way in which bodies become columns. It is pickled for the executors."""

    format: JsonBodies | CodecBodies
    given: Sequence[BodyColumn] = ()
    """Columns that the user has given."""
    change: str = ADD

    def columns(self, known: Sequence[BodyColumn]) -> list[BodyColumn]:
        """Return the columns with which tasks begin.

        :param known: the columns that the table has.
        :raises OptionError: a given type cannot hold the values of the table's column.
        """
        named = [BodyColumn(column_name(of.name), of.type) for of in self.given]
        return with_given(known or [ERROR_COLUMN], named)

    def decoder(self, columns: Sequence[BodyColumn]) -> BodyDecoder:
        """Return the decoder for a table's columns."""
        return BodyDecoder(self.format.parse, columns)
