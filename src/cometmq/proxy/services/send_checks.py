"""Validates sent messages in Apache's order and with its error messages (``GrpcValidator``,
``SendMessageActivity``).
"""

from __future__ import annotations

from cometmq.java_values import is_blank
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.converter import RESERVED, ms_of
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.lite import check_name
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code


def _has_control(text: str) -> bool:
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in text)


def check_message(message: v2.Message, config: EndpointConfig, now_ms: int) -> None:
    """Validate a message.

    :raises ProxyError: a part is missing, invalid or too large.
    """
    system = message.system_properties
    size = len(message.body)
    if not size:
        raise ProxyError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if size > config.body_max_bytes:
        raise ProxyError(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {config.body_max_bytes}")
    if is_blank(system.message_id):
        raise ProxyError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if _has_control(system.message_id) or " " in system.message_id:
        raise ProxyError(Code.ILLEGAL_MESSAGE_ID, "message id cannot contain blanks or control characters")
    if system.HasField("tag"):
        _check_tag(system.tag)
    _check_properties(message, config)
    for key in system.keys:
        if is_blank(key) or _has_control(key):
            raise ProxyError(Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace or control")
    if system.HasField("message_group"):
        _check_message_group(system.message_group, config)
    if system.HasField("delivery_timestamp"):
        _check_delivery(ms_of(system.delivery_timestamp), config, now_ms)
    if system.lite_topic:
        check_name(system.lite_topic)
    if system.HasField("priority") and system.priority < 0:
        raise ProxyError(Code.BAD_REQUEST, "The priority must be greater than or equal to 0")


def _check_tag(tag: str) -> None:
    if is_blank(tag):
        raise ProxyError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise ProxyError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if _has_control(tag):
        raise ProxyError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")


def _check_properties(message: v2.Message, config: EndpointConfig) -> None:
    system = message.system_properties
    count = len(message.user_properties) + len(system.keys) + system.HasField("tag")
    size = sum(len(key.encode()) for key in system.keys) + len(system.tag.encode())
    for name, value in message.user_properties.items():
        if name in RESERVED:
            raise ProxyError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if _has_control(name):
            raise ProxyError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the key of property cannot contain control: {name!r}")
        if _has_control(value):
            raise ProxyError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the value of property cannot contain control")
        size += len(name.encode()) + len(value.encode())
    if count > config.properties_max:
        raise ProxyError(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {config.properties_max}")
    if size > config.properties_max_bytes:
        raise ProxyError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {config.properties_max_bytes}",
        )


def _check_message_group(group: str, config: EndpointConfig) -> None:
    if is_blank(group):
        raise ProxyError(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace")
    if len(group.encode()) >= config.message_group_max_bytes:
        raise ProxyError(
            Code.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {config.message_group_max_bytes}"
        )
    if _has_control(group):
        raise ProxyError(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character")


def _check_delivery(due_ms: int, config: EndpointConfig, now_ms: int) -> None:
    if due_ms - now_ms > config.delay_max_ms:
        raise ProxyError(
            Code.ILLEGAL_DELIVERY_TIME, f"the max delay time of message is too large, max is {config.delay_max_ms}"
        )
    if due_ms < 0:
        raise ProxyError(Code.ILLEGAL_DELIVERY_TIME, "the delivery time is before 1970")
