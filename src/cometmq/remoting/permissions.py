"""Permissions that a request needs: actions on topics, groups or the cluster, declared at its handler.

The words are those of RocketMQ 5 (``RocketMQAction``, ``RocketMQResource``); ACL 1.0 is a reading of the same
declarations (:mod:`cometmq.auth.plain`). Topics of retries and dead letters belong to their group: who may consume as
the group may use them.
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
    """The action on a resource (``Action``)."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Kind(enum.Enum):
    """The kind of a resource (``ResourceType``)."""

    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


EVERY: Final = "*"
"""Name of a resource when a request is about all of its kind."""


_OF_GROUP: Final = {Action.PUB: Action.SUB}
"""Actions on topics of a group that are other actions on the group."""


class Need(NamedTuple):
    """One thing that a request needs: any of the actions on a resource."""

    kind: Kind
    name: str
    """Empty for the cluster."""
    actions: tuple[Action, ...]
    topic: str = ""
    """The topic that the actions are on, where it belongs to a group or to the cluster."""

    @property
    def owner_actions(self) -> tuple[Action, ...]:
        """The actions on the resource itself: who publishes to topics of a group must be allowed to consume as it."""
        if not self.topic:
            return self.actions
        if self.kind is Kind.CLUSTER:
            return (Action.GET,)
        return tuple(dict.fromkeys(_OF_GROUP.get(action, action) for action in self.actions))

    @property
    def resource(self) -> str:
        """``Topic:name``, as policies and messages write it."""
        return f"{self.kind.value}:{self.name or EVERY}"


def on_topic(name: str, *actions: Action) -> Need:
    """Need one of the actions on a topic, or on the group that it belongs to.

    Topics in which messages of all others wait (delays, half messages) are the cluster's.
    """
    if name in NOT_ALLOWED_SEND_TOPICS or name.startswith(REVIVE_TOPIC_PREFIX):
        return Need(Kind.CLUSTER, "", actions, name)
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return Need(Kind.GROUP, name.removeprefix(prefix), actions, name)
    return Need(Kind.TOPIC, name, actions)


def on_group(name: str, *actions: Action) -> Need:
    """Need one of the actions on a group."""
    return Need(Kind.GROUP, name, actions)


class Caller(Protocol):
    """The account of a request that is being handled, or of the last one of a connection."""

    @property
    def name(self) -> str:
        """The name of the account; empty for one without a name."""

    @property
    def is_super(self) -> bool:
        """The account may do everything."""

    def may(self, need: Need) -> bool:
        """Tell whether the account has what is needed."""


CALLER: Final[ContextVar[Caller | None]] = ContextVar("caller", default=None)
"""The account of the request that is being handled, for permissions marked with :func:`needs_stored`.

``None`` where permissions are not checked. A task of a request has it, too.
"""


@dataclass(frozen=True)
class _Named:
    """A resource that a field of the header names."""

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
        return f"{self.kind.value}:`{camel(self.field)}` {_words(self.actions)}"


@dataclass(frozen=True)
class _Popped(_Named):
    """The topic that a message was popped from; the retry topics of a group's pops belong to the group."""

    def needs(self, header: Any) -> Iterator[Need]:
        topic, group = getattr(header, self.field), header.consumer_group
        if is_retry_of(topic, group):
            yield Need(Kind.GROUP, group, self.actions, topic)
        else:
            yield from super().needs(header)


BodyNeeds = Callable[[bytes], Iterable[Need]]
"""Reads the needs of a request out of its body; raises :class:`~cometmq.remoting.bodies.BodyError`."""


@dataclass(frozen=True, eq=False)
class Permission:
    """The permissions that requests of one code need; two are joined by ``&``."""

    named: tuple[_Named, ...] = ()
    fixed: tuple[Need, ...] = ()
    body: BodyNeeds | None = None
    stored: tuple[Action, ...] = ()
    """Actions on the topic of a stored message; the handler asks :data:`CALLER`."""
    text: str = ""

    def __and__(self, other: Permission) -> Permission:
        """Need both."""
        assert not (self.body and other.body), "one function reads the body"
        return Permission(
            self.named + other.named,
            self.fixed + other.fixed,
            self.body or other.body,
            self.stored + other.stored,
            self.text or other.text,
        )

    def key(self, header: Any) -> Hashable:
        """The inputs of a decision, besides the account; ``None`` if some are in the body."""
        if self.body is not None:
            return None
        named = self.named
        if len(named) == 1:
            return (self, getattr(header, named[0].field))
        return (self, *[getattr(header, one.field) for one in named])

    def needs(self, header: Any, body: bytes) -> Iterator[Need]:
        """Everything that a request needs.

        :raises BodyError: the body cannot be read.
        """
        for one in self.named:
            yield from one.needs(header)
        yield from self.fixed
        if self.body is not None:
            yield from self.body(body)

    def __str__(self) -> str:
        parts = [*map(str, self.named)]
        parts += [f"{need.resource} {_words(need.actions)}" for need in self.fixed]
        if self.stored:
            parts.append(f"topic of the stored message {_words(self.stored)}")
        if self.text:
            parts.append(self.text)
        return ", ".join(parts) or "any account"


def _words(actions: tuple[Action, ...]) -> str:
    return "\\|".join(action.value for action in actions)


ANY_ACCOUNT: Final = Permission()
"""Nothing but an account that is known."""


def needs_topic(*actions: Action, field: str = "topic", free: frozenset[str] = frozenset()) -> Permission:
    """One of the actions on the topic that a field of the header names, unless that topic is ``free``."""
    return Permission((_Named(Kind.TOPIC, field, actions, free=free),))


def needs_popped(*actions: Action) -> Permission:
    """One of the actions on the group of a header, and on its topic, which may be a retry topic of the group's pops."""
    return Permission((_Popped(Kind.TOPIC, "topic", actions), _Named(Kind.GROUP, "consumer_group", actions)))


def needs_group(*actions: Action, field: str = "consumer_group", separator: str = "") -> Permission:
    """One of the actions on the group, or the groups, that a field of the header names, if it names one."""
    return Permission((_Named(Kind.GROUP, field, actions, separator),))


def needs_cluster(*actions: Action) -> Permission:
    """One of the actions on the cluster."""
    return Permission(fixed=(Need(Kind.CLUSTER, "", actions),))


def needs_every(kind: Kind, *actions: Action) -> Permission:
    """One of the actions on everything of a kind."""
    return Permission(fixed=(Need(kind, EVERY, actions),))


def needs_stored(*actions: Action) -> Permission:
    """One of the actions on the topic of a stored message: the handler reads the message and asks :data:`CALLER`."""
    return Permission(stored=actions)


def needs_of_body(read: BodyNeeds, text: str) -> Permission:
    """The needs that a function reads out of the body; ``text`` describes them for ``docs/protocol.md``."""
    return Permission(body=read, text=text)
