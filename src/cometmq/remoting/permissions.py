"""The permissions that a request needs: actions on topics, groups or the cluster. Each handler declares its own.

Actions and resources are those of RocketMQ 5 (``RocketMQAction``, ``RocketMQResource``); ACL 1.0 interprets the same
declarations (:mod:`cometmq.auth.plain`). Retry and dead-letter topics belong to their group: an account that may
consume as the group may use them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from cometmq.message.names import DLQ_PREFIX, NOT_ALLOWED_SEND_TOPICS, RETRY_PREFIX, REVIVE_TOPIC_PREFIX
from cometmq.message.pop_info import is_retry_of
from cometmq.options import camel


class Action(enum.Enum):
    """The actions on resources (``Action``)."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Kind(enum.Enum):
    """The kinds of resources (``ResourceType``)."""

    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


EVERY: Final = "*"
"""The resource name of a request that concerns all resources of a kind."""


_OF_GROUP: Final = {Action.PUB: Action.SUB}
"""For an action on a group's retry or dead-letter topic, the action on the group that an account needs instead. Actions
that are not listed remain the same.
"""


class Need(NamedTuple):
    """A permission that a request needs: any one of the actions on a resource."""

    kind: Kind
    name: str
    """The name of the resource; empty for the cluster."""
    actions: tuple[Action, ...]
    topic: str = ""
    """The request's topic, if the topic belongs to a group or to the cluster."""

    @property
    def owner_actions(self) -> tuple[Action, ...]:
        """Return the actions required on the group or cluster that owns a topic."""
        if not self.topic:
            return self.actions
        if self.kind is Kind.CLUSTER:
            return (Action.GET,)
        return tuple(dict.fromkeys(_OF_GROUP.get(action, action) for action in self.actions))

    @property
    def resource(self) -> str:
        """Return the resource as text, for example ``Topic:name``."""
        return f"{self.kind.value}:{self.name or EVERY}"


def on_topic(name: str, *actions: Action) -> Need:
    """Require one of the actions on a topic, or on the group to which the topic belongs.

    Topics that hold delayed messages or half messages for all other topics belong to the cluster.
    """
    if name in NOT_ALLOWED_SEND_TOPICS or name.startswith(REVIVE_TOPIC_PREFIX):
        return Need(Kind.CLUSTER, "", actions, name)
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return Need(Kind.GROUP, name.removeprefix(prefix), actions, name)
    return Need(Kind.TOPIC, name, actions)


def on_group(name: str, *actions: Action) -> Need:
    """Require one of the actions on a group."""
    return Need(Kind.GROUP, name, actions)


class Caller(Protocol):
    """The account that made the current request, or the last request on a connection."""

    @property
    def name(self) -> str:
        """The account's name; empty for an anonymous account."""

    @property
    def is_super(self) -> bool:
        """True if the account has all permissions."""

    def may(self, need: Need) -> bool:
        """Return whether the account has the permission."""


CALLER: Final[ContextVar[Caller | None]] = ContextVar("caller", default=None)
"""The account that made the current request, for handlers marked with :func:`needs_stored`.

It is ``None`` if permissions are not checked. Tasks of a request inherit it.
"""


@dataclass(frozen=True)
class _FieldResource:
    """A resource named in a header field."""

    kind: Kind
    field: str
    actions: tuple[Action, ...]
    separator: str = ""
    free: frozenset[str] = frozenset()

    def needs(self, header: Any) -> Iterator[Need]:
        value = getattr(header, self.field)
        if value is None or value == "" or value in self.free:
            return
        make = on_topic if self.kind is Kind.TOPIC else on_group
        for name in value.split(self.separator) if self.separator else (value,):
            yield make(name, *self.actions)

    def __str__(self) -> str:
        return f"{self.kind.value}:`{camel(self.field)}` {_joined_names(self.actions)}"


@dataclass(frozen=True)
class _Popped(_FieldResource):
    """The topic from which a message was popped; retry topics for a group's pops belong to the group."""

    def needs(self, header: Any) -> Iterator[Need]:
        topic, group = getattr(header, self.field), header.consumer_group
        if is_retry_of(topic, group):
            yield Need(Kind.GROUP, group, self.actions, topic)
        else:
            yield from super().needs(header)


BodyNeeds = Callable[[bytes], Iterable[Need]]
"""Determines the required permissions from a request body; raises :class:`~cometmq.remoting.bodies.BodyError`."""


@dataclass(frozen=True, eq=False)
class Permission:
    """The permissions required by requests with one code; two can be combined with ``&``."""

    named: tuple[_FieldResource, ...] = ()
    fixed: tuple[Need, ...] = ()
    body: BodyNeeds | None = None
    stored: tuple[Action, ...] = ()
    """Actions on a stored message's topic, which the handler checks with :data:`CALLER`."""
    text: str = ""

    def __and__(self, other: Permission) -> Permission:
        """Return a permission that requires both permissions."""
        assert not (self.body and other.body), "one function reads the body"
        return Permission(
            self.named + other.named,
            self.fixed + other.fixed,
            self.body or other.body,
            self.stored + other.stored,
            self.text or other.text,
        )

    def key(self, header: Any) -> Hashable:
        """Return the header fields that the decision depends on, or ``None`` if it depends on the body."""
        if self.body is not None:
            return None
        named = self.named
        if len(named) == 1:
            return (self, getattr(header, named[0].field))
        return (self, *[getattr(header, one.field) for one in named])

    def needs(self, header: Any, body: bytes) -> Iterator[Need]:
        """Return all permissions that a request needs.

        :raises BodyError: the body is malformed.
        """
        for one in self.named:
            yield from one.needs(header)
        yield from self.fixed
        if self.body is not None:
            yield from self.body(body)

    def __str__(self) -> str:
        parts = [*map(str, self.named)]
        parts += [f"{need.resource} {_joined_names(need.actions)}" for need in self.fixed]
        if self.stored:
            parts.append(f"topic of the stored message {_joined_names(self.stored)}")
        if self.text:
            parts.append(self.text)
        return ", ".join(parts) or "any account"


def _joined_names(actions: tuple[Action, ...]) -> str:
    return "\\|".join(action.value for action in actions)


ANY_ACCOUNT: Final = Permission()
"""The permission for requests that require a known account but nothing else."""


def needs_topic(*actions: Action, field: str = "topic", free: frozenset[str] = frozenset()) -> Permission:
    """Require one of the actions on the topic in a header field, unless that topic is ``free``."""
    return Permission((_FieldResource(Kind.TOPIC, field, actions, free=free),))


def needs_popped(*actions: Action) -> Permission:
    """Require one of the actions on the header's group and topic; the topic may be a retry topic for the group's
    pops.
    """
    return Permission((_Popped(Kind.TOPIC, "topic", actions), _FieldResource(Kind.GROUP, "consumer_group", actions)))


def needs_group(*actions: Action, field: str = "consumer_group", separator: str = "") -> Permission:
    """Require one of the actions on the groups in a header field, if the field is set."""
    return Permission((_FieldResource(Kind.GROUP, field, actions, separator),))


def needs_cluster(*actions: Action) -> Permission:
    """Require one of the actions on the cluster."""
    return Permission(fixed=(Need(Kind.CLUSTER, "", actions),))


def needs_every(kind: Kind, *actions: Action) -> Permission:
    """Require one of the actions on all resources of a kind."""
    return Permission(fixed=(Need(kind, EVERY, actions),))


def needs_stored(*actions: Action) -> Permission:
    """Require one of the actions on a stored message's topic, which the handler checks with :data:`CALLER`."""
    return Permission(stored=actions)


def needs_of_body(read: BodyNeeds, text: str) -> Permission:
    """Require the permissions that a function finds in the body; ``text`` describes them in ``docs/protocol.md``."""
    return Permission(body=read, text=text)
