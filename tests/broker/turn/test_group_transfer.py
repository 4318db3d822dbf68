"""Waiters for slaves get one answer: in order, in time, and never that a slave has bytes that none has reported."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cometmq.broker.turn.group_transfer import GroupTransferService
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock

TIMEOUT_S = 3.0
FALL_BEHIND_MAX = 1_000


class GroupTransfers(RuleBasedStateMachine):
    """A log that grows, slaves that come, report and go, and a turn that waits after each growth."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.transfers = GroupTransferService(clock=self.clock, timeout_s=TIMEOUT_S, fall_behind_max=FALL_BEHIND_MAX)
        self.end = 0
        self.furthest = 0
        self.slaves: list[int] = []
        self.answers: list[tuple[int, ResponseCode]] = []
        self.waiting: dict[int, float] = {}
        """Position → when its time is up."""
        self.expected: list[tuple[int, ResponseCode]] = []

    @rule(size=st.sampled_from([1, 10, FALL_BEHIND_MAX - 1, FALL_BEHIND_MAX, 5_000]))
    def store_and_wait(self, size: int) -> None:
        self.end += size
        position = self.end
        if not self.slaves or position - max(self.slaves) >= FALL_BEHIND_MAX:
            self.expected.append((position, ResponseCode.SLAVE_NOT_AVAILABLE))
        else:
            self.waiting[position] = self.clock.monotonic() + TIMEOUT_S
        self.transfers.when_replicated(position, lambda code: self.answers.append((position, code)))

    @rule(share=st.floats(0, 1))
    def join(self, share: float) -> None:
        self.transfers.joined()
        self.slaves.append(0)
        self._report(len(self.slaves) - 1, int(self.end * share))

    @precondition(lambda self: self.slaves)
    @rule(which=st.integers(0, 10), share=st.floats(0, 1))
    def report(self, which: int, share: float) -> None:
        which %= len(self.slaves)
        self._report(which, self.slaves[which] + int((self.end - self.slaves[which]) * share))

    def _report(self, which: int, offset: int) -> None:
        self.slaves[which] = offset
        self.furthest = max(self.furthest, offset)
        for position in [each for each in self.waiting if each <= self.furthest]:
            del self.waiting[position]
            self.expected.append((position, ResponseCode.SUCCESS))
        self.transfers.reported(offset)

    @precondition(lambda self: self.slaves)
    @rule(which=st.integers(0, 10))
    def leave(self, which: int) -> None:
        del self.slaves[which % len(self.slaves)]
        if not self.slaves:
            self.expected += [(position, ResponseCode.SLAVE_NOT_AVAILABLE) for position in self.waiting]
            self.waiting.clear()
        self.transfers.left(max(self.slaves, default=0))

    @rule(seconds=st.sampled_from([0.5, 1.4, TIMEOUT_S, 10.0]))
    def pass_time(self, seconds: float) -> None:
        now = self.clock.monotonic() + seconds
        for position, late_at in list(self.waiting.items()):
            if late_at <= now:
                del self.waiting[position]
                self.expected.append((position, ResponseCode.FLUSH_SLAVE_TIMEOUT))
        self.clock.advance(seconds)

    @invariant()
    def everybody_was_told_what_is_so(self) -> None:
        assert self.answers == self.expected


GroupTransfers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGroupTransfers = GroupTransfers.TestCase


def test_what_a_slave_has_already_is_not_waited_for() -> None:
    transfers = GroupTransferService(clock=VirtualClock(), timeout_s=TIMEOUT_S, fall_behind_max=FALL_BEHIND_MAX)
    transfers.joined()
    transfers.reported(100)
    transfers.left(0)
    answers: list[ResponseCode] = []
    transfers.when_replicated(100, answers.append)
    assert answers == [ResponseCode.SUCCESS]


def test_who_was_told_in_time_is_not_kept() -> None:
    """A slave that answers but does not advance: each turn waits, and is forgotten after the time-out."""
    clock = VirtualClock()
    transfers = GroupTransferService(clock=clock, timeout_s=TIMEOUT_S, fall_behind_max=FALL_BEHIND_MAX)
    transfers.joined()
    answers: list[ResponseCode] = []
    for position in range(1, 101):
        transfers.when_replicated(position, answers.append)
        clock.advance(1.0)
    assert answers == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 98
    assert len(transfers._waiting) <= TIMEOUT_S + 1
