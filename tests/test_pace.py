"""Limits of tests grow with what this machine is slower than the one on which they were set."""

from __future__ import annotations

import time

import pytest
from tests.helpers import pace
from tests.helpers.pace import Patience, is_in_time, slowness, slowness_of_processor


class Machine:
    """A machine whose work takes what a test says, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.times = [1.0]
        """Of the work, as multiples of what it takes on the machine of the limits."""
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(pace, "_times", lambda: [each * pace._WORK_S for each in self.times])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_what_runs_beside_makes_the_machine_slow_and_not_its_processor(machine: Machine) -> None:
    machine.times = [2.0, 2.0, 14.0]
    assert slowness() == pytest.approx(6)
    assert slowness_of_processor() == pytest.approx(2)
    machine.times = [0.5]
    assert slowness() == slowness_of_processor() == 1


def test_a_time_is_in_time_on_a_slow_machine_only_there(machine: Machine) -> None:
    assert is_in_time(0.9, 1.0)
    assert not is_in_time(1.1, 1.0)
    machine.times = [3.0]
    assert is_in_time(2.9, 1.0)
    assert not is_in_time(3.1, 1.0)


def test_patience_is_longer_when_the_machine_is_slow_at_its_end(machine: Machine) -> None:
    patience = Patience(10)
    machine.times = [2.0]
    machine.now += 10
    looks = [patience.is_over]
    machine.now += 9
    looks.append(patience.is_over)
    machine.times = [1.0]
    machine.now += 1
    looks.append(patience.is_over)
    assert looks == [False, False, True]
    assert patience.seconds == pytest.approx(20)


def test_this_machine_can_be_measured() -> None:
    assert slowness() >= 1
    assert slowness_of_processor() >= 1
