"""Messages as JSON lines. ``consume -o jsonl`` writes them, and ``produce --json`` reads them back without loss.

A line from ``consume`` also contains the message's position in the store. ``produce`` accepts and ignores these fields,
and the properties that brokers and clients set in a stored message, such as CLUSTER. In a line that was not read from a
broker, such a property is an error. Unknown fields are always errors.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from cometmq.cli.moments import EPOCH
from cometmq.message.message import Message
from cometmq.message.properties import (
    DELAY,
    EXPIRES_MS,
    KEY_SEPARATOR,
    KEYS,
    NO_PRIORITY,
    PRIORITY,
    PRIORITY_MAX,
    PRODUCER_SEQUENCE,
    RESERVED_NAMES,
    SHARDING_KEY,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_NAMES,
    TIMER_OUT_MS,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    read_priority,
)
from cometmq.options import OptionError, nearest
from cometmq.options.forms import DURATION, TIME

FIELDS: Final = (
    "body",
    "body_base64",
    "tags",
    "keys",
    "properties",
    "sharding_key",
    "flag",
    "delay",
    "delay_level",
    "deliver_at",
    "priority",
)
"""Fields that describe a message to send."""
STORED_FIELDS: Final = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "msg_id",
    "offset_msg_id",
    "born",
    "born_timestamp",
    "born_host",
    "stored",
    "store_timestamp",
    "store_host",
    "expires",
    "reconsume_times",
    "sys_flag",
    "prepared_transaction_offset",
)
"""Fields that describe where and when a message was stored."""
_OF_BROKERS: Final = (
    RESERVED_NAMES
    | TIMER_NAMES
    | {
        EXPIRES_MS,
        PRODUCER_SEQUENCE,
        TIMER_DEL_UNIQKEY,
        TIMER_OUT_MS,
        TRAN_PREPARED_QUEUE_OFFSET,
        TRANSACTION_CHECK_TIMES,
    }
)


class LineError(ValueError):
    """The line is not a valid message."""


@dataclass(frozen=True)
class Delays:
    """The delay of a message. At most one field is set."""

    delay_level: int = 0
    delay: timedelta | None = None
    deliver_at: datetime | None = None


NO_DELAY: Final = Delays()


def parse_line(line: bytes, topic: str, *, tag: str | None, keys: tuple[str, ...], delays: Delays) -> Message:
    """Return the message in a line. ``tag``, ``keys`` and ``delays`` are default values for lines that do not set them.

    :raises LineError: the line is not valid JSON, a field is unknown, or a value has the wrong form.
    """
    given = _object(line)
    is_stored = "offset_msg_id" in given
    properties = _texts(given.get("properties") or {}, "properties")
    stored = {name: value for name, value in properties.items() if name in _OF_BROKERS}
    if not is_stored and (reserved := stored.keys() & RESERVED_NAMES):
        raise LineError(f"properties {', '.join(sorted(reserved))} are reserved for RocketMQ")
    users = {name: value for name, value in properties.items() if name not in stored}
    sharding_key = given.get("sharding_key")
    if sharding_key is not None:
        users[SHARDING_KEY] = str(sharding_key)
    own = _delays(given, stored)
    when = delays if delays != NO_DELAY else own
    return Message(
        topic,
        _body(given),
        tags=given.get("tags") or stored.get(TAGS) or tag,
        keys=_keys(given.get("keys") or stored.get(KEYS, "").split(KEY_SEPARATOR)) or keys,
        properties=users,
        flag=_integer(given.get("flag") or 0, "flag"),
        delay_level=when.delay_level,
        delay=when.delay,
        deliver_at=when.deliver_at,
        priority=_priority(given, stored),
    )


def _priority(given: Mapping[str, Any], stored: Mapping[str, str]) -> int | None:
    """Return the priority in a line: the line's own field or the property of a stored message."""
    value = given.get("priority")
    if value is not None:
        priority = read_priority(str(value))
        if priority == NO_PRIORITY or isinstance(value, (bool, float)):
            raise LineError(f"priority must be a whole number from 0 to {PRIORITY_MAX}")
        return priority
    priority = read_priority(stored.get(PRIORITY))
    return None if priority == NO_PRIORITY else priority


def _object(line: bytes) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except ValueError:
        raise LineError("it is not valid JSON") from None
    except RecursionError:
        raise LineError("it is nested too deeply") from None
    if not isinstance(given, dict):
        raise LineError("it is not a JSON object")
    for name in given:
        if name not in FIELDS and name not in STORED_FIELDS:
            near = nearest(name, FIELDS)
            raise LineError(f"unknown field {name}" + (f"; did you mean {near}?" if near else ""))
    return given


def _body(given: Mapping[str, Any]) -> bytes:
    if ("body" in given) == ("body_base64" in given):
        raise LineError("it needs either body or body_base64")
    if "body_base64" in given:
        try:
            return base64.b64decode(given["body_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise LineError("body_base64 is not valid base64") from None
    body = given["body"]
    try:
        return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()
    except UnicodeEncodeError as error:
        raise LineError(f"the body contains {error.object[error.start]!a}, which is only half of a character") from None


def _keys(given: Any) -> tuple[str, ...]:
    chosen = (given,) if isinstance(given, str) else tuple(map(str, given)) if isinstance(given, list) else None
    if chosen is None:
        raise LineError("keys must be a list of strings")
    return tuple(key for key in chosen if key)


def _texts(given: Any, field: str) -> dict[str, str]:
    if not isinstance(given, dict):
        raise LineError(f"{field} must be an object that contains only strings")
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


def _integer(value: Any, field: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise LineError(f"{field} must be an integer") from None


def _delays(given: Mapping[str, Any], stored: Mapping[str, str]) -> Delays:
    """Return the delay in a line. It is read from the line's own fields or from the properties of a stored message."""
    named = {name: given[name] for name in ("delay", "delay_level", "deliver_at") if given.get(name)}
    if len(named) > 1:
        raise LineError(f"it has more than one of {', '.join(named)}")
    try:
        if "delay" in named:
            return Delays(delay=timedelta(milliseconds=DURATION.parse(str(named["delay"]))))
        if "deliver_at" in named:
            return Delays(deliver_at=_moment(TIME.parse(str(named["deliver_at"]))))
    except (OptionError, OverflowError) as error:
        raise LineError(f"{next(iter(named))} {error}") from None
    if "delay_level" in named:
        return Delays(delay_level=_integer(named["delay_level"], "delay_level"))
    if DELAY in stored:
        return Delays(delay_level=_integer(stored[DELAY], DELAY))
    if TIMER_DELAY_MS in stored:
        return Delays(delay=timedelta(milliseconds=_integer(stored[TIMER_DELAY_MS], TIMER_DELAY_MS)))
    if TIMER_DELAY_SEC in stored:
        return Delays(delay=timedelta(seconds=_integer(stored[TIMER_DELAY_SEC], TIMER_DELAY_SEC)))
    if TIMER_DELIVER_MS in stored:
        return Delays(deliver_at=_moment(_integer(stored[TIMER_DELIVER_MS], TIMER_DELIVER_MS)))
    return NO_DELAY


def _moment(timestamp_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=timestamp_ms)
