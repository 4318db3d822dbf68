"""Users and policies of ACL 2.0 (``User``, ``Acl``, ``Policy``, ``AclAuthorizationHandler``).

A super user may do everything. For any other user an entry matches when its resource, one of its actions and its source
addresses do. Entries of custom policies count before those of default ones; among them a literal name before a prefix,
a longer prefix before a shorter one, a prefix before all of a kind, and that before all kinds. Of entries that are
equal in this, Deny counts. Without a match the request is denied.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cometmq.auth.model import AuthError, DeniedError
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
USER: Final = "User:"

_KINDS: Final = {kind.value.lower(): kind for kind in Kind}
_ACTIONS: Final = {action.value.lower(): action for action in Action}
MAX_NAME_CHARS: Final = 255
MAX_PASSWORD_CHARS: Final = 1_024
MAX_ENTRIES: Final = 1_000
"""Entries of one user's policies."""
MAX_SOURCE_IPS: Final = 100


class Pattern(enum.IntEnum):
    """The form of a resource's name; a smaller one counts first."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


@dataclass(frozen=True)
class Resource:
    """``Topic:Orders``, ``Topic:Ord*``, ``Topic:*`` or ``*``."""

    kind: Kind | None
    """``None``: of every kind."""
    pattern: Pattern
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Read a resource.

        :raises AuthError: it is none.
        """
        if text == EVERY:
            return cls(None, Pattern.ANY)
        kind, colon, name = text.partition(":")
        found = _KINDS.get(kind.lower())
        if found is None or not colon or not name or len(name) > MAX_NAME_CHARS:
            raise AuthError(
                f"{text[:100]!r} is no resource", next_step="write for example Topic:Orders, Group:billing*, Cluster:*"
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
        """Resources of a smaller rank count first."""
        return (self.kind is None, self.pattern, -len(self.name) if self.pattern is Pattern.PREFIXED else 0)

    def matches(self, kind: Kind, name: str) -> bool:
        """Tell whether a resource is meant; one that stands for all of its kind is meant only by ``*``."""
        if self.kind is None:
            return True
        if self.kind is not kind:
            return False
        if self.pattern is Pattern.ANY:
            return True
        if name == EVERY:
            return False
        return name == self.name if self.pattern is Pattern.LITERAL else name.startswith(self.name)


class EntryInfo(msgspec.Struct, rename="camel"):
    """An entry of a policy, as requests and files have it."""

    resource: str
    actions: list[str] = []
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, rename="camel"):
    """The entries of one kind of policy: custom or default."""

    policy_type: str | None = None
    entries: list[EntryInfo] | None = None


class AclInfo(msgspec.Struct, rename="camel"):
    """The policies of one user."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


@dataclass(frozen=True)
class Entry:
    """An entry of a policy, ready to be asked."""

    resource: Resource
    actions: frozenset[Action]
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    """Source addresses; none means all."""
    allows: bool

    @classmethod
    def read(cls, info: EntryInfo) -> Entry:
        """Check an entry.

        :raises AuthError: it is not valid.
        """
        if not info.actions:
            raise AuthError("The actions is empty.")
        actions: set[Action] = set()
        for name in info.actions:
            if name.lower() == ALL_ACTIONS.lower():
                actions.update(Action)
            elif name.lower() in _ACTIONS:
                actions.add(_ACTIONS[name.lower()])
            else:
                raise AuthError(f"{name[:100]!r} is no action", next_step=f"use {', '.join(_names())} or All")
        decision = (info.decision or "").lower()
        if decision not in (ALLOW.lower(), DENY.lower()):
            raise AuthError("The decision is null or illegal.", next_step="use Allow or Deny")
        sources = info.source_ips or []
        if len(sources) > MAX_SOURCE_IPS:
            raise AuthError(f"more than {MAX_SOURCE_IPS} source addresses in one entry")
        try:
            networks = tuple(ipaddress.ip_network(source, strict=False) for source in sources)
        except ValueError:
            raise AuthError(
                "The source ip is invalid.", next_step="use addresses or networks such as 10.0.0.0/8"
            ) from None
        return cls(Resource.parse(info.resource), frozenset(actions), networks, decision == ALLOW.lower())

    def matches(self, kind: Kind, name: str, actions: Iterable[Action], address: Any) -> bool:
        """Tell whether the entry is about a request."""
        return (
            self.resource.matches(kind, name)
            and not self.actions.isdisjoint(actions)
            and (not self.networks or any(address in network for network in self.networks))
        )

    def info(self) -> EntryInfo:
        """The entry as answers and files have it."""
        actions = [ALL_ACTIONS] if self.actions == frozenset(Action) else [a.value for a in Action if a in self.actions]
        sources = [
            str(network.network_address) if network.num_addresses == 1 else str(network) for network in self.networks
        ]
        return EntryInfo(str(self.resource), actions, sources, ALLOW if self.allows else DENY)


def _names() -> list[str]:
    return [action.value for action in Action]


Policies = Mapping[str, Mapping[Resource, Entry]]
"""Kind of policy → its entries by their resource."""


def read_policies(infos: Sequence[PolicyInfo]) -> dict[str, dict[Resource, Entry]]:
    """Check policies; of two entries with one resource the later counts.

    :raises AuthError: one is not valid.
    """
    found: dict[str, dict[Resource, Entry]] = {}
    for info in infos:
        kind = (info.policy_type or CUSTOM).capitalize()
        if kind not in (CUSTOM, DEFAULT):
            raise AuthError(f"{kind[:100]!r} is no type of policy", next_step=f"use {CUSTOM} or {DEFAULT}")
        if not info.entries:
            raise AuthError("The policy entries is empty.")
        for one in info.entries:
            entry = Entry.read(one)
            found.setdefault(kind, {})[entry.resource] = entry
    if not found:
        raise AuthError("The policies is empty.")
    return found


def policy_infos(policies: Policies) -> list[PolicyInfo]:
    """Policies as answers and files have them."""
    return [PolicyInfo(kind, [entry.info() for entry in entries.values()]) for kind, entries in policies.items()]


@dataclass(frozen=True)
class User:
    """A user and their policies."""

    name: str
    password: str = field(repr=False)
    kind: str = NORMAL
    status: str = ENABLE
    policies: Policies = field(default_factory=dict)

    def decide(self, need: Need, cluster: str, address: Any) -> Entry | None:
        """The entry that decides; ``None`` if none matches."""
        name = cluster if need.kind is Kind.CLUSTER else need.name
        for kind in (CUSTOM, DEFAULT):
            matching = [
                entry
                for entry in self.policies.get(kind, {}).values()
                if entry.matches(need.kind, name, need.owner_actions, address)
            ]
            if matching:
                return min(matching, key=lambda entry: (*entry.resource.rank, entry.allows))
        return None


@dataclass(frozen=True)
class UserAccount:
    """A user from one address: an :class:`~cometmq.auth.model.Account`."""

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
        """The reason why the user may not do this, in Apache's words."""
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
    try:
        return ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
