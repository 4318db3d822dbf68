"""Waiters for slaves get one answer: in order, in time, and never that a slave has bytes that none has reported."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cometmq.broker.turn.group_transfer import GroupTransferService, InSync
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock

TIMEOUT_S = 3.0
FALL_BEHIND_MAX = 1_000


class GroupTransfers(RuleBasedStateMachine):
    """A log that grows, slaves that come, report and go, and a turn that waits after each growth."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.end = 0
        self.numbers = count()
        self.slaves: dict[int, int] = {}
        """The end of each slave's log."""
        self.doubtful: set[int] = set()
        self.had: dict[int, int] = {}
        """The furthest position that so many slaves had."""
        self.answers: dict[int, ResponseCode] = {}
        self.waiting: dict[int, tuple[float, int]] = {}
        """Position → when its time is up, and the slaves that it waits for."""
        self.expected: dict[int, ResponseCode] = {}

    @initialize(replicas=st.integers(1, 4), adapts=st.booleans(), least=st.integers(1, 3))
    def configure(self, replicas: int, adapts: bool, least: int) -> None:
        self.in_sync = InSync(replicas, adapts, least)
        self.transfers = GroupTransferService(
            clock=self.clock, timeout_s=TIMEOUT_S, fall_behind_max=FALL_BEHIND_MAX, in_sync=self.in_sync
        )

    @rule(size=st.sampled_from([1, 10, FALL_BEHIND_MAX - 1, FALL_BEHIND_MAX, 5_000]))
    def store_and_wait(self, size: int) -> None:
        self.end += size
        position = self.end
        near = len([1 for end in self.slaves.values() if position - end < FALL_BEHIND_MAX])
        needed = self.in_sync.replicas - 1
        if self.in_sync.adapts:
            needed = max(min(near, needed), self.in_sync.least - 1)
        if not needed:
            self.expected[position] = ResponseCode.SUCCESS
        elif near < needed:
            self.expected[position] = ResponseCode.SLAVE_NOT_AVAILABLE
        else:
            self.waiting[position] = self.clock.monotonic() + TIMEOUT_S, needed
        self.transfers.when_replicated(position, lambda code: self._answered(position, code))

    def _answered(self, position: int, code: ResponseCode) -> None:
        assert position not in self.answers
        if code == ResponseCode.SUCCESS and not self.in_sync.adapts:
            assert all(other > position for other in self.waiting), "answers come in the order of the log"
        self.answers[position] = code

    @rule(share=st.floats(0, 1))
    def join(self, share: float) -> None:
        number = next(self.numbers)
        self.slaves[number] = 0
        self._report(number, int(self.end * share))

    @precondition(lambda self: self.slaves)
    @rule(which=st.integers(0, 10), share=st.floats(0, 1))
    def report(self, which: int, share: float) -> None:
        number = list(self.slaves)[which % len(self.slaves)]
        self._report(number, self.slaves[number] + int((self.end - self.slaves[number]) * share))

    def _report(self, number: int, offset: int) -> None:
        self.slaves[number] = offset
        self.doubtful.discard(number)
        ends = sorted((end for slave, end in self.slaves.items() if slave not in self.doubtful), reverse=True)
        for slaves, end in enumerate(ends, 1):
            self.had[slaves] = max(self.had.get(slaves, 0), end)
        for position, (_, needed) in list(self.waiting.items()):
            if position <= self.had.get(needed, 0):
                del self.waiting[position]
                self.expected[position] = ResponseCode.SUCCESS
        self.transfers.reported(number, offset)

    @precondition(lambda self: self.slaves)
    @rule(which=st.integers(0, 10))
    def doubt(self, which: int) -> None:
        number = list(self.slaves)[which % len(self.slaves)]
        self.doubtful.add(number)
        self.transfers.ignore_until_report(number)

    @precondition(lambda self: self.slaves)
    @rule(which=st.integers(0, 10))
    def leave(self, which: int) -> None:
        number = list(self.slaves)[which % len(self.slaves)]
        del self.slaves[number]
        self.doubtful.discard(number)
        for position, (_, needed) in list(self.waiting.items()):
            if needed > len(self.slaves):
                del self.waiting[position]
                self.expected[position] = ResponseCode.SLAVE_NOT_AVAILABLE
        self.transfers.remove_slave(number)

    @rule(seconds=st.sampled_from([0.5, 1.4, TIMEOUT_S, 10.0]))
    def pass_time(self, seconds: float) -> None:
        now = self.clock.monotonic() + seconds
        for position, (late_at, _) in list(self.waiting.items()):
            if late_at <= now:
                del self.waiting[position]
                self.expected[position] = ResponseCode.FLUSH_SLAVE_TIMEOUT
        self.clock.advance(seconds)

    @invariant()
    def everybody_was_told_what_is_so(self) -> None:
        assert self.answers == self.expected


GroupTransfers.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestGroupTransfers = GroupTransfers.TestCase


def test_what_a_slave_has_already_is_not_waited_for() -> None:
    transfers = GroupTransferService(clock=VirtualClock(), timeout_s=TIMEOUT_S, fall_behind_max=FALL_BEHIND_MAX)
    transfers.reported("slave", 100)
    transfers.remove_slave("slave")
    answers: list[ResponseCode] = []
    transfers.when_replicated(100, answers.append)
    assert answers == [ResponseCode.SUCCESS]


def test_who_was_told_in_time_is_not_kept() -> None:
    """A slave that answers but does not advance: each turn waits, and is forgotten after the time-out."""
    clock = VirtualClock()
    transfers = GroupTransferService(clock=clock, timeout_s=TIMEOUT_S, fall_behind_max=FALL_BEHIND_MAX)
    transfers.reported("slave", 0)
    answers: list[ResponseCode] = []
    for position in range(1, 101):
        transfers.when_replicated(position, answers.append)
        clock.advance(1.0)
    assert answers == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 98
    assert sum(map(len, transfers._waiting.values())) <= TIMEOUT_S + 1
