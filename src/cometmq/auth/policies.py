"""ACL 2.0 users and policies (``User``, ``Acl``, ``Policy``, ``AclAuthorizationHandler``).

A super user may do everything. For any other user, an entry matches if its resource, one of its actions and its source
addresses match. Among matching entries, custom policies win over default ones. Then a literal name wins over a prefix,
a longer prefix over a shorter one, a prefix over all resources of a kind, and all resources of a kind over all kinds.
``Deny`` wins ties. If no entry matches, the request is denied.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cometmq.auth.model import AuthError, DeniedError
from cometmq.java_values import is_blank
from cometmq.message.hosts import parse_network, parsed_ip
from cometmq.remoting.permissions import EVERY, Action, Kind, Need
from cometmq.remoting.signing import Signer

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"
ALLOW: Final = "Allow"
DENY: Final = "Deny"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
ALL_ACTIONS: Final = "All"
_ANY_ACTION: Final = "any"
"""An action that requests can require but no policy entry can grant."""
USER: Final = "User:"

_KINDS: Final = {kind.value.lower(): kind for kind in Kind}
_ACTIONS: Final = {action.value.lower(): action for action in Action}
_RESOURCE_STEP: Final = "write for example Topic:Orders, Group:billing*, Cluster:*"
_SOURCE_STEP: Final = "use addresses or networks, for example 10.0.0.0/8"
MAX_NAME_CHARS: Final = 255
MAX_PASSWORD_CHARS: Final = 1_024
MAX_ENTRIES: Final = 1_000
"""Maximum number of entries in a user's policies."""
MAX_SOURCE_IPS: Final = 100


class Pattern(enum.IntEnum):
    """The kinds of name patterns for resources; smaller values take precedence."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


@dataclass(frozen=True)
class Resource:
    """A resource in a policy entry: ``Topic:Orders``, ``Topic:Ord*``, ``Topic:*`` or ``*``."""

    kind: Kind | None
    """The resource's kind; ``None`` matches every kind."""
    pattern: Pattern
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Parse a resource.

        :raises AuthError: the text is not a resource.
        """
        if text == EVERY:
            return cls(None, Pattern.ANY)
        kind, colon, name = text.partition(":")
        found = _KINDS.get(kind.lower())
        if found is None or not colon or not name or len(name) > MAX_NAME_CHARS or EVERY in name[:-1]:
            raise AuthError(
                f"The resource is null. {text[:100]!r} is not a valid resource",
                next_step=_RESOURCE_STEP,
            )
        if name == EVERY:
            return cls(found, Pattern.ANY)
        if name.endswith(EVERY):
            return cls(found, Pattern.PREFIXED, name[:-1])
        return cls(found, Pattern.LITERAL, name)

    def __str__(self) -> str:
        if self.kind is None:
            return EVERY
        return f"{self.kind.value}:{self.name}{'' if self.pattern is Pattern.LITERAL else EVERY}"

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The resource's rank among matching entries; the lowest rank wins."""
        return (self.kind is None, self.pattern, -len(self.name) if self.pattern is Pattern.PREFIXED else 0)

    def matches(self, kind: Kind, name: str) -> bool:
        """Return whether this resource matches another; only ``*`` matches a resource that stands for all of its
        kind.
        """
        if self.kind is None:
            return True
        if self.kind is not kind:
            return False
        if self.pattern is Pattern.ANY:
            return True
        if name == EVERY:
            return False
        return name == self.name if self.pattern is Pattern.LITERAL else name.startswith(self.name)


class EntryInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A policy entry in the form used in requests and files."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, rename="camel"):
    """The entries of one policy type, custom or default."""

    policy_type: str | None = None
    entries: list[EntryInfo] | None = None


class AclInfo(msgspec.Struct, rename="camel"):
    """The policies of one user."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


@dataclass(frozen=True)
class Entry:
    """A parsed entry in a policy."""

    resource: Resource
    named_actions: tuple[str, ...]
    """The actions as the user wrote them, which may include ``All``."""
    sources: tuple[str, ...]
    """Source addresses and networks as the user wrote them; empty means all."""
    allows: bool
    actions: frozenset[Action] = field(repr=False)
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = field(repr=False)

    @classmethod
    def read(cls, info: EntryInfo) -> Entry:
        """Parse and check an entry with Apache's error messages.

        :raises AuthError: the entry is invalid.
        """
        if info.resource is None or is_blank(info.resource):
            raise AuthError("The resource is null.", next_step=_RESOURCE_STEP)
        resource = Resource.parse(info.resource)
        if not info.actions:
            raise AuthError("The actions is empty.", next_step="give at least one action, for example Pub or Sub")
        names = tuple(dict.fromkeys(map(_action_name, info.actions)))
        sources = tuple(info.source_ips or ())
        if len(sources) > MAX_SOURCE_IPS:
            raise AuthError(f"an entry has more than {MAX_SOURCE_IPS} source addresses")
        if not all(map(str.strip, sources)):
            raise AuthError("The source ip is empty.", next_step=_SOURCE_STEP)
        try:
            networks = tuple(parse_network(source, strict=False) for source in sources)
        except ValueError:
            raise AuthError("The source ip is invalid.", next_step=_SOURCE_STEP) from None
        decision = (info.decision or "").lower()
        if decision not in (ALLOW.lower(), DENY.lower()):
            raise AuthError("The decision is null or illegal.", next_step="use Allow or Deny")
        actions = frozenset(Action) if ALL_ACTIONS in names else frozenset(map(Action, names))
        return cls(resource, names, sources, decision == ALLOW.lower(), actions, networks)

    def matches(self, kind: Kind, name: str, actions: Iterable[Action], address: Any) -> bool:
        """Return whether the entry matches a request."""
        return (
            self.resource.matches(kind, name)
            and not self.actions.isdisjoint(actions)
            and (not self.networks or any(address in network for network in self.networks))
        )

    def info(self) -> EntryInfo:
        """Return the entry in the form used in responses and files."""
        sources = list(self.sources) or None
        return EntryInfo(str(self.resource), list(self.named_actions), sources, ALLOW if self.allows else DENY)


def _action_name(text: str) -> str:
    name = text.lower()
    if name == ALL_ACTIONS.lower():
        return ALL_ACTIONS
    if name == _ANY_ACTION:
        raise AuthError("The actions can not be Any.", next_step=f"use {ALL_ACTIONS}")
    if name not in _ACTIONS:
        names = ", ".join(action.value for action in Action)
        raise AuthError(f"{text[:100]!r} is not a valid action", next_step=f"use {names} or {ALL_ACTIONS}")
    return _ACTIONS[name].value


Policies = Mapping[str, tuple[Entry, ...]]
"""Policy entries by policy type; several entries may have the same resource."""


def read_policies(infos: Sequence[PolicyInfo]) -> Policies:
    """Parse and check policies. A policy without entries is ignored.

    :raises AuthError: an entry is invalid, or no policy has entries.
    """
    found: dict[str, tuple[Entry, ...]] = {}
    for info in infos:
        kind = (info.policy_type or CUSTOM).capitalize()
        if kind not in (CUSTOM, DEFAULT):
            raise AuthError(f"{kind[:100]!r} is an unknown policy type", next_step=f"use {CUSTOM} or {DEFAULT}")
        if info.entries:
            found[kind] = (*found.get(kind, ()), *map(Entry.read, info.entries))
    if not found:
        raise AuthError("The policies is empty.", next_step="give at least one policy with an entry")
    return found


def merge_policies(old: Policies, new: Policies) -> Policies:
    """Add policy entries. A new entry replaces the first old one of the same type and resource (``Acl.updatePolicy``).

    If a type has no entries yet, all new entries are kept, even if several have the same resource.
    """
    merged = dict(old)
    for kind, entries in new.items():
        if kind not in old:
            merged[kind] = entries
            continue
        known = list(old[kind])
        for entry in entries:
            at = next((at for at, one in enumerate(known) if one.resource == entry.resource), len(known))
            known[at : at + 1] = [entry]
        merged[kind] = tuple(known)
    return merged


def without_resource(policies: Policies, kind: str, resource: Resource) -> Policies:
    """Remove the entries for a resource from one policy type."""
    left = tuple(entry for entry in policies.get(kind, ()) if entry.resource != resource)
    others = {one: entries for one, entries in policies.items() if one != kind}
    return others | {kind: left} if left else others


def policy_infos(policies: Policies) -> list[PolicyInfo]:
    """Return policies in the form used in responses and files."""
    return [PolicyInfo(kind, [entry.info() for entry in entries]) for kind, entries in policies.items()]


@dataclass(frozen=True)
class User:
    """A user and the user's policies."""

    name: str
    password: str = field(repr=False)
    kind: str = NORMAL
    status: str = ENABLE
    policies: Policies = field(default_factory=dict)

    def decide(self, need: Need, cluster: str, address: Any) -> Entry | None:
        """Return the policy entry that decides a request, or ``None`` if no entry matches."""
        name = cluster if need.kind is Kind.CLUSTER else need.name
        for kind in (CUSTOM, DEFAULT):
            matching = [
                entry
                for entry in self.policies.get(kind, ())
                if entry.matches(need.kind, name, need.owner_actions, address)
            ]
            if matching:
                return min(matching, key=lambda entry: (*entry.resource.rank, entry.allows))
        return None


@dataclass(frozen=True)
class UserAccount:
    """An :class:`~cometmq.auth.model.Account` for a user at a particular address."""

    user: User
    signer: Signer | None
    cluster: str
    address: str
    is_super: bool

    @property
    def name(self) -> str:
        """The user's name."""
        return self.user.name

    def refusal(self, need: Need, _code: int) -> DeniedError | None:
        """Return, in Apache's words, why the user lacks a permission, or ``None`` if the user has it."""
        if self.is_super:
            return None
        entry = self.user.decide(need, self.cluster, _ip(self.address))
        if entry is not None and entry.allows:
            return None
        resource = f"{need.kind.value}:{self.cluster if need.kind is Kind.CLUSTER else need.name}"
        detail = "no matched policies." if entry is None else "the decision is deny."
        return DeniedError(
            f"{USER}{self.name} has no permission to access {resource} from {self.address}, {detail}",
            next_step="ask an administrator for a policy: cometmq acl create",
        )


def _ip(address: str) -> Any:
    return parsed_ip(address)
