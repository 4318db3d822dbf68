"""Converts events to messages and back.

In *binary* mode, the body is the event's data, and each attribute is a property with the prefix ``CE_``;
``datacontenttype`` is the property ``CE_contenttype``. In *structured* mode, the body is the whole event, and
``CE_contenttype`` is ``application/cloudevents+json``. An event without data has a body of one zero byte, because
RocketMQ allows no empty bodies.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cloudevents.core.base import BaseCloudEvent, EventFactory
from cloudevents.core.bindings.common import decode_header_value, get_event_factory_for_version
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.formats.base import Format
from cloudevents.core.formats.json import JSONFormat

from cometmq.client import Message, MessageExt
from cometmq.message.compression import DecompressionError

PREFIX: Final = "CE_"
CONTENT_TYPE: Final = "CE_contenttype"
_VERSION: Final = "specversion"
_DATA_CONTENT_TYPE: Final = "datacontenttype"
_TIME: Final = "time"
_STRUCTURED: Final = "application/cloudevents"
_BATCH: Final = "application/cloudevents-batch"
_NO_DATA: Final = b"\0"
_MALFORMED: Final = (
    CloudEventValidationError,
    DecompressionError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors for events that are malformed: those of the SDK, and of damaged bodies."""


def to_binary(event: BaseCloudEvent, topic: str, event_format: Format | None = None) -> Message:
    """Return a message with an event in binary mode; the event's ID is the message's key.

    :param event_format: writes the data; by default, JSON.
    :raises ValueError: an attribute is empty, or the data is one zero byte, which means that there is none.
    """
    attributes = event.get_attributes()
    properties = {}
    for name, value in attributes.items():
        if value is not None:
            text = _text(value)
            if not text:
                raise ValueError(f"the attribute {name} is empty, which properties cannot be: use to_structured")
            properties[CONTENT_TYPE if name == _DATA_CONTENT_TYPE else PREFIX + name] = text
    data = (event_format or JSONFormat()).write_data(event.get_data(), attributes.get(_DATA_CONTENT_TYPE))
    if data == _NO_DATA:
        raise ValueError("the data is one zero byte, which means that there is none: use to_structured")
    return Message(topic, data or _NO_DATA, keys=_keys(event), properties=properties)


def to_structured(event: BaseCloudEvent, topic: str, event_format: Format | None = None) -> Message:
    """Return a message with an event in structured mode; the event's ID is the message's key.

    :param event_format: writes the event; by default, JSON.
    """
    writer = event_format or JSONFormat()
    return Message(topic, writer.write(event), keys=_keys(event), properties={CONTENT_TYPE: writer.get_content_type()})


def is_event(message: Message | MessageExt) -> bool:
    """Return whether a message contains an event, in binary or structured mode."""
    attributes = _attributes(message.properties)
    return _VERSION in attributes or str(attributes.get(_DATA_CONTENT_TYPE, "")).startswith(_STRUCTURED)


def from_message(
    message: Message | MessageExt, event_format: Format | None = None, event_factory: EventFactory | None = None
) -> BaseCloudEvent:
    """Return the event in a message, which is in binary or structured mode.

    :param event_format: reads the event, or its data; by default, JSON.
    :param event_factory: makes the event; by default, the class for the event's version.
    :raises ValueError: the message contains no event, or a malformed one.
    """
    attributes = _attributes(message.properties)
    content_type = str(attributes.get(_DATA_CONTENT_TYPE, ""))
    if content_type.startswith(_BATCH):
        raise ValueError("the message contains a batch of CloudEvents, and RocketMQ's binding has one in each message")
    if _VERSION not in attributes and not content_type.startswith(_STRUCTURED):
        raise ValueError("the message contains no CloudEvent: it has no property CE_specversion")
    try:
        return _read(message, attributes, event_format or JSONFormat(), event_factory)
    except _MALFORMED as error:
        raise ValueError(f"the message contains a malformed CloudEvent: {error}") from error


def _read(
    message: Message | MessageExt, attributes: dict[str, Any], reader: Format, event_factory: EventFactory | None
) -> BaseCloudEvent:
    content_type = attributes.get(_DATA_CONTENT_TYPE)
    if content_type is not None and content_type.startswith(_STRUCTURED):
        return reader.read(event_factory, message.body)
    if _TIME in attributes:
        attributes[_TIME] = decode_header_value(_TIME, attributes[_TIME])
    make = event_factory or get_event_factory_for_version(attributes[_VERSION])
    data = None if message.body in (b"", _NO_DATA) else reader.read_data(message.body, content_type)
    return make(attributes, data)


def _attributes(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes among the properties; other programs may write the prefix in small letters."""
    found = {}
    for name, value in properties.items():
        if name[: len(PREFIX)].upper() == PREFIX:
            attribute = name[len(PREFIX) :].lower()
            found[_DATA_CONTENT_TYPE if attribute == "contenttype" else attribute] = value
    return found


def _keys(event: BaseCloudEvent) -> list[str]:
    """Return the event's ID as a key, unless it contains white space, by which brokers separate keys."""
    event_id = event.get_id()
    return [event_id] if event_id and not any(character.isspace() for character in event_id) else []


def _text(value: object) -> str:
    if isinstance(value, datetime):
        text = value.isoformat()
        return f"{text[:-6]}Z" if text.endswith("+00:00") else text
    return str(value).lower() if isinstance(value, bool) else str(value)
