"""Protobuf bodies. Each body is one message, described by the output of ``protoc --descriptor_set_out
--include_imports``.

Fields with presence (messages, ``optional``, ``oneof``, proto2) are null if they are absent; other fields have their
default value. Unsigned numbers are read as the next larger type. Recursive types are rejected, since Spark has no type
for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.spark.bodies.codec import FAILFAST, PERMISSIVE, decoded, encoded
from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Descriptor = Path | bytes
"""A descriptor: the path of the file that ``protoc`` writes, or its content (a ``FileDescriptorSet``)."""

_UNSIGNED_64: Final = ("TYPE_UINT64", "TYPE_FIXED64")
_PLAIN: Final = {
    "TYPE_BOOL": "BooleanType",
    "TYPE_DOUBLE": "DoubleType",
    "TYPE_FLOAT": "FloatType",
    "TYPE_STRING": "StringType",
    "TYPE_BYTES": "BinaryType",
    "TYPE_ENUM": "StringType",
    **dict.fromkeys(("TYPE_INT32", "TYPE_SINT32", "TYPE_SFIXED32"), "IntegerType"),
    **dict.fromkeys(("TYPE_INT64", "TYPE_SINT64", "TYPE_SFIXED64", "TYPE_UINT32", "TYPE_FIXED32"), "LongType"),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"
_WELL_KNOWN: Final = {_TIMESTAMP: "TimestampType", _DURATION: "DayTimeIntervalType"}


def from_protobuf(
    body: Column | str,
    message: str,
    descriptor: Descriptor,
    *,
    mode: str = PERMISSIVE,
    with_reason: bool = False,
) -> Column:
    """Decode a column of bodies.

    :param message: full name of the message type, for example ``shop.Order``.
    :param descriptor: descriptor that contains the type.
    :param mode: PERMISSIVE: a body that does not match the type becomes null; FAILFAST: the body fails the query.
    :param with_reason: return ``struct<value, reason>`` with the reason why the value is null.
    :raises OptionError: the descriptor, the type or the mode is invalid.
    """
    codec = ProtobufCodec(message, _bytes(descriptor))
    return decoded(codec, body, called="from_protobuf", mode=mode, with_reason=with_reason)


def to_protobuf(value: Column | str, message: str, descriptor: Descriptor, *, mode: str = FAILFAST) -> Column:
    """Encode a column of structs. A field that is null or missing remains unset.

    :param mode: FAILFAST: a value that does not match the type fails the query; PERMISSIVE: the value becomes null.
    :raises OptionError: the descriptor, the type or the mode is invalid.
    """
    return encoded(ProtobufCodec(message, _bytes(descriptor)), value, called="to_protobuf", mode=mode)


@dataclass(frozen=True)
class ProtobufCodec:
    """A codec for one message type in a serialized ``FileDescriptorSet``."""

    message: str
    descriptor: bytes

    def __post_init__(self) -> None:
        self.spark_type  # noqa: B018 (so that a bad type is an error when the query is written)

    @property
    def name(self) -> str:
        """Return "Protobuf" followed by the type's name."""
        return f"Protobuf {self.message}"

    @property
    def spark_type(self) -> DataType:
        """Return the Spark type of the decoded values."""
        return _message_type(_message_class(self.message, self.descriptor).DESCRIPTOR, ())

    def decode(self, body: bytes) -> Any:
        """Decode one message."""
        return protobuf_value(body, self.message, self.descriptor)

    def encode(self, value: Any) -> bytes:
        """Encode one message."""
        message = _message_class(self.message, self.descriptor)()
        _fill(message, value)
        encoded: bytes = message.SerializeToString()
        return encoded


def protobuf_value(body: bytes, message: str, descriptor: bytes) -> Any:
    """Decode one message. Spark is not needed.

    :param message: name of the message's type, for example ``shop.Order``.
    :param descriptor: serialized ``FileDescriptorSet`` that contains the type.
    :raises OptionError: the descriptor or the type is invalid.
    :raises Exception: the body does not match the type.
    """
    return _reader(message, descriptor)(_message_class(message, descriptor).FromString(body))


def _bytes(descriptor: Descriptor) -> bytes:
    if isinstance(descriptor, bytes):
        return descriptor
    try:
        return descriptor.read_bytes()
    except OSError as error:
        raise OptionError(f"cannot read the descriptor: {error}") from error


@lru_cache(maxsize=64)
def _message_class(name: str, descriptor: bytes) -> Any:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError as error:
        raise OptionError(
            "protobuf is not installed", next_step="pip install protobuf where Spark's executors run"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor).file:
            pool.Add(file)
        found = pool.FindMessageTypeByName(name)
    except KeyError as error:
        raise OptionError(
            f"the descriptor has no message type {name!r}", next_step="use its full name, as in package.Message"
        ) from error
    except (message.DecodeError, TypeError) as error:
        raise OptionError(
            f"invalid descriptor: {error}", next_step="create one: protoc --include_imports --descriptor_set_out=FILE"
        ) from error
    return message_factory.GetMessageClass(found)


def _message_type(kind: Any, inside: tuple[str, ...]) -> DataType:
    """Return the Spark type of a message type. ``inside`` contains the enclosing message types."""
    from pyspark.sql import types

    if kind.full_name in _WELL_KNOWN:
        return getattr(types, _WELL_KNOWN[kind.full_name])()  # type: ignore[no-any-return]
    if kind.full_name in inside:
        raise OptionError(f"Protobuf type {kind.full_name} contains itself; Spark has no recursive types")
    below = (*inside, kind.full_name)
    return types.StructType([types.StructField(field.name, _field_type(field, below)) for field in kind.fields])


def _field_type(field: Any, inside: tuple[str, ...]) -> DataType:
    from pyspark.sql import types

    if _is_map(field):
        key, value = (_field_type(field.message_type.fields_by_name[name], inside) for name in ("key", "value"))
        return types.MapType(key, value)
    if field.message_type is not None:
        kind = _message_type(field.message_type, inside)
    elif _type_name(field) in _UNSIGNED_64:
        kind = types.DecimalType(20, 0)
    else:
        kind = getattr(types, _PLAIN[_type_name(field)])()
    return types.ArrayType(kind) if field.is_repeated else kind


def _type_name(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    name: str = FieldDescriptorProto.Type.Name(field.type)
    return name


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# Reading --------------------------------------------------------------------------------------------------------------

Read = Callable[[Any], Any]


@lru_cache(maxsize=64)
def _reader(name: str, descriptor: bytes) -> Read:
    """Return a function that converts a message to an Arrow value. Work that depends only on the type is done once, in
    this call.
    """
    return _message_reader(_message_class(name, descriptor).DESCRIPTOR)


def _message_reader(kind: Any) -> Read:
    if kind.full_name == _TIMESTAMP:
        return lambda message: message.ToDatetime(tzinfo=UTC)
    if kind.full_name == _DURATION:
        return lambda message: timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    fields = [(field.name, field.has_presence, _field_reader(field)) for field in kind.fields]

    def read(message: Any) -> dict[str, Any]:
        return {
            name: None if presence and not message.HasField(name) else one(getattr(message, name))
            for name, presence, one in fields
        }

    return read


def _field_reader(field: Any) -> Read:
    if _is_map(field):
        key, value = (_value_reader(field.message_type.fields_by_name[name]) for name in ("key", "value"))
        return lambda found: [(key(name), value(found[name])) for name in found]
    one = _value_reader(field)
    return (lambda found: [one(item) for item in found]) if field.is_repeated else one


def _value_reader(field: Any) -> Read:
    if field.message_type is not None:
        return _message_reader(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    return _itself


def _itself(value: Any) -> Any:
    return value


# Writing --------------------------------------------------------------------------------------------------------------


def _fill(message: Any, value: Any) -> None:
    """Set a message's fields from an Arrow value.

    :raises ValueError: a field or enum name is unknown.
    """
    kind = message.DESCRIPTOR
    if kind.full_name == _TIMESTAMP:
        message.FromDatetime(value)
    elif kind.full_name == _DURATION:
        message.FromTimedelta(value)
    else:
        for name, item in value.items():
            if item is not None:
                field = kind.fields_by_name.get(name)
                if field is None:
                    raise ValueError(f"{kind.full_name} has no field {name}")
                _set(message, field, item)


def _set(message: Any, field: Any, item: Any) -> None:
    if _is_map(field):
        of_value = field.message_type.fields_by_name["value"]
        table = getattr(message, field.name)
        for name, value in item.items():
            if of_value.message_type is not None:
                _fill(table[name], value)
            else:
                table[name] = _plain(of_value, value)
    elif field.is_repeated:
        items = getattr(message, field.name)
        for value in item:
            if field.message_type is not None:
                _fill(items.add(), value)
            else:
                items.append(_plain(field, value))
    elif field.message_type is not None:
        part = getattr(message, field.name)
        part.SetInParent()
        _fill(part, item)
    else:
        setattr(message, field.name, _plain(field, item))


def _plain(field: Any, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        found = field.enum_type.values_by_name.get(value)
        if found is None:
            raise ValueError(f"{field.enum_type.full_name} has no value {value}")
        return found.number
    return int(value) if _type_name(field) in _UNSIGNED_64 else value
