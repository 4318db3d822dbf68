"""The interface to an engine, which RocketMQ calls a ``Controller``: read, swap, announce, changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from cometmq.broker.failover.document import Document, DocumentError, Member, check_name
from cometmq.broker.limits import MAX_FAILOVER_DOCUMENT_BYTES, MAX_FAILOVER_REASON_CHARS
from cometmq.errors import CometMQError
from cometmq.limits import MAX_ADDRESS_CHARS


class EngineError(CometMQError):
    """The engine has not answered, or has refused a request. A swap may have landed, or may still land."""


class NameTakenError(EngineError):
    """Another process, with another store, has announced a member with this name.

    :param by: the other process's ``host:port``.
    """

    def __init__(self, name: str, by: str) -> None:
        super().__init__(f"the name {name} is taken by {by}", next_step="give each member its own name")
        self.by = by


@dataclass(frozen=True, slots=True, order=True)
class Standing:
    """A frozen member's log, by which candidates are compared: the highest stands first.

    It is valid only in ``document_epoch``.
    """

    document_epoch: int
    last_epoch: int
    end: int
    priority: int
    """``brokerElectionPriority``, negated: in RocketMQ 0 is the highest priority."""


@dataclass(frozen=True, slots=True)
class Presence:
    """The announcement of a live process."""

    member: Member
    process: str
    """A random number, chosen at the start of the process."""
    address: str
    ha_address: str
    serves: int = 0
    """The epoch that it serves as the master, or in which it takes office; otherwise 0."""
    standing: Standing | None = None
    """The end of its log, while it is frozen."""
    trouble: str = ""
    """The reason why its disk cannot be written, for people who find its ports closed."""
    version: str = field(default="", compare=False)
    """The engine's version of the announcement, which changes when its content does."""

    def at(self, version: str) -> Presence:
        """Return the presence with the engine's version."""
        return replace(self, version=version)


def demand_same_member(presence: Presence, known: Presence, *, is_first: bool) -> None:
    """Check that a known presence with the same name belongs to the same member.

    A process replaces the presence that an earlier process of its store has left. Later, another process's presence
    says that two stores have one identity, because one is a copy of the other.

    :param is_first: True until this process has announced itself.
    :raises NameTakenError: it belongs to another one.
    """
    if known.member != presence.member or (known.process != presence.process and not is_first):
        raise NameTakenError(known.member.name, known.address)


@dataclass(frozen=True, slots=True)
class Guard:
    """The condition of an election: the old master's presence is as it was read.

    :param version: the presence's version, or "" if it was absent.
    :param removes: True to remove the presence with the swap. The old process learns that it was replaced.
    """

    name: str
    version: str
    removes: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's content at one moment."""

    document: Document | None
    version: str
    """The version of the document; "" if there is none. Only equality has a meaning."""
    presences: Mapping[str, Presence]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A swap's definite outcome, and the document after it."""

    is_done: bool
    document: Document | None
    version: str


class Engine(Protocol):
    """Keeps one set's document and presences."""

    async def read(self) -> Snapshot:
        """Return the content at a moment after the call (linearizable).

        :raises EngineError: the engine has not answered in time.
        :raises DocumentError: the document is not valid.
        """

    async def swap(self, document: Document, version: str, guard: Guard | None = None) -> Outcome:
        """Replace the document if its version is ``version``, and the guard holds.

        :raises EngineError: the outcome is not known.
        """

    async def announce(self, presence: Presence) -> bool:
        """Announce a presence, or renew it for another lease. Return False if it had been removed or had expired.

        :raises EngineError: the engine has not answered in time.
        :raises NameTakenError: another member with this name is present.
        """

    async def withdraw(self) -> None:
        """Remove this process's presence at once.

        :raises EngineError: the engine has not answered in time; the presence expires.
        """

    def changes(self) -> AsyncIterator[None]:
        """Yield after each change of the document or of a presence, and whenever changes may have been missed."""

    async def close(self) -> None:
        """Close all connections."""


class _WireStanding(msgspec.Struct, rename="camel"):
    document_epoch: int
    last_epoch: int
    end: int
    priority: int


class _WirePresence(msgspec.Struct, rename="camel"):
    generation: int
    process: str
    address: str
    ha_address: str
    serves: int = 0
    standing: _WireStanding | None = None
    trouble: str = ""


def encode_presence(presence: Presence) -> bytes:
    """Return a presence as JSON, without the replica's name, which is the key."""
    at = presence.standing
    standing = None if at is None else _WireStanding(at.document_epoch, at.last_epoch, at.end, at.priority)
    return msgspec.json.encode(
        _WirePresence(
            presence.member.generation,
            presence.process,
            presence.address,
            presence.ha_address,
            presence.serves,
            standing,
            presence.trouble,
        )
    )


def decode_presence(name: str, data: bytes, version: str) -> Presence:
    """Return the presence of a replica.

    :raises DocumentError: it is not valid.
    """
    check_name(name)
    try:
        if len(data) > MAX_FAILOVER_DOCUMENT_BYTES:
            raise msgspec.ValidationError(f"it has {len(data)} bytes")
        wire = msgspec.json.decode(data, type=_WirePresence)
        if max(len(wire.address), len(wire.ha_address), len(wire.process)) > MAX_ADDRESS_CHARS:
            raise msgspec.ValidationError("an address is too long")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DocumentError(
            f"the engine's announcement of the replica {name!r} is not valid: {error}",
            next_step="remove its key; its broker announces itself again",
        ) from error
    at = wire.standing
    standing = None if at is None else Standing(at.document_epoch, at.last_epoch, at.end, at.priority)
    member = Member(name, wire.generation)
    trouble = wire.trouble[:MAX_FAILOVER_REASON_CHARS]
    return Presence(member, wire.process, wire.address, wire.ha_address, wire.serves, standing, trouble, version)
