"""A random walk over the rules by which three replicas elect a master without losing an acknowledged record.

    python -m tests.failover_model.model --seconds 600 [--fault any ...]

The replicas share one document that changes by compare-and-swap only: the epoch, its master, and its in-sync set. The
walk loses and delays requests and answers of the swaps, delays reports, kills replicas (also between an election and
office), cuts their power, and lets a replica stand for election at any moment: no lease and no clock is trusted.

The rules are these.

* A record is acknowledged once every member of the confirmed set, and of the set of a change that is not decided yet,
  has reported it.
* Only a member of the confirmed set stands for election. Before it stands, it stops following: it appends nothing and
  reports nothing of older epochs.
* A master never resumes an epoch in which it has served: its log contains a marker of that epoch. It stands again.
* A member is a replica and a generation. A replica that may have lost bytes begins a new generation, so that a change
  which is still on its way for the old one does not make it eligible.
* A swap whose answer is lost is asked again with the same comparison, and both sets count until the version moves.
* A master that is alone flushes before it acknowledges.

Whoever takes office has every acknowledged record at its place, and two acknowledged records never have one place.
Every rule has a fault that leaves it out, which the walk finds: a model that finds nothing proves nothing.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from enum import Enum
from itertools import count, takewhile
from typing import Final, NamedTuple

REPLICAS: Final = 3
STEPS: Final = 3_000

Member = tuple[int, int]
"""Replica and generation."""
MemberSet = frozenset[Member]
MARKER: Final = 0


class Fault(Enum):
    """A rule that is left out."""

    ANY = "any"
    """One slave's report is enough, whichever."""
    UNION = "union"
    """Only the set of the change counts while it is not decided."""
    LATE = "late"
    """The document has a new member before the master waits for it."""
    REREAD = "reread"
    """A swap whose answer is lost counts as lost when the old version is read."""
    RESUME = "resume"
    """A master that was restarted resumes its epoch."""
    UNCLEAN = "unclean"
    """A replica that has lost bytes keeps its generation."""
    NO_FLUSH = "no flush"
    """A master that is alone acknowledges what it has not flushed."""


class BrokenRuleError(AssertionError):
    """An acknowledged record is lost."""


class Record(NamedTuple):
    epoch: int
    number: int
    """Number of the message, or ``MARKER`` for the record with which an epoch begins."""


class Document(NamedTuple):
    epoch: int
    master: Member | None
    in_sync: MemberSet


class Swap(NamedTuple):
    """A request to the engine that is on its way."""

    replica: int
    life: int
    version: int
    document: Document


class Report(NamedTuple):
    """A slave's report that is on its way."""

    member: Member
    master: int
    life: int
    epoch: int
    end: int


@dataclass
class Memory:
    """What a process knows and a restart loses."""

    is_master: bool = False
    epoch: int = 0
    master: Member | None = None
    is_linked: bool = False
    confirmed: MemberSet = frozenset()
    pending: MemberSet | None = None
    """The set of a change that is not decided yet."""
    version: int = -1
    """The version of the document that was read last."""
    asked: int = -1
    """The version that the last swap has compared."""
    wanted: int | None = None
    """The epoch for which it stands."""
    ends: dict[Member, int] = field(default_factory=dict)
    start: int = 0
    """The place of the marker of the epoch that it serves."""


class Replica:
    """One replica: its disk, and the memory of its process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.log: list[Record] = []
        self.flushed = 0
        self.generation = 0
        self.is_solid = False
        """Every acknowledged record is flushed here; set again before an acknowledgement needs it."""
        self.is_up = True
        self.life = 0
        self.memory = Memory()

    def start(self) -> None:
        """Start with what the disk has."""
        self.is_up = True
        self.life += 1
        self.memory = Memory(epoch=max((record.epoch for record in self.log), default=0))

    @property
    def member(self) -> Member:
        return self.number, self.generation

    @property
    def required(self) -> MemberSet:
        """Everybody whose report an acknowledgement needs."""
        return self.memory.confirmed | (self.memory.pending or frozenset())


@dataclass(frozen=True)
class Totals:
    """What the walks did."""

    walks: int = 0
    acknowledged: int = 0
    elections: int = 0
    power_losses: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.walks + other.walks,
            self.acknowledged + other.acknowledged,
            self.elections + other.elections,
            self.power_losses + other.power_losses,
        )


class World:
    """Three replicas, the engine with the document, and what is on its way between them."""

    def __init__(self, seed: int, faults: frozenset[Fault] = frozenset()) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.replicas = [Replica(number) for number in range(REPLICAS)]
        self.document = Document(0, None, frozenset((number, 0) for number in range(REPLICAS)))
        self.version = 0
        self.swaps: list[Swap] = []
        self.reports: list[Report] = []
        self.acknowledged: dict[int, Record] = {}
        self.sent = MARKER
        self.elections = self.power_losses = 0

    def walk(self) -> Totals:
        """Do a walk's steps.

        :raises BrokenRuleError: an acknowledged record is lost.
        """
        for _ in range(STEPS):
            self.step()
        return Totals(1, len(self.acknowledged), self.elections, self.power_losses)

    def step(self) -> None:
        """Let something happen to one of the replicas."""
        replica = self.rng.choice(self.replicas)
        chance = self.rng.random()
        if not replica.is_up:
            if chance < 0.3:
                replica.start()
        elif chance < 0.02:
            replica.is_up = False  # SIGKILL
        elif chance < 0.026:
            self.lose_power(replica)
        elif chance < 0.07:
            replica.flushed = len(replica.log)
        elif chance < 0.18:
            self.read(replica)
        elif chance < 0.32:
            self.let_the_engine_work()
        elif replica.memory.is_master:
            self.serve(replica, chance)
        elif chance < 0.37:
            self.stand(replica)
        else:
            self.follow(replica, chance)

    # --- the engine -----------------------------------------------------------------------------
    def ask(self, replica: Replica, document: Document) -> None:
        memory = replica.memory
        memory.asked = memory.version
        self.swaps.append(Swap(replica.number, replica.life, memory.version, document))

    def let_the_engine_work(self) -> None:
        if not self.swaps:
            return
        swap = self.swaps.pop(self.rng.randrange(len(self.swaps)))
        chance = self.rng.random()
        if chance < 0.1:
            return  # the request is lost
        if swap.version == self.version:
            self.document = swap.document
            self.version += 1
        replica = self.replicas[swap.replica]
        if chance <= 0.8 and replica.is_up and replica.life == swap.life:  # else the answer is lost
            self.read(replica)

    def read(self, replica: Replica) -> None:
        """A replica reads the document."""
        document, memory = self.document, replica.memory
        memory.version = self.version
        if document.epoch > memory.epoch or document.epoch == memory.wanted:
            self.learn_an_epoch(replica)
        elif memory.is_master and document.epoch == memory.epoch:
            self.learn_a_set(replica)
        elif memory.wanted is not None:
            if self.version != memory.asked:
                memory.wanted = None  # its own swap cannot land any more
        elif not memory.is_master and document.master == replica.member and Fault.RESUME in self.faults:
            self.take_office(replica)
        if not replica.memory.is_master and replica.memory.wanted is None:
            replica.memory.master = document.master

    def learn_an_epoch(self, replica: Replica) -> None:
        document, memory = self.document, replica.memory
        has_served = any(record.epoch == document.epoch for record in replica.log)
        memory.epoch, memory.master = document.epoch, document.master
        memory.is_linked, memory.wanted = False, None
        if document.master == replica.member and not has_served:
            self.take_office(replica)
        else:
            memory.is_master = False
            memory.confirmed, memory.pending = frozenset(), None

    def learn_a_set(self, replica: Replica) -> None:
        memory = replica.memory
        if memory.pending is None or self.version != memory.asked or Fault.REREAD in self.faults:
            memory.confirmed, memory.pending = self.document.in_sync, None
        else:  # the swap may still land: the same comparison again, and both sets count
            self.ask(replica, Document(memory.epoch, replica.member, memory.pending))

    # --- a master -------------------------------------------------------------------------------
    def take_office(self, replica: Replica) -> None:
        log, memory = replica.log, replica.memory
        for place, record in self.acknowledged.items():
            if place >= len(log) or log[place] != record:
                raise BrokenRuleError(
                    f"epoch {self.document.epoch}: replica {replica.number} takes office without record {record}, "
                    f"which was acknowledged at place {place}"
                )
        memory.is_master = True
        memory.confirmed, memory.pending, memory.ends = self.document.in_sync, None, {}
        memory.start = len(log)
        log.append(Record(self.document.epoch, MARKER))
        replica.is_solid = False
        self.elections += 1

    def serve(self, replica: Replica, chance: float) -> None:
        memory = replica.memory
        if chance < 0.50:
            self.sent += 1
            replica.log.append(Record(memory.epoch, self.sent))
        elif chance < 0.62:
            self.acknowledge(replica)
        elif memory.pending is not None:
            return
        elif chance < 0.68:
            kept = frozenset(one for one in memory.confirmed if one == replica.member or self.rng.random() < 0.6)
            if kept != memory.confirmed:
                self.change(replica, kept)
        elif chance < 0.80:
            self.expand(replica)

    def expand(self, replica: Replica) -> None:
        """Ask for a replica that has caught up to be added."""
        memory = replica.memory
        confirmed = self.confirmed_end(replica)
        for member, end in memory.ends.items():
            if member not in memory.confirmed and end >= confirmed and end > memory.start:
                others = frozenset(one for one in memory.confirmed if one[0] != member[0])
                self.change(replica, others | {member})
                return

    def change(self, replica: Replica, members: MemberSet) -> None:
        replica.memory.pending = members
        self.ask(replica, Document(replica.memory.epoch, replica.member, members))
        if Fault.LATE in self.faults:
            replica.memory.pending = None

    def confirmed_end(self, replica: Replica) -> int:
        """The place up to which everybody who is required has the log."""
        memory = replica.memory
        required = replica.required
        if Fault.UNION in self.faults and memory.pending is not None:
            required = memory.pending
        others = required - {replica.member}
        if Fault.ANY in self.faults:
            ends = (end for member, end in memory.ends.items() if member != replica.member)
            return max(ends, default=0) if others else len(replica.log)
        return min([len(replica.log), *(memory.ends.get(member, 0) for member in others)])

    def acknowledge(self, replica: Replica) -> None:
        end = self.confirmed_end(replica)
        replica.is_solid = replica.required == {replica.member}
        if replica.is_solid and Fault.NO_FLUSH not in self.faults:
            replica.flushed = len(replica.log)
        for place in range(replica.memory.start, end):
            record = replica.log[place]
            if record.number != MARKER and self.acknowledged.setdefault(place, record) != record:
                raise BrokenRuleError(f"two records were acknowledged at place {place}")

    # --- a slave --------------------------------------------------------------------------------
    def stand(self, replica: Replica) -> None:
        """A member of the set stands for election, whenever it likes."""
        document, memory = self.document, replica.memory
        if memory.wanted is not None:
            return
        memory.version = self.version
        if replica.member not in document.in_sync or document.epoch < memory.epoch:
            return
        memory.epoch, memory.is_linked, memory.wanted = document.epoch, False, document.epoch + 1
        others = {
            other.member
            for other in self.replicas
            if other is not replica and other.is_up and other.member in document.in_sync and self.rng.random() < 0.5
        }
        self.ask(replica, Document(document.epoch + 1, replica.member, frozenset(others | {replica.member})))

    def follow(self, replica: Replica, chance: float) -> None:
        memory = replica.memory
        master = None if memory.master is None else self.replicas[memory.master[0]]
        if master is not None and memory.wanted is None and self.serves(master, memory.epoch):
            replica.is_solid = False
            if not memory.is_linked:
                self.cut(replica, master)
            elif chance < 0.75:
                at = len(replica.log)
                replica.log += master.log[at : at + self.rng.randrange(1, 4)]
            else:
                self.reports.append(Report(replica.member, master.number, master.life, memory.epoch, len(replica.log)))
        if self.reports and chance > 0.5:
            self.take_a_report()

    def serves(self, master: Replica, epoch: int) -> bool:
        return master.is_up and master.memory.is_master and master.memory.epoch == epoch

    def cut(self, replica: Replica, master: Replica) -> None:
        """Remove what is not the master's."""
        pairs = zip(replica.log, master.log, strict=False)
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        del replica.log[common:]
        replica.flushed = min(replica.flushed, common)
        replica.memory.is_linked = True

    def take_a_report(self) -> None:
        report = self.reports.pop(self.rng.randrange(len(self.reports)))
        master = self.replicas[report.master]
        if master.life == report.life and self.serves(master, report.epoch):
            ends = master.memory.ends
            ends[report.member] = max(ends.get(report.member, 0), report.end)

    # --- accidents ------------------------------------------------------------------------------
    def lose_power(self, replica: Replica) -> None:
        """What was not flushed is gone."""
        replica.is_up = False
        self.power_losses += 1
        del replica.log[replica.flushed :]
        if not replica.is_solid and Fault.UNCLEAN not in self.faults:
            replica.generation += 1


def main() -> None:
    """Walk for some time, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--fault", action="append", default=[], choices=[fault.value for fault in Fault])
    options = parser.parse_args()
    faults = frozenset(map(Fault, options.fault))
    totals, end = Totals(), time.monotonic() + options.seconds
    for seed in count(options.seed):
        try:
            totals += World(seed, faults).walk()
        except BrokenRuleError as error:
            raise SystemExit(f"seed {seed}: {error}") from error
        if time.monotonic() >= end:
            break
    print(totals)


if __name__ == "__main__":
    main()
