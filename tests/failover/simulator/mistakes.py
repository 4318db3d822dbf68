"""Planted mistakes: each leaves out one rule. The simulator must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from tests.failover.simulator import node as node_module
from tests.failover.simulator.faults import Rates

from cometmq.broker.failover import candidate as candidate_module
from cometmq.broker.failover import events as e
from cometmq.broker.failover import machine as machine_module
from cometmq.broker.failover.document import Document, Member
from cometmq.broker.failover.engine_view import EngineView
from cometmq.broker.failover.engines.interface import Guard
from cometmq.broker.failover.history import History
from cometmq.broker.failover.identity import Identity, next_identity
from cometmq.broker.failover.in_sync import InSyncSet
from cometmq.broker.failover.machine import MemberMachine
from cometmq.broker.failover.solid import SolidMark
from cometmq.broker.failover.states import State


@dataclass(frozen=True)
class Mistake:
    """A rule that is left out.

    :param rule: the number of the rule in ``check.py``.
    :param patches: object, attribute and replacement.
    :param rates: faults among which the mistake shows soon; by default those of the seed.
    :param first_seed: that of the history to begin with, which has shown the mistake before.
    """

    rule: int
    what: str
    patches: tuple[tuple[Any, str, Any], ...]
    rates: Rates | None = None
    first_seed: int = 1


@contextmanager
def made(mistake: Mistake | None) -> Iterator[None]:
    """Make a mistake during the ``with`` block."""
    with ExitStack() as stack:
        for target, name, value in () if mistake is None else mistake.patches:
            stack.enter_context(patch.object(target, name, value))
        yield


# --- rule 1 -----------------------------------------------------------------------------------------
def _any_confirmed_end(self: InSyncSet, own_end: int) -> int:
    ends = [self.end_of(member) for member in self.counted if member != self._me]
    self._confirmed_end = max(self._confirmed_end, min(own_end, max(ends)) if ends else own_end)
    return self._confirmed_end


def _late_count(self: InSyncSet) -> frozenset[Member]:
    return self.confirmed


def _early_count(self: InSyncSet) -> frozenset[Member]:
    return self.pending if self.pending is not None else self.confirmed | self.joining


# --- rule 2 -----------------------------------------------------------------------------------------
def _stranger_suspect(self: MemberMachine, document: Document) -> None:
    if self.link.is_silent(self._now) or self.link.is_refused:
        self._freeze("the master is silent")


def _never_frozen(self: MemberMachine, epoch: int) -> bool:
    return epoch == self.epoch and self.link.is_connected


def _keeps_link(self: node_module.Node, _: e.Freeze) -> None:
    self.later(0.01, self.frozen)


# --- rule 3 -----------------------------------------------------------------------------------------
def _no_guard(*_: object, **__: object) -> Guard | None:
    return None


def _hasty_suspects(*args: Any, is_silent: bool, **_: object) -> str:
    return "the master is silent" if is_silent else ""


_learn: Final = EngineView.learn


def _obstinate_learn(self: EngineView, number: int, document: Document | None, version: str) -> bool | None:
    pending = self.pending
    has_moved = _learn(self, number, document, version)
    if pending is not None and self.pending is None and document != pending.document:
        self.pending = pending
        pending.version, pending.number, pending.retry_at = version, 0, 0.0
    return has_moved


# --- rules 4 and 5 ----------------------------------------------------------------------------------
def _reads_all(self: MemberMachine) -> int:
    return self.log.end


def _any_epoch(self: MemberMachine, event: e.Reported) -> None:
    if self.in_sync is not None:
        self.in_sync.reported(event.member, event.end, self.log.end, self._now)


def _deaf(self: MemberMachine, epoch: int) -> None:
    return


# --- rule 6 -----------------------------------------------------------------------------------------
_enter: Final = MemberMachine._enter


def _resuming_enter(self: MemberMachine, document: Document) -> None:
    if document.master == self.me and self.state is State.STARTING:
        self.log = replace(self.log, last_epoch=0)
    _enter(self, document)


def _same_generation(saved: Identity | None, boot_id: str, first_generation: int | None = None) -> Identity:
    identity = next_identity(saved, boot_id, first_generation)
    return identity if saved is None else replace(identity, generation=saved.generation)


def _counted_generation(saved: Identity | None, boot_id: str, _: int | None = None) -> Identity:
    return next_identity(saved, boot_id, 0)


def _counts_unflushed(self: SolidMark, *, is_alone: bool) -> bool:
    return False


def _hasty_settle(self: SolidMark, log: e.LogState, *, is_alone: bool) -> list[e.SaveIdentity]:
    return SETTLE(self, replace(log, flushed=log.end), is_alone=is_alone)


SETTLE: Final[Callable[..., list[e.SaveIdentity]]] = SolidMark.settle


def _shorter_end(mine: History, masters: History) -> int:
    return min(mine.end, masters.end)


# --- rule 7 -----------------------------------------------------------------------------------------
def _rereading_learn(self: EngineView, number: int, document: Document | None, version: str) -> bool | None:
    has_moved = _learn(self, number, document, version)
    if self.pending is not None and not self.pending.number and has_moved is False:
        self.pending = None
        return True
    return has_moved


MISTAKES: Final = {
    "any": Mistake(1, "one report is enough", ((InSyncSet, "confirmed_end", _any_confirmed_end),)),
    "late": Mistake(1, "a new member counts once the document has it", ((InSyncSet, "_needed", _late_count),)),
    "stranger": Mistake(2, "a learner stands", ((MemberMachine, "_suspect", _stranger_suspect),)),
    "unfrozen": Mistake(
        2,
        "a candidate goes on following",
        ((MemberMachine, "copies", _never_frozen), (node_module.Node, "do_Freeze", _keeps_link)),
    ),
    "hasty": Mistake(
        3,
        "an election does not look at the lease",
        ((candidate_module, "suspects", _hasty_suspects), (candidate_module, "guard_for", _no_guard)),
    ),
    "obstinate": Mistake(3, "a swap that has lost is sent anew", ((EngineView, "learn", _obstinate_learn),)),
    "reads": Mistake(4, "consumers read to the end", ((MemberMachine, "readable", property(_reads_all)),)),
    "epochs": Mistake(
        5,
        "reports of other epochs count",
        ((MemberMachine, "_on_reported", _any_epoch),),
        Rates(echo_share=0.7, kill_master=6, slow_disk=6, power=2, cut=4),
        261,
    ),
    "deaf": Mistake(
        5,
        "a higher epoch is ignored",
        ((MemberMachine, "_see", _deaf),),
        Rates(cut_engine=6, cut=6, pause=4),
    ),
    "resume": Mistake(6, "a restarted master resumes its epoch", ((MemberMachine, "_enter", _resuming_enter),)),
    "unclean": Mistake(6, "a loss of power keeps the generation", ((node_module, "next_identity", _same_generation),)),
    "counted": Mistake(6, "an empty store has generation 1", ((node_module, "next_identity", _counted_generation),)),
    "noflush": Mistake(
        6,
        "a lonely member says solid before it has flushed",
        ((SolidMark, "counts_flushed", _counts_unflushed), (SolidMark, "settle", _hasty_settle)),
    ),
    "length": Mistake(6, "a returning master cuts by length only", ((machine_module, "common_end", _shorter_end),)),
    "union": Mistake(7, "only the new set counts", ((InSyncSet, "_needed", _early_count),)),
    "reread": Mistake(
        7,
        "reading the old version settles a swap",
        ((EngineView, "learn", _rereading_learn),),
        Rates(late_share=0.3, cut=6, kill=3),
        187,
    ),
}
