"""The conditions of a person's commands."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.broker.failover.document import Document, Member
from cometmq.broker.failover.election import is_serving
from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.failover.leading import Leader
from cometmq.broker.failover.options import CommandRefusedError
from cometmq.broker.failover.states import State


def successor_for(me: Member, state: State, leader: Leader | None, name: str, now: float) -> str:
    """Return the name of the member that can take over from this one.

    :param name: the wanted member, or empty for the one that is furthest.
    :raises CommandRefusedError: nobody can take over.
    """
    if state is not State.MASTER or leader is None:
        raise CommandRefusedError(f"{me} is not the master, it is {state.value}", next_step="ask the master of the set")
    successor = leader.in_sync.best_successor(name, now)
    if successor is None:
        raise CommandRefusedError(
            f"{f'{name} is not' if name else 'no other member is'} in sync, so nobody can take over",
            next_step="wait until cometmq failover status shows another member in sync",
        )
    return successor.name


def check_force(me: Member, state: State, document: Document | None, presences: Mapping[str, Presence]) -> None:
    """Check that a person may make this member the master.

    :raises CommandRefusedError: the set has a master, or this member cannot stand.
    """
    if state not in (State.FOLLOWER, State.FROZEN):
        raise CommandRefusedError(
            f"{me} is {state.value}", next_step="see cometmq failover status for the member to force"
        )
    if document is None or is_serving(document, presences):
        raise CommandRefusedError(
            "the set has a master, or its lease has not ended yet",
            next_step="use cometmq failover handover; if the master is dead, try again after failoverLeaseMs",
        )


def check_forget(
    me: Member, state: State, document: Document | None, presences: Mapping[str, Presence], name: str
) -> None:
    """Check that a replica may be removed from the document.

    :raises CommandRefusedError: this member is not the master, or the replica is still part of the set.
    """
    if state is not State.MASTER or document is None:
        raise CommandRefusedError(f"{me} is not the master, it is {state.value}", next_step="ask the master of the set")
    if document.replica(name) is None:
        known = ", ".join(one.name for one in document.replicas)
        raise CommandRefusedError(f"the set has no replica {name}", next_step=f"name one of {known}")
    if name in presences or name in {member.name for member in document.in_sync}:
        raise CommandRefusedError(
            f"the replica {name} is in sync or present",
            next_step="stop it, and wait until cometmq failover status no longer shows it in sync",
        )
