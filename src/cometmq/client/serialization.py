"""Conversion between application values and message bodies: JSON, pydantic and msgspec models, and bytes.

A serializer turns a value into bytes, and a deserializer turns bytes into a value; both are functions that may raise
any ``Exception``. A consumer's messages decode their body when ``value`` is first read.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from cometmq.client.errors import DeserializationError, SerializationError
from cometmq.message.message import Message, MessageExt

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]

_UNREAD: Final = object()


def to_json(value: Any) -> bytes:
    """Return ``value`` as JSON; return bytes unchanged.

    Accepts what msgspec encodes (``dict``, ``list``, text, numbers, dates, UUIDs, data classes, msgspec's structs) and
    pydantic models, including nested ones.

    :raises TypeError: the value contains another type.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    dump = getattr(value, "model_dump_json", None)
    if dump is not None:
        return str(dump()).encode()
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")
    return dump(mode="json")


def from_json(kind: Any = Any) -> Deserializer:
    """Return a deserializer from JSON to ``kind``: a type that msgspec supports, a pydantic model or a TypeAdapter.

    :raises TypeError: ``kind`` is a class that neither of them reads.
    """
    validate = getattr(kind, "model_validate_json", None) or getattr(kind, "validate_json", None)
    if validate is not None:
        return typing.cast(Deserializer, validate)
    if isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
        raise TypeError(
            f"JSON cannot be decoded as {kind!r}: use a dataclass, a pydantic or msgspec model, or a function of bytes"
        )
    return msgspec.json.Decoder(kind).decode


def deserializer_of(spec: Any) -> Deserializer:
    """Return the deserializer for ``spec``: ``bytes``, a type for :func:`from_json`, or a function of bytes.

    :raises TypeError: ``spec`` is not one of these.
    """
    if spec is bytes:
        return _unchanged
    is_type = isinstance(spec, type) or typing.get_origin(spec) is not None or spec is Any
    if is_type or hasattr(spec, "validate_json"):
        return from_json(spec)
    if callable(spec):
        return typing.cast(Deserializer, spec)
    raise TypeError(f"a deserializer must be a type or a function of bytes, not {spec!r}")


def _unchanged(body: bytes) -> bytes:
    return body


def with_body(message: Message, serializer: Serializer) -> Message:
    """Return the message with its value serialized as the body.

    :raises SerializationError: the serializer failed, or did not return bytes.
    """
    value = message.value
    if value is msgspec.UNSET:
        return message
    try:
        body = serializer(value)
    except Exception as error:
        raise SerializationError(message.topic, message.keys, value, f"{type(error).__name__}: {error}") from error
    if not isinstance(body, bytes):
        raise SerializationError(message.topic, message.keys, value, f"it returned {type(body).__name__}, not bytes")
    return msgspec.structs.replace(message, body=body, value=msgspec.UNSET)


class DecodedMessage(MessageExt, eq=False, gc=True, kw_only=True):
    """A message received by a consumer with a deserializer."""

    deserializer: Deserializer | None
    _value: Any = _UNREAD

    @property
    def value(self) -> Any:
        """Return the body as decoded by the deserializer.

        :raises DeserializationError: the deserializer failed.
        """
        if self.deserializer is None:
            return super().value
        if self._value is _UNREAD:
            try:
                self._value = self.deserializer(self.body)
            except DeserializationError:
                raise
            except Exception as error:
                raise DeserializationError(place_of(self), f"{type(error).__name__}: {error}") from error
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message with its value, because deserializers are often functions that cannot be pickled."""
        return _unpickle_message, (type(self), self._record(), self.broker_name, self._outcome())

    def _outcome(self) -> Deserializer | None:
        if self.deserializer is None:
            return None
        try:
            return _Outcome(self.value)
        except DeserializationError as error:
            return _Outcome(error=error)


@dataclass(frozen=True)
class _Outcome:
    """The deserializer of an unpickled message; it returns the value decoded by the consumer, or raises its error."""

    value: Any = None
    error: DeserializationError | None = None

    def __call__(self, _body: bytes) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def _unpickle_message(kind: type[DecodedMessage], record: bytes, broker_name: str, outcome: Deserializer | None) -> Any:
    return kind(record, 0, broker_name, deserializer=outcome)


def place_of(message: MessageExt) -> str:
    """Return a message's topic, queue, offset, keys, id and attempt as text, for logs and errors."""
    retried = message.topic != message.stored_topic
    stored = f" (stored as {message.stored_topic})" if retried else ""
    return (
        f"message {message.msg_id} of topic {message.topic}{stored}, "
        f"queue {message.broker_name}/{message.queue_id}, offset {message.queue_offset}, "
        f"key {' '.join(message.keys) or 'none'}, attempt {message.reconsume_times + 1}"
    )


def places_of(messages: Sequence[MessageExt]) -> str:
    """Return :func:`place_of` for the first message, and the number of further messages."""
    others = len(messages) - 1
    return place_of(messages[0]) + (f" and {others} more" if others else "")
