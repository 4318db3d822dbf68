"""The document of a set, which the engine keeps: epoch, master and in-sync set (``ReplicasInfo``, ``SyncStateInfo``).

JSON, in this form; a reader ignores fields that it does not know, so that members of two versions can share a set::

    {"format": 1, "setId": "5f3c…", "epoch": 7, "serial": 31, "master": "a#1", "inSync": ["a#1", "b#4"],
     "replicas": [{"name": "a", "address": "10.0.0.1:10911", "haAddress": "10.0.0.1:10912", "brokerId": 1}, …],
     "why": "the master a#1 was elected: …", "atMs": 1764403200000}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from cometmq.broker.limits import (
    MAX_FAILOVER_DOCUMENT_BYTES,
    MAX_FAILOVER_MEMBER_CHARS,
    MAX_FAILOVER_MEMBERS,
    MAX_FAILOVER_REASON_CHARS,
)
from cometmq.errors import CometMQError
from cometmq.limits import MAX_ADDRESS_CHARS

FORMAT: Final = 1
MAX_NUMBER: Final = 2**62
"""Maximum epoch, serial number and generation; twice as large still fits into eight bytes."""
_NAME: Final = re.compile(rf"[A-Za-z0-9]([A-Za-z0-9._-]{{0,{MAX_FAILOVER_MEMBER_CHARS - 1}}})")
_MEMBER: Final = re.compile(rf"({_NAME.pattern})#([0-9]{{1,19}})")
_SET_ID: Final = re.compile(r"[0-9a-f]{8,64}")

_RESTORE: Final = (
    "do not edit it by hand: restore the last document from the engine's history, or stop all members, delete the "
    "document, and start the member with the longest log with --bootstrap"
)


class DocumentError(CometMQError):
    """The engine's document of this set is not valid."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A replica during one generation.

    A replica that may have lost bytes gets a higher generation. It is another member, so an entry for the old one that
    is still on its way to the engine has no effect.
    """

    name: str
    generation: int

    def __str__(self) -> str:
        return f"{self.name}#{self.generation}"


@dataclass(frozen=True, slots=True)
class Replica:
    """The addresses of a replica, and the broker id with which it registers as a slave (above 0)."""

    name: str
    address: str
    ha_address: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class Document:
    """The engine's document of a set. ``in_sync`` is the confirmed in-sync set, and contains the master."""

    set_id: str
    """A random number, chosen when the set was founded."""
    epoch: int
    serial: int
    """The number of changes since the set was founded; shows a document that is older than one seen before."""
    master: Member
    in_sync: frozenset[Member]
    replicas: tuple[Replica, ...] = ()
    """All replicas that have ever signed in, including those that are not in sync, ordered by broker id."""
    why: str = ""
    at_ms: int = 0
    """Wall time of the change, for people; no decision depends on it."""

    @property
    def order(self) -> tuple[int, int]:
        """Position in the set's history: documents with a higher position are newer."""
        return self.epoch, self.serial

    def replica(self, name: str) -> Replica | None:
        """Return a replica's addresses, or ``None`` if it has never signed in."""
        return next((one for one in self.replicas if one.name == name), None)

    def changed(self, in_sync: frozenset[Member], why: str, at_ms: int) -> Document:
        """Return the next document of the same epoch, with another in-sync set."""
        return replace(self, serial=self.serial + 1, in_sync=in_sync, why=_short(why), at_ms=at_ms)

    def elected(self, master: Member, in_sync: frozenset[Member], why: str, at_ms: int) -> Document:
        """Return the first document of the next epoch."""
        return replace(
            self,
            epoch=self.epoch + 1,
            serial=self.serial + 1,
            master=master,
            in_sync=in_sync | {master},
            why=_short(why),
            at_ms=at_ms,
        )

    def with_replica(self, name: str, address: str, ha_address: str) -> Document:
        """Return the document with a replica's addresses; a new replica gets the lowest free broker id."""
        known = self.replica(name)
        taken = {one.broker_id for one in self.replicas}
        broker_id = known.broker_id if known else next(i for i in range(1, len(taken) + 2) if i not in taken)
        others = [one for one in self.replicas if one.name != name]
        mine = Replica(name, address, ha_address, broker_id)
        return replace(self, replicas=tuple(sorted([*others, mine], key=lambda one: one.broker_id)))

    def without_replicas(self, names: Collection[str]) -> Document:
        """Return the document without replicas; their broker ids become free."""
        return replace(self, replicas=tuple(one for one in self.replicas if one.name not in names))

    def with_addresses(self, addresses: Mapping[str, tuple[str, str]]) -> Document:
        """Return the document with the addresses of replicas by name; the same document if it has them all."""
        document = self
        for name, (address, ha_address) in addresses.items():
            known = document.replica(name)
            if known is None or (known.address, known.ha_address) != (address, ha_address):
                document = document.with_replica(name, address, ha_address)
        return document


def founding_document(set_id: str, epoch: int, master: Member, at_ms: int) -> Document:
    """Return the first document of a set; its epoch is above those in the founder's log."""
    return Document(set_id, epoch, 1, master, frozenset({master}), why=f"{master} founded the set", at_ms=at_ms)


def check_name(name: str) -> str:
    """Return the name of a replica.

    :raises DocumentError: it cannot be part of a key.
    """
    if not _NAME.fullmatch(name):
        raise DocumentError(
            f"a member of a set cannot be called {name[:80]!r}",
            next_step=f"use at most {MAX_FAILOVER_MEMBER_CHARS} letters, digits, '.', '_' and '-', and begin with a "
            "letter or a digit",
        )
    return name


def is_member(text: str) -> bool:
    """Return whether a text names a member, such as ``a#1``."""
    return _MEMBER.fullmatch(text) is not None


def parse_member(text: str) -> Member:
    """Return the member that a text such as ``a#1`` names.

    :raises DocumentError: it names none.
    """
    match = _MEMBER.fullmatch(text)
    if match is None or int(match[3]) > MAX_NUMBER:
        raise DocumentError(f"{text[:80]!r} is not a member, which has the form name#generation", next_step=_RESTORE)
    return Member(match[1], int(match[3]))


class _WireReplica(msgspec.Struct, rename="camel"):
    name: str
    address: str
    ha_address: str
    broker_id: int


class _Wire(msgspec.Struct, rename="camel"):
    format: int
    set_id: str
    epoch: int
    serial: int
    master: str
    in_sync: list[str]
    replicas: list[_WireReplica]
    why: str
    at_ms: int


class _Format(msgspec.Struct):
    format: int


def encode_document(document: Document) -> bytes:
    """Return a document as JSON, always the same bytes for the same document."""
    return msgspec.json.encode(
        _Wire(
            FORMAT,
            document.set_id,
            document.epoch,
            document.serial,
            str(document.master),
            [str(member) for member in sorted(document.in_sync)],
            [_WireReplica(one.name, one.address, one.ha_address, one.broker_id) for one in document.replicas],
            document.why,
            document.at_ms,
        )
    )


def decode_document(data: bytes) -> Document:
    """Return the document that the engine keeps.

    :raises DocumentError: it is not valid; the error says what to do.
    """
    if len(data) > MAX_FAILOVER_DOCUMENT_BYTES:
        raise _invalid(f"it has {len(data)} bytes, more than {MAX_FAILOVER_DOCUMENT_BYTES}")
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version != FORMAT:
            raise DocumentError(
                f"the engine's document of this set has format {version}, and this broker reads format {FORMAT}",
                next_step="run the same version of CometMQ on all members; upgrade the master last",
            )
        wire = msgspec.json.decode(data, type=_Wire)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _invalid(str(error)) from error
    document = Document(
        wire.set_id,
        wire.epoch,
        wire.serial,
        parse_member(wire.master),
        frozenset(map(parse_member, wire.in_sync)),
        tuple(Replica(one.name, one.address, one.ha_address, one.broker_id) for one in wire.replicas),
        wire.why,
        wire.at_ms,
    )
    wrong = _fault(document, len(wire.in_sync))
    if wrong:
        raise _invalid(wrong)
    return document


def _fault(document: Document, in_sync_entries: int) -> str:
    """Return what is wrong in a document, or an empty text."""
    names = [member.name for member in document.in_sync]
    ids = [one.broker_id for one in document.replicas]
    checks = (
        (_SET_ID.fullmatch(document.set_id) is not None, "setId is not a hexadecimal number"),
        (1 <= document.epoch <= MAX_NUMBER, f"epoch is {document.epoch}"),
        (1 <= document.serial <= MAX_NUMBER, f"serial is {document.serial}"),
        (document.master in document.in_sync, f"inSync lacks the master {document.master}"),
        (len(set(names)) == len(names) == in_sync_entries, "inSync has a replica twice"),
        (max(len(names), len(ids)) <= MAX_FAILOVER_MEMBERS, f"it has more than {MAX_FAILOVER_MEMBERS} replicas"),
        (len(set(ids)) == len(ids) and all(0 < one < 2**31 for one in ids), "two replicas have one brokerId"),
        (len({one.name for one in document.replicas}) == len(ids), "replicas has a replica twice"),
        (all(_NAME.fullmatch(one.name) for one in document.replicas), "a replica has an invalid name"),
        (
            all(len(one.address) <= MAX_ADDRESS_CHARS >= len(one.ha_address) for one in document.replicas),
            f"an address has more than {MAX_ADDRESS_CHARS} characters",
        ),
        (len(document.why) <= MAX_FAILOVER_REASON_CHARS, "the reason is too long"),
        (0 <= document.at_ms <= MAX_NUMBER, f"atMs is {document.at_ms}"),
    )
    return next((text for is_right, text in checks if not is_right), "")


def _invalid(why: str) -> DocumentError:
    return DocumentError(f"the engine's document of this set is not valid: {why}", next_step=_RESTORE)


def _short(why: str) -> str:
    return why if len(why) <= MAX_FAILOVER_REASON_CHARS else f"{why[: MAX_FAILOVER_REASON_CHARS - 1]}…"
