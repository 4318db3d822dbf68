"""Responses that wait for slaves are answered once, in order and in time.

:mod:`tests.broker.turn.test_slaves_in_sync` has the rule by which slaves are waited for.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.helpers.waiting import block_for, until

from cometmq.broker.turn.group_transfer import GroupTransferService
from cometmq.broker.turn.slaves_in_sync import SlavesInSync
from cometmq.clock import SYSTEM_CLOCK
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
            clock=self.clock, timeout_s=TIMEOUT_S, in_sync=SlavesInSync(minimum, fall_behind_max=1_000)
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


def test_what_was_reported_before_anybody_waits_is_not_waited_for() -> None:
    """Messages that wait for nobody are stored and reported, and then somebody waits for the end of the log."""
    transfers = Transfers(minimum=1)
    transfers.service.reported("slave", 100)
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
    assert codes == [TIMEOUT] * 3 + [NOT_AVAILABLE] * 97
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


def test_a_slave_that_is_required_has_the_whole_time() -> None:
    """What is sent while it is late waits too, and only after the timeout it is not waited for any more."""
    transfers = Transfers(minimum=1)
    transfers.service.reported("slave", 0)
    transfers.wait(1)
    transfers.clock.advance(2.9)
    transfers.wait(2)
    transfers.service.reported("slave", 1)
    assert transfers.answers == [(1, OK)]
    transfers.clock.advance(3.0)
    assert transfers.answers == [(1, OK), (2, TIMEOUT)]
    transfers.wait(3)
    assert transfers.answers[2:] == [(3, NOT_AVAILABLE)]
    transfers.service.reported("slave", 3)
    transfers.wait(4)
    transfers.service.reported("slave", 4)
    assert transfers.answers[3:] == [(4, OK)]


def test_a_slave_that_returns_before_the_timeout_answers_those_that_wait() -> None:
    """It stopped counting because it was far behind."""
    transfers = Transfers(minimum=1)
    transfers.service.reported("slave", 0)
    transfers.wait(1)
    transfers.wait(1_001)
    assert transfers.answers == [(1_001, NOT_AVAILABLE)]
    transfers.clock.advance(2.5)
    transfers.service.reported("slave", 1_001)
    assert transfers.answers[1:] == [(1, OK)]


async def test_after_a_pause_of_the_master_the_reports_that_have_arrived_come_first() -> None:
    """A paused machine must not take its own pause for a slave's."""
    members = SlavesInSync(minimum=1, fall_behind_max=1_000)
    service = GroupTransferService(clock=SYSTEM_CLOCK, timeout_s=0.3, in_sync=members)
    service.reported("slave", 0)
    answers: list[ResponseCode] = []
    service.when_replicated(1, answers.append)
    block_for(0.5)
    asyncio.get_running_loop().call_later(0.001, service.reported, "slave", 1)
    await until(lambda: answers)
    assert answers == [OK]
    assert members.removals == 0


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
