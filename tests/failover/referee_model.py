"""A model of the failover protocol, without time: a random walk over three replicas and one document.

Messages are late or lost, processes are killed (also between election and office), machines lose power, and candidates
stand at any moment: no lease is trusted. Whoever takes office must hold every acknowledged record at its place.

``faults`` leave out a rule: ``any`` (one report is enough), ``union`` (only the new set counts), ``late`` (the document
grows before the master asks the new member), ``reread`` (reading the old version settles a swap), ``resume`` (a
restarted master resumes its epoch), ``unclean`` (a loss of power keeps the generation), ``noflush`` (a lonely member
does not flush).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

COUNT = 3
STEPS = 3_000
FAULTS = ("any", "union", "late", "reread", "resume", "unclean", "noflush")

Member = tuple[int, int]
Entry = tuple[int, int]
"""An epoch and a number; a marker has number 0."""


@dataclass(frozen=True)
class Document:
    epoch: int
    master: Member | None
    in_sync: frozenset[Member]


@dataclass
class Replica:
    number: int
    log: list[Entry] = field(default_factory=list)
    flushed: int = 0
    generation: int = 0
    is_solid: bool = False
    is_up: bool = True
    incarnation: int = 0

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Lose what a process knows."""
        self.incarnation += 1
        self.is_master = False
        self.epoch = max((epoch for epoch, _ in self.log), default=0)
        self.master: Member | None = None
        self.is_linked = False
        self.confirmed: frozenset[Member] = frozenset()
        self.pending: frozenset[Member] | None = None
        self.version = -1
        self.reports: dict[Member, int] = {}
        self.start = 0
        self.wanted_epoch = 0
        self.asked = -1

    @property
    def me(self) -> Member:
        return self.number, self.generation


class Walk:
    """One random walk.

    :raises AssertionError: an acknowledged record is lost.
    """

    def __init__(self, seed: int, faults: frozenset[str] = frozenset()) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.replicas = [Replica(number) for number in range(COUNT)]
        self.version = 0
        self.document = Document(0, None, frozenset((number, 0) for number in range(COUNT)))
        self.swaps: list[tuple[Replica, int, int, Document]] = []
        self.reports: list[tuple[Member, Replica, int, int, int]] = []
        self.acknowledged: dict[int, Entry] = {}
        self.number = self.elections = self.losses = 0

    def run(self, steps: int = STEPS) -> None:
        """Take steps."""
        for _ in range(steps):
            self.step()

    # --- the engine ---------------------------------------------------------------------------------
    def swap(self, replica: Replica, document: Document) -> None:
        self.swaps.append((replica, replica.incarnation, replica.version, document))

    def execute(self) -> None:
        """Execute one of the swaps that are on their way, or lose it or its answer."""
        if not self.swaps:
            return
        replica, incarnation, version, document = self.swaps.pop(self.rng.randrange(len(self.swaps)))
        luck = self.rng.random()
        if luck < 0.1:
            return
        if version == self.version:
            self.document = document
            self.version += 1
        if luck <= 0.8 and replica.is_up and replica.incarnation == incarnation:
            self.learn(replica)

    def learn(self, replica: Replica) -> None:
        """Read the document."""
        document = self.document
        replica.version = self.version
        is_won = replica.wanted_epoch != 0 and document.epoch == replica.wanted_epoch
        if document.epoch > replica.epoch or is_won:
            has_served = any(epoch == document.epoch for epoch, _ in replica.log)
            replica.epoch, replica.master = document.epoch, document.master
            replica.is_linked, replica.wanted_epoch = False, 0
            if document.master == replica.me and not has_served:
                self.take_office(replica)
            else:
                replica.is_master, replica.pending = False, None
        elif replica.is_master and document.epoch == replica.epoch:
            self.settle(replica)
        elif replica.wanted_epoch:
            if self.version != replica.asked:
                replica.wanted_epoch = 0
        elif not replica.is_master and document.master == replica.me and "resume" in self.faults:
            self.take_office(replica)
        if not replica.is_master and not replica.wanted_epoch:
            replica.master = document.master

    def settle(self, replica: Replica) -> None:
        """Both sets count until the version has moved; until then the same swap is sent again."""
        if replica.pending is None or self.version != replica.asked or "reread" in self.faults:
            replica.confirmed, replica.pending = self.document.in_sync, None
        else:
            self.swap(replica, Document(replica.epoch, replica.me, replica.pending))

    def take_office(self, replica: Replica) -> None:
        for at, entry in self.acknowledged.items():
            assert at < len(replica.log), f"epoch {self.document.epoch}: {replica.number} lacks {entry} at {at}"
            assert replica.log[at] == entry, f"epoch {self.document.epoch}: {replica.number} has another record at {at}"
        replica.is_master, replica.is_solid = True, False
        replica.confirmed, replica.pending, replica.reports = self.document.in_sync, None, {}
        replica.start = len(replica.log)
        replica.log.append((self.document.epoch, 0))
        self.elections += 1

    # --- steps --------------------------------------------------------------------------------------
    def step(self) -> None:
        replica = self.replicas[self.rng.randrange(COUNT)]
        luck = self.rng.random()
        if not replica.is_up:
            if luck < 0.3:
                replica.is_up = True
                replica.forget()
        elif luck < 0.026:
            self.fail(replica, has_power=luck < 0.02)
        elif luck < 0.07:
            replica.flushed = len(replica.log)
        elif luck < 0.18:
            self.learn(replica)
        elif luck < 0.32:
            self.execute()
        elif replica.is_master:
            self.lead(replica, luck)
        elif luck < 0.37 and not replica.wanted_epoch:
            self.stand(replica)
        else:
            self.follow(replica, luck)

    def fail(self, replica: Replica, *, has_power: bool) -> None:
        replica.is_up = False
        if not has_power:
            self.losses += 1
            del replica.log[replica.flushed :]
            if not replica.is_solid and "unclean" not in self.faults:
                replica.generation += 1

    def lead(self, replica: Replica, luck: float) -> None:
        if luck < 0.50:
            self.number += 1
            replica.log.append((replica.epoch, self.number))
        elif luck < 0.62:
            self.acknowledge(replica)
        elif replica.pending is not None or luck >= 0.80:
            return
        elif luck < 0.68:
            stays = frozenset(one for one in replica.confirmed if one == replica.me or self.rng.random() < 0.6)
            if stays != replica.confirmed:
                self.change(replica, stays)
        else:
            confirmed = self.confirmed_end(replica)
            for member, end in replica.reports.items():
                if member not in replica.confirmed and end >= confirmed and end > replica.start:
                    self.change(replica, frozenset(x for x in replica.confirmed if x[0] != member[0]) | {member})
                    break

    def stand(self, replica: Replica) -> None:
        document = self.document
        replica.version = self.version
        if replica.me not in document.in_sync or document.epoch < replica.epoch:
            return
        replica.epoch, replica.is_linked = document.epoch, False
        replica.wanted_epoch, replica.asked = document.epoch + 1, self.version
        others = {
            one.me for one in self.replicas if one.is_up and one.me in document.in_sync and self.rng.random() < 0.5
        }
        self.swap(replica, Document(replica.wanted_epoch, replica.me, frozenset(others | {replica.me})))

    def follow(self, replica: Replica, luck: float) -> None:
        master = self.replicas[replica.master[0]] if replica.master is not None else None
        is_there = master is not None and master.is_up and master.is_master and master.epoch == replica.epoch
        if not replica.wanted_epoch and master is not None and is_there:
            replica.is_solid = False
            if not replica.is_linked:
                same = 0
                while same < min(len(replica.log), len(master.log)) and replica.log[same] == master.log[same]:
                    same += 1
                del replica.log[same:]
                replica.flushed = min(replica.flushed, same)
                replica.is_linked = True
            elif luck < 0.75:
                replica.log += master.log[len(replica.log) : len(replica.log) + self.rng.randrange(1, 4)]
            else:
                self.reports.append((replica.me, master, master.incarnation, replica.epoch, len(replica.log)))
        if self.reports and luck > 0.5:
            member, to, incarnation, epoch, end = self.reports.pop(self.rng.randrange(len(self.reports)))
            if to.is_up and to.incarnation == incarnation and to.is_master and to.epoch == epoch:
                to.reports[member] = max(to.reports.get(member, 0), end)

    # --- the in-sync set ----------------------------------------------------------------------------
    def change(self, replica: Replica, in_sync: frozenset[Member]) -> None:
        replica.pending, replica.asked = in_sync, replica.version
        self.swap(replica, Document(replica.epoch, replica.me, in_sync))
        if "late" in self.faults:
            replica.pending = None

    def counted(self, replica: Replica) -> frozenset[Member]:
        if replica.pending is None:
            return replica.confirmed
        return replica.pending if "union" in self.faults else replica.confirmed | replica.pending

    def confirmed_end(self, replica: Replica) -> int:
        others = self.counted(replica) - {replica.me}
        if "any" in self.faults:
            ends = [end for member, end in replica.reports.items() if member != replica.me]
            return max(ends, default=0) if others else len(replica.log)
        return min([len(replica.log), *(replica.reports.get(member, 0) for member in others)])

    def acknowledge(self, replica: Replica) -> None:
        confirmed = self.confirmed_end(replica)
        is_alone = self.counted(replica) == {replica.me}
        if is_alone and "noflush" not in self.faults:
            replica.flushed = len(replica.log)
        replica.is_solid = is_alone
        for at in range(replica.start, confirmed):
            entry = replica.log[at]
            if entry[1]:
                assert self.acknowledged.setdefault(at, entry) == entry, "two acknowledged records at one place"
