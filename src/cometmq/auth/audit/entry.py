"""Audit log entries; each is one line of ASCII JSON and contains no secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import msgspec

from cometmq.auth.limits import MAX_AUDIT_ENTRY_CHARS, MAX_AUDIT_RESOURCES, MAX_AUDIT_TEXT_CHARS
from cometmq.limits import MAX_CONFIG_UPDATE_BYTES
from cometmq.properties_file import parse_properties
from cometmq.remoting.bodies import BodyError
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.permissions import Need, Permission
from cometmq.remoting.processors import Request

Entry = dict[str, Any]

_SECRETS: Final = ("secret", "password", "token", "signature", "credential")
"""Words that mark header fields as secret; such fields are never written."""
_HIDDEN: Final = frozenset({"value", "properties", "i"})
"""Fields that may contain users' secrets: KV configuration values and message properties."""
_SHOWN_BODIES: Final = frozenset(
    {
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    }
)
"""Requests whose body describes a change and contains no secret."""
_CONFIGURATIONS: Final = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})
"""Requests whose body consists of properties; only the property names are written."""


def time_text(now_ms: int) -> str:
    """Format a time for an entry, in UTC with milliseconds."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{now_ms % 1000:03}Z"


def short(text: str) -> str:
    """Truncate a text to the maximum length."""
    return text if len(text) <= MAX_AUDIT_TEXT_CHARS else text[: MAX_AUDIT_TEXT_CHARS - 1] + "…"


def encoded(entry: Entry) -> bytes:
    """Encode an entry as one line of ASCII.

    It is ASCII, so that nothing in a name or reason can end the line or control a terminal that shows the file.
    """
    line = json.dumps(entry, ensure_ascii=True, separators=(",", ":")).replace("\x7f", "\\u007f")
    if len(line) > MAX_AUDIT_ENTRY_CHARS:
        kept = {key: entry[key] for key in entry.keys() - {"fields", "body", "resources", "keys"}}
        line = json.dumps({**kept, "cut": True}, ensure_ascii=True, separators=(",", ":")).replace("\x7f", "\\u007f")
    return line.encode("ascii") + b"\n"


def resources_of(permission: Permission | None, header: Any, body: bytes) -> list[str]:
    """List a request's resources with the required actions, for example ``Topic:Orders Delete``."""
    found: list[str] = []
    if permission is not None:
        # The handler reports errors in the body.
        with suppress(BodyError):
            found.extend(map(text_of, islice(permission.needs(header, body), MAX_AUDIT_RESOURCES)))
    return found


def text_of(need: Need) -> str:
    """Format a resource and its actions for an audit entry."""
    return short(f"{need.resource} {'|'.join(action.value for action in need.actions)}")


def details_of(request: Request[Any], body: bytes) -> Entry:
    """Return an administration request's fields and body, leaving out secrets."""
    fields = {name: _shown(value) for name, value in _fields(request.header) if not _is_secret(name)}
    found: Entry = {"fields": fields} if fields else {}
    if request.code in _SHOWN_BODIES:
        found["body"] = short(body.decode(errors="replace"))
    elif request.code in _CONFIGURATIONS and len(body) <= MAX_CONFIG_UPDATE_BYTES:
        keys = dict.fromkeys(key for _, key, _ in parse_properties(body.decode(errors="replace")))
        found["keys"] = [short(key) for key in list(keys)[:MAX_AUDIT_RESOURCES]]
    return found


def _fields(header: Any) -> Iterable[tuple[str, Any]]:
    fields: dict[str, Any] = msgspec.to_builtins(header)
    return ((name, value) for name, value in fields.items() if value is not None)


def _is_secret(name: str) -> bool:
    lower = name.lower()
    return name in _HIDDEN or any(part in lower for part in _SECRETS)


def _shown(value: Any) -> Any:
    return value if isinstance(value, (bool, int)) else short(str(value))
