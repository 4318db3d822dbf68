"""The reasons for which a member waits for a person, with the next step."""

from __future__ import annotations

from typing import Final

from cometmq.broker.failover.document import Document, Member
from cometmq.broker.failover.events import Halt

RESTORED: Final = (
    "if the engine was restored from a backup, stop all members, delete the document, and start the member with the "
    "longest log with --bootstrap"
)


def name_taken(me: Member, by: str) -> Halt:
    """Another live process has this member's name."""
    return Halt(
        f"two members are called {me.name}; the other one is at {by}",
        "give each member of a set its own name with failoverMember; if one store is a copy of the other, empty it",
    )


def waits_for_name(me: Member, by: str) -> str:
    """Return the state of a member that finds its name taken, perhaps by its own earlier process."""
    return f"a process at {by} has announced the name {me.name}; waiting until it answers, or its lease ends"


def address_taken(name: str, holder: str, address: str) -> tuple[str, str]:
    """Two members have one address, so that nobody can connect to one of them; return the reason and the next step."""
    return (
        f"two members have the address {address}: {holder} and {name}",
        f"give {name} its own brokerIP1, brokerIP2, listenPort and haListenPort in its broker.conf, and restart it",
    )


def another_set(document: Document, known: str) -> Halt:
    """The document and the store belong to two sets."""
    return Halt(
        f"the engine's document belongs to set {document.set_id}, and this store to set {known}",
        "check failoverPrefix, brokerClusterName and brokerName; two clusters must not share a prefix",
    )


def older_than_log(document: Document, epoch: int) -> Halt:
    """The document has a lower epoch than the log."""
    return Halt(f"the engine's document has epoch {document.epoch}, and this log has epoch {epoch}", RESTORED)


def no_document() -> Halt:
    """A store with messages finds no document."""
    return Halt(
        "the engine has no document of this set, but this store has messages",
        "check the endpoints and names; to found a set with this store's messages, start with --bootstrap",
    )
