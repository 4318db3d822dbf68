"""Responses that wait for slaves are answered once, in order and in time; :mod:`tests.broker.turn.test_in_sync_set` has
the rule by which slaves are waited for."""

from __future__ import annotations

import pytest

from cometmq.broker.turn.group_transfer import GroupTransferService
from cometmq.broker.turn.in_sync_set import InSyncSet
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock

TIMEOUT_S = 3.0
OK, NOT_AVAILABLE = ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE
TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT


class Transfers:
    """The service, and the answers by position."""

    def __init__(self, minimum: int) -> None:
        self.clock = VirtualClock()
        self.service = GroupTransferService(
            clock=self.clock, timeout_s=TIMEOUT_S, in_sync=InSyncSet(minimum, fall_behind_max=1_000)
        )
        self.answers: list[tuple[int, ResponseCode]] = []

    def wait(self, position: int) -> None:
        self.service.when_replicated(position, lambda code: self.answers.append((position, code)))


def test_answers_come_in_the_order_of_the_log() -> None:
    transfers = Transfers(minimum=1)
    transfers.service.reported("slave", 0)
    for position in (1, 2, 3):
        transfers.wait(position)
    transfers.service.reported("slave", 2)
    assert transfers.answers == [(1, OK), (2, OK)]
    transfers.service.reported("slave", 3)
    assert transfers.answers == [(1, OK), (2, OK), (3, OK)]


def test_what_a_slave_has_already_is_not_waited_for() -> None:
    transfers = Transfers(minimum=1)
    transfers.service.marked(100)
    transfers.service.reported("slave", 100)
    transfers.service.remove_slave("slave")
    transfers.wait(100)
    assert transfers.answers == [(100, OK)]


def test_a_response_that_timed_out_is_not_kept() -> None:
    """A slave that answers but does not advance, and is required."""
    transfers = Transfers(minimum=1)
    transfers.service.reported("slave", 0)
    for position in range(1, 101):
        transfers.wait(position)
        transfers.clock.advance(1.0)
    codes = [code for _, code in sorted(transfers.answers)]
    assert codes == [TIMEOUT] * 2 + [NOT_AVAILABLE] * 98
    assert not transfers.service._old
    assert not transfers.service._young


@pytest.mark.parametrize("pause_s", [0.1, 0.3, 0.7])
def test_each_response_has_its_own_time(pause_s: float) -> None:
    transfers = Transfers(minimum=2)
    transfers.service.reported("a", 0)
    transfers.service.reported("b", 0)
    for position in (1, 2, 3):
        transfers.wait(position)
        transfers.service.reported("a", position)
        transfers.clock.advance(pause_s)
    transfers.clock.advance(TIMEOUT_S - 3 * pause_s - 0.01)
    assert transfers.answers == []
    for number in (1, 2, 3):
        transfers.clock.advance(0.02 if number == 1 else pause_s)
        assert transfers.answers == [(position, TIMEOUT) for position in range(1, number + 1)]


def test_a_slave_that_catches_up_in_time_is_not_too_late() -> None:
    """It was late, and the only one; its report arrives before the timeout."""
    transfers = Transfers(minimum=1)
    transfers.service.reported("slave", 0)
    transfers.wait(1)
    transfers.clock.advance(2.5)
    assert transfers.service.in_sync.slaves_in_sync == 0
    transfers.service.reported("slave", 1)
    assert transfers.answers == [(1, OK)]
    assert transfers.service.in_sync.slaves_in_sync == 1


def test_when_the_last_required_slave_leaves_everybody_is_answered() -> None:
    transfers = Transfers(minimum=1)
    transfers.service.reported("slave", 0)
    transfers.wait(1)
    transfers.clock.advance(2.5)
    transfers.service.reported("slave", 0)
    transfers.wait(2)
    transfers.service.remove_slave("slave")
    assert sorted(transfers.answers) == [(1, NOT_AVAILABLE), (2, NOT_AVAILABLE)]


def test_a_master_that_needs_no_slave_goes_on_when_the_last_one_leaves() -> None:
    transfers = Transfers(minimum=0)
    transfers.service.reported("slave", 0)
    transfers.wait(1)
    assert transfers.answers == []
    transfers.service.remove_slave("slave")
    assert transfers.answers == [(1, OK)]


def test_the_log_says_when_sends_are_not_replicated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    transfers = Transfers(minimum=1)
    for position in (1, 2):
        transfers.wait(position)
    assert caplog.text.count("sends return SLAVE_NOT_AVAILABLE: 0 of at least 1 slaves are in sync") == 1
    transfers.service.reported("slave", 2)
    transfers.wait(3)
    assert "slave slave is in sync" in caplog.text
    assert "enough slaves are in sync" in caplog.text
