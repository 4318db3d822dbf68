"""Kombu's messages as RocketMQ messages.

The body is a line of JSON (content type, headers and properties), and after it the bytes of Kombu's body. The property
``KOMBU`` marks such messages. Messages of other programs have no such line, and are not given to Celery.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kombu.utils.json import dumps, loads

from cometmq.message.message import Message, MessageExt
from cometmq.message.properties import TIMER_DELIVER_MS

MARK: Final = "KOMBU"
VERSION: Final = "1"
MAX_PRIORITY: Final = 9
LEVELS: Final = MAX_PRIORITY + 1
_FIELDS: Final = ("content-type", "content-encoding", "headers", "properties")
_MAX_LIMIT_S: Final = 1e9
_MAX_KEY_CHARS: Final = 200
_MAX_EARLY: Final = timedelta(seconds=2)
"""A broker delivers a task no earlier before its ETA (Apache's up to a second), unless this clock is wrong."""

Payload = dict[str, Any]
"""A message as Kombu's virtual transports handle it."""


class StrangerError(Exception):
    """A message was not sent by Kombu."""


def to_message(topic: str, payload: Payload, *, tag: str | None = None, hold: bool = True) -> Message:
    """Return the RocketMQ message for a Kombu message.

    :param hold: let the broker hold the message until its ETA.
    :raises ValueError: a header cannot be written as JSON.
    """
    head = dumps({name: payload.get(name) for name in _FIELDS}).encode()
    body = payload.get("body") or b""
    body = body.encode() if isinstance(body, str) else bytes(body)
    due = due_at(payload) if hold else None
    return Message(
        topic,
        head + b"\n" + body,
        tags=tag,
        keys=keys_of(payload),
        properties={MARK: VERSION},
        deliver_at=due if due is not None and due > datetime.now(UTC) else None,
        priority=priority_of(payload),
        ttl=_life(payload),
    )


def from_message(message: MessageExt) -> Payload:
    """Return the Kombu message in a RocketMQ message.

    :raises StrangerError: it was not sent by Kombu.
    """
    if message.properties.get(MARK) != VERSION:
        raise StrangerError("the message was not sent by Kombu")
    try:
        head, _, body = message.body.partition(b"\n")
        found = loads(head)
        payload = {name: found[name] for name in _FIELDS}
        headers = payload["headers"] = dict(payload["headers"] or {})
        properties = payload["properties"]
        info = properties["delivery_info"] = dict(properties.get("delivery_info") or {})
    except Exception as error:  # a body may be damaged, and Kombu's JSON makes objects of any registered type
        raise StrangerError(f"the message is not in the form of Kombu's: {error}") from error
    texts = (payload["content-type"], payload["content-encoding"], info.get("exchange"), info.get("routing_key"))
    if any(not isinstance(text, str | None) for text in texts) or properties.get("body_encoding") is not None:
        raise StrangerError("the first line of the message has values of other types than that of Kombu")
    if "task" in headers and any(isinstance(headers.get(name), dict | list) for name in ("task", "id")):
        raise StrangerError("the name or the ID of the task is no text")
    if "task" in headers and not _are_limits(headers.get("timelimit")):
        raise StrangerError("the time limits of the task are not two numbers")
    payload["body"] = body
    return payload


def _are_limits(limits: Any) -> bool:
    """Return whether a task's time limits are two numbers of seconds or ``None``; others end Celery's worker."""
    return not limits or (
        isinstance(limits, list | tuple)
        and len(limits) == 2
        and all(limit is None or (type(limit) in (int, float) and 0 <= limit < _MAX_LIMIT_S) for limit in limits)
    )


def due_at(payload: Payload) -> datetime | None:
    """Return the ETA of a task, or ``None`` if it has none that can be read; Celery handles such a task."""
    headers = payload.get("headers") or {}
    if "task" not in headers:
        return None  # another program's header of this name
    eta = headers.get("eta")
    try:
        found = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        if not isinstance(found, datetime):
            return None
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def is_due(payload: Payload, message: MessageExt | None = None) -> bool:
    """Return whether a task has an ETA that has passed, on this clock or on that of the broker which held it.

    :param message: the delivered message of the task.
    """
    due = due_at(payload)
    if due is None:
        return False
    left = due - datetime.now(UTC)
    is_held = message is not None and TIMER_DELIVER_MS in message.properties
    return left <= timedelta(0) or (is_held and left > _MAX_EARLY)


def priority_of(payload: Payload) -> int:
    """Return the priority of a message, from 0 to 9; 9 is the most urgent."""
    try:
        return min(max(int(payload["properties"]["priority"]), 0), MAX_PRIORITY)
    except (KeyError, TypeError, ValueError):
        return 0


def keys_of(payload: Payload) -> tuple[str, ...]:
    """Return the keys of a task: its ID, and a key that two publications share only if they are the same."""
    headers = payload.get("headers") or {}
    task_id = headers.get("id")
    if not isinstance(task_id, str) or not task_id or len(task_id) > _MAX_KEY_CHARS or task_id.split() != [task_id]:
        return ()
    body = payload.get("body") or b""
    digest = hashlib.sha256(body.encode() if isinstance(body, str) else bytes(body))
    info = payload["properties"].get("delivery_info") or {}
    for part in (headers.get("task"), headers.get("retries"), headers.get("eta"), info.get("routing_key")):
        digest.update(f"\0{part}".encode("utf-8", "surrogatepass"))
    return task_id, f"{task_id}:{digest.hexdigest()[:16]}"


def _life(payload: Payload) -> timedelta | None:
    """Return the life time of a message, which Kombu gives in milliseconds."""
    try:
        life = timedelta(milliseconds=int(payload["properties"]["expiration"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return max(life, timedelta(milliseconds=1))
