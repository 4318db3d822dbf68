"""ACL 1.0 accounts and their permissions (``PlainPermissionManager.checkPerm``, ``Permission``).

An account has permissions for named topics and groups, and default permissions for all other ones: DENY, PUB, SUB or
both. As in Apache's broker, topics and groups share a table, in which a group has the name of its retry topic. Requests
that change or list something, or concern the cluster, need ``admin: true``. Apache checks the request codes 10, 11, 12,
15, 34, 35, 36, 38 and 310 in this way, and requires an admin for 17, 25, 200, 207 and 215; it allows all other requests
for every account. CometMQ requires the permissions that each handler declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.auth.addresses import AddressMatch, never, parse_pattern
from cometmq.auth.model import AuthError, DeniedError
from cometmq.java_values import TRIMMED
from cometmq.message.names import RETRY_PREFIX, TRACE_TOPIC, retry_topic
from cometmq.remoting.permissions import EVERY, Action, Kind, Need
from cometmq.remoting.signing import Signer

DENY: Final = 1
PUB: Final = 4
SUB: Final = 8
_PERMISSIONS: Final = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}
_BITS: Final = {Action.PUB: PUB, Action.SUB: SUB}
MIN_KEY_CHARS: Final = 7
MAX_KEY_CHARS: Final = 1_024

NEED_ADMIN: Final = "this request requires an account with admin: true"
NOT_ALLOWED: Final = "check the account's topicPerms and groupPerms on the server"


@dataclass(frozen=True)
class PlainAccount:
    """An ACL 1.0 account (``PlainAccessResource``)."""

    name: str
    signer: Signer | None = field(repr=False)
    admin: bool = False
    default_topic: int = DENY
    default_group: int = DENY
    permissions: Mapping[str, int] | None = None
    """Permissions by topic, or by retry topic for groups; ``None`` if the account lists no permissions."""
    white: AddressMatch = never

    @property
    def is_super(self) -> bool:
        """True if the account is an admin that lists no permissions, and therefore has all permissions."""
        return self.admin and self.permissions is None

    def refusal(self, need: Need, code: int) -> DeniedError | None:
        """Return, in Apache's words, why the account lacks a permission, or ``None`` if it has it."""
        listed = self.permissions or {}
        if need.topic in listed and not need.topic.startswith(RETRY_PREFIX) and _wanted(need.actions):
            return None if _allows(listed[need.topic], _wanted(need.actions)) else _denied(need)
        wanted = _wanted(need.owner_actions)
        if not wanted or need.kind is Kind.CLUSTER or need.name == EVERY:
            return None if self.admin else self._needs_admin(code)
        if self.is_super or (need.name == TRACE_TOPIC and need.actions == (Action.PUB,)):
            return None
        is_group = need.kind is Kind.GROUP
        resource = retry_topic(need.name) if is_group else need.name
        owned = listed.get(resource, self.default_group if is_group else self.default_topic)
        return None if _allows(owned, wanted) else _denied(need)

    def _needs_admin(self, code: int) -> DeniedError:
        words = f"Need admin permission for request code={code}, but accessKey={self.name} is not"
        return DeniedError(words, next_step=NEED_ADMIN)


TRUSTED: Final = PlainAccount("", None, admin=True)
"""The account used for clients at whitelisted addresses."""


def _wanted(actions: Iterable[Action]) -> int:
    """Return a mask of permissions, of which one is sufficient, or 0 if only an admin may do this."""
    wanted = 0
    for action in actions:
        wanted |= _BITS.get(action, 0)
    return wanted or (PUB | SUB if Action.GET in actions else 0)


def _allows(owned: int, wanted: int) -> bool:
    return not owned & DENY and bool(owned & wanted)


def _denied(need: Need) -> DeniedError:
    kind = "group" if need.kind is Kind.GROUP else "topic"
    name = need.name if need.kind is not Kind.CLUSTER else need.topic
    return DeniedError(f"No default permission for {kind}:{name}", next_step=NOT_ALLOWED)


# --- files ----------------------------------------------------------------------------------------
def read_account(entry: object) -> PlainAccount:
    """Parse one entry of ``accounts`` in a file.

    :raises AuthError: the account is invalid; the message does not contain its secret.
    """
    if not isinstance(entry, dict):
        raise AuthError("an account must be a mapping of keys to values")
    name = _text(entry, "accessKey") or ""
    secret = _text(entry, "secretKey") or ""
    for key, value in (("accessKey", name), ("secretKey", secret)):
        if not MIN_KEY_CHARS <= len(value) <= MAX_KEY_CHARS:
            shown = f" of {name[:100]}" if name else ""
            raise AuthError(
                f"the {key}{shown} must have {MIN_KEY_CHARS} to {MAX_KEY_CHARS:,} characters, not {len(value):,}"
            )
    try:
        return PlainAccount(
            name,
            Signer(secret),
            admin=_flag(entry, "admin"),
            default_topic=parse_permission(_text(entry, "defaultTopicPerm")),
            default_group=parse_permission(_text(entry, "defaultGroupPerm")),
            permissions=_listed(_texts(entry, "groupPerms"), _texts(entry, "topicPerms")),
            white=parse_pattern(_text(entry, "whiteRemoteAddress")),
        )
    except AuthError as error:
        raise AuthError(f"account {name}: {error.message}", next_step=error.next_step) from None


def parse_permission(text: str | None) -> int:
    """Parse a permission, for example ``PUB|SUB``; any invalid text means DENY, as in Apache's broker."""
    return _PERMISSIONS.get((text or "").strip(TRIMMED), DENY)


def _listed(groups: Iterable[str], topics: Iterable[str]) -> dict[str, int] | None:
    listed: dict[str, int] = {}
    for is_topic, entries in ((False, groups), (True, topics)):
        for entry in entries:
            parts = [part for part in entry.split("=") if part]
            if len(parts) != 2:
                raise AuthError(f"{entry[:200]!r} must have the form NAME=PERMISSION")
            name = parts[0].strip(TRIMMED)
            listed[name if is_topic else RETRY_PREFIX + name] = parse_permission(parts[1])
    return listed or None


def _text(entry: Mapping[str, Any], key: str) -> str | None:
    value = entry.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise AuthError(f"{key} must be text; put it in quotes")


def _texts(entry: Mapping[str, Any], key: str) -> list[str]:
    values = entry.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise AuthError(f"{key} must be a list of NAME=PERMISSION entries")
    return values


def _flag(entry: Mapping[str, Any], key: str) -> bool:
    value = entry.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise AuthError(f"{key} must be true or false")
