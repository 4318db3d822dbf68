"""Random histories of a master and its slaves: whichever slave in sync is promoted, it has every acknowledged message.

A history has a log that grows, slaves that copy, freeze, die and come back (also before their old connection ends, also
with an empty disk), and reports that arrive late. The machine of production runs in it; a planted mistake is found.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from cometmq.broker.turn.group_transfer import GroupTransferService
from cometmq.broker.turn.slaves_in_sync import TRANSITIONS, Change, Event, SlavesInSync, State
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock

SLAVES = 3
STEPS = 400
HISTORIES = 300
TIMEOUT_S = 3.0
FALL_BEHIND_MAX = 60
OK = ResponseCode.SUCCESS


class Machine:
    """A slave's machine: the end of its log on disk."""

    def __init__(self) -> None:
        self.end = 0
        self.is_frozen = False
        self.link: Link | None = None


class Link:
    """One connection, which the master believes to be open until it learns otherwise."""

    def __init__(self, slave: Machine) -> None:
        self.slave = slave
        self.begun = False
        self.reports: list[int] = []
        """Reports on their way."""

    def __repr__(self) -> str:
        return f"link {id(self):x}"


class History:
    """One random history; every rule is checked after each step."""

    def __init__(self, seed: int, minimum: int, make: Callable[[int, int], SlavesInSync] = SlavesInSync) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.in_sync = make(minimum, FALL_BEHIND_MAX)
        self.transfers = GroupTransferService(clock=self.clock, timeout_s=TIMEOUT_S, in_sync=self.in_sync)
        self.minimum = minimum
        self.end = 0
        self.slaves = [Machine() for _ in range(SLAVES)]
        self.links: list[Link] = []
        """Those that the master believes to be open."""
        self.acknowledged = 0
        self.waiting: dict[int, float] = {}
        self.answers = {OK: 0, ResponseCode.SLAVE_NOT_AVAILABLE: 0, ResponseCode.FLUSH_SLAVE_TIMEOUT: 0}

    def run(self) -> None:
        actions = [
            (self.send, 30),
            (self.copy, 60),
            (self.report, 60),
            (self.connect, 10),
            (self.freeze, 2),
            (self.break_link, 2),
            (self.end_of_link, 4),
            (self.empty_disk, 1),
            (self.pass_time, 5),
        ]
        names, weights = zip(*actions, strict=True)
        for _ in range(STEPS):
            self.rng.choices(names, weights)[0]()
            self.check()

    # --- what happens ---------------------------------------------------------------------------
    def send(self) -> None:
        self.end += self.rng.choices([1, 5, FALL_BEHIND_MAX], [30, 10, 1])[0]
        position = self.end
        self.waiting[position] = self.clock.monotonic()
        self.transfers.when_replicated(position, lambda code: self.answered(position, code))

    def answered(self, position: int, code: ResponseCode) -> None:
        waited_s = self.clock.monotonic() - self.waiting.pop(position)
        self.answers[code] += 1
        assert waited_s <= TIMEOUT_S + 0.01
        if code != OK:
            return
        having = {link.slave for link in self.links if link.slave.end >= position}
        assert len(having) >= self.minimum or position <= self.acknowledged, "too few slaves have it"
        self.acknowledged = max(self.acknowledged, position)
        self.check()

    def copy(self) -> None:
        slave = self.rng.choice(self.slaves)
        if slave.link is not None and not slave.is_frozen:
            slave.end = min(self.end, slave.end + self.rng.choice([1, 5, 20, 200]))
            slave.link.reports.append(slave.end)

    def freeze(self) -> None:
        slave = self.rng.choice(self.slaves)
        slave.is_frozen = not slave.is_frozen

    def report(self) -> None:
        on_their_way = [link for link in self.links if link.reports]
        if on_their_way:
            link = self.rng.choice(on_their_way)
            self.arrive(link)

    def arrive(self, link: Link) -> None:
        end = link.reports.pop(0)
        if not link.begun:
            link.begun = True
            self.transfers.marked(self.end)
            for other in self.links:  # all machines have one address
                if other is not link:
                    self.transfers.doubt(other, self.end)
        self.transfers.reported(link, end)

    def connect(self) -> None:
        slave = self.rng.choice(self.slaves)
        if slave.link is None:
            slave.link = Link(slave)
            slave.link.reports.append(slave.end)
            self.links.append(slave.link)

    def break_link(self) -> None:
        """The slave's side ends; the master does not know yet, and reports may still arrive."""
        self.rng.choice(self.slaves).link = None

    def end_of_link(self) -> None:
        dead = [link for link in self.links if link.slave.link is not link]
        if dead:
            link = self.rng.choice(dead)
            self.links.remove(link)
            self.transfers.remove_slave(link)

    def empty_disk(self) -> None:
        """A slave loses its disk; the master learns of the end of its connection before the slave comes back."""
        slave = self.rng.choice(self.slaves)
        for link in [link for link in self.links if link.slave is slave]:
            self.links.remove(link)
            self.transfers.remove_slave(link)
        slave.link, slave.end = None, 0

    def pass_time(self) -> None:
        self.clock.advance(self.rng.choice([0.1, 0.5, 1.0, 2.0]))
        self.transfers.marked(self.end)

    # --- what is always so ----------------------------------------------------------------------
    def check(self) -> None:
        for link in self.links:
            if self.in_sync.state_of(link) is State.IN_SYNC:
                assert link.slave.end >= self.acknowledged, "a slave in sync lacks an acknowledged message"
        now = self.clock.monotonic()
        stalled_s = max((now - since for since in self.waiting.values()), default=0.0)
        assert stalled_s <= TIMEOUT_S + 0.01
        in_sync = self.in_sync.slaves_in_sync
        if stalled_s > TIMEOUT_S * 2 / 3 + 0.01 and not self.in_sync.waited_for:
            assert self.minimum, "a master that needs no slave never waits without one"
        assert 0 <= in_sync <= self.in_sync.waited_for <= self.in_sync.connected


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A history logs a lot."""
    caplog.set_level("ERROR", "cometmq.broker.turn.group_transfer")


@pytest.mark.parametrize("minimum", [0, 1, 2])
def test_in_no_history_does_a_slave_in_sync_lack_what_was_acknowledged(minimum: int) -> None:
    totals = dict.fromkeys(ResponseCode, 0)
    removals = 0
    for seed in range(HISTORIES):
        history = History(seed, minimum)
        history.run()
        removals += history.in_sync.removals
        for code, count in history.answers.items():
            totals[code] += count
    assert totals[OK] > 2_000, "the histories acknowledge messages"
    assert removals > 200, "slaves fall out of sync"
    assert bool(totals[ResponseCode.SLAVE_NOT_AVAILABLE]) == bool(minimum)


# --- planted mistakes ---------------------------------------------------------------------------
class AnySlaveIsEnough(SlavesInSync):
    """RocketMQ's rule without a controller: as many slaves as required, whichever."""

    def _confirm(self) -> None:
        ends = sorted((slave.end for slave in self._slaves.values()), reverse=True)
        if len(ends) >= self.minimum:
            self.confirmed = max(self.confirmed, ends[self.minimum - 1] if self.minimum else self._end)


class JoinsWithoutBeingWaitedFor(SlavesInSync):
    """A slave is in sync once it is close."""

    def reported(self, name: object, slave_end: int) -> None:
        super().reported(name, slave_end)
        slave = self._slaves[name]
        if slave.state is State.JOINING:
            slave.state = State.IN_SYNC


class StaysWhateverItLacks(SlavesInSync):
    """Sends stop waiting for a slave that is late, and it is still said to be in sync."""

    def waited(self, position: int, *, if_enough: bool = False) -> None:
        self.confirmed = max(self.confirmed, position)


class CountsTwice(SlavesInSync):
    """Two connections of one slave are two slaves."""

    def doubted(self, name: object, sent: int) -> None:
        pass


@pytest.mark.parametrize("mistake", [AnySlaveIsEnough, JoinsWithoutBeingWaitedFor, StaysWhateverItLacks, CountsTwice])
def test_a_planted_mistake_is_found(mistake: type[SlavesInSync]) -> None:
    def run_until_it_is_found() -> None:
        for seed in range(HISTORIES):
            for minimum in (0, 1, 2):
                History(seed, minimum, mistake).run()

    with pytest.raises(AssertionError, match=r"lacks an acknowledged message|too few slaves have it"):
        run_until_it_is_found()


# --- the table ----------------------------------------------------------------------------------
def test_every_state_has_a_way_out_and_a_way_back() -> None:
    for state in State:
        assert any(before is state for before, _ in TRANSITIONS)
        assert state in TRANSITIONS.values()


def states_after(*events: Callable[[SlavesInSync], None]) -> list[State | None]:
    in_sync = SlavesInSync(minimum=0, fall_behind_max=100)
    in_sync.marked(1_000)
    states: list[State | None] = []
    for event in events:
        event(in_sync)
        states.append(in_sync.state_of("slave"))
    return states


def test_a_slave_catches_up_joins_and_is_in_sync() -> None:
    assert states_after(
        lambda it: it.reported("slave", 0),
        lambda it: it.reported("slave", 999),
        lambda it: it.stored(1_050),
        lambda it: it.reported("slave", 1_001),
        lambda it: it.stored(1_060),
        lambda it: it.reported("slave", 1_049),
        lambda it: it.reported("slave", 1_050),
        lambda it: it.removed("slave"),
    ) == [
        State.CATCHING_UP,
        State.CATCHING_UP,
        State.CATCHING_UP,
        State.JOINING,  # it has all that was stored until the last mark
        State.JOINING,
        State.JOINING,
        State.IN_SYNC,  # 1,050 was confirmed by the master alone when it began to join
        None,
    ]


@pytest.mark.parametrize(
    ("event", "happens"),
    [
        (Event.BEHIND, lambda it: it.stored(1_100)),
        (Event.LATE, lambda it: it.waited(1_001)),
        (Event.SHORTER, lambda it: it.reported("slave", 0)),
    ],
)
def test_a_slave_falls_out_of_sync(event: Event, happens: Callable[[SlavesInSync], None]) -> None:
    in_sync = SlavesInSync(minimum=0, fall_behind_max=100)
    in_sync.marked(1_000)
    in_sync.reported("slave", 1_000)
    in_sync.stored(1_001)
    in_sync.take_changes()
    happens(in_sync)
    assert in_sync.take_changes() == [Change("slave", State.IN_SYNC, State.CATCHING_UP, event)]
    assert in_sync.removals == 1
    assert in_sync.waited_for == 0


def test_a_slave_that_is_required_is_given_the_whole_time() -> None:
    in_sync = SlavesInSync(minimum=2, fall_behind_max=100)
    for name in ("a", "b", "c"):
        in_sync.reported(name, 0)
    in_sync.stored(10)
    in_sync.reported("a", 10)
    in_sync.waited(10, if_enough=True)
    assert in_sync.slaves_in_sync == 3, "without both late ones there are too few"
    in_sync.reported("b", 10)
    in_sync.waited(10, if_enough=True)
    assert in_sync.state_of("c") is State.CATCHING_UP
    assert in_sync.confirmed == 10
