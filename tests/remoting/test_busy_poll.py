"""A server looks for the next request for a moment, and sleeps where that is in vain."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.remoting.serving import Raw, Service, max_offset

from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.connections.busy_poll import BUSY_POLL_SECONDS, MAX_SKIPPED_ROUNDS, BusyPoll, can_busy_poll
from cometmq.testing import VirtualClock

ROUND_SECONDS = BUSY_POLL_SECONDS / 10


class Rounds:
    """An event loop whose rounds take a tenth of a look; it sleeps when nothing is to be called."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._soon: list[Callable[[], None]] = []
        self.poll = BusyPoll(self._soon.append, self.clock)

    def until_sleep(self) -> int:
        """Go on until the loop sleeps; return the number of rounds."""
        rounds = 0
        while self._soon:
            soon, self._soon[:] = list(self._soon), []
            for call in soon:
                call()
            self.clock.advance(ROUND_SECONDS)
            rounds += 1
        return rounds


def test_the_loop_goes_on_for_a_moment_after_a_turn_and_then_sleeps() -> None:
    rounds = Rounds()
    rounds.poll.round_ended()
    assert 10 <= rounds.until_sleep() <= 12


def test_each_request_that_comes_meanwhile_begins_another_look() -> None:
    rounds = Rounds()
    rounds.poll.round_ended()
    for _ in range(5):
        for _ in range(3):
            (look,) = rounds._soon
            rounds._soon.clear()
            look()
            rounds.clock.advance(ROUND_SECONDS)
        rounds.poll.round_ended()
    assert 10 <= rounds.until_sleep() <= 12


def test_looks_in_vain_become_rare_and_one_that_finds_a_request_makes_them_frequent() -> None:
    rounds = Rounds()

    def turns_with_a_look(turns: int) -> int:
        looks = 0
        for _ in range(turns):
            rounds.poll.round_ended()
            looks += rounds.until_sleep() > 0
        return looks

    assert turns_with_a_look(8 * (MAX_SKIPPED_ROUNDS + 1)) < 18
    while not turns_with_a_look(1):
        pass
    for _ in range(MAX_SKIPPED_ROUNDS + 1):
        rounds.poll.round_ended()
        if rounds._soon:
            break
    rounds.poll.round_ended()  # while it looks
    rounds.until_sleep()
    assert turns_with_a_look(1) == 1


async def test_no_look_follows_an_answer_that_takes_longer_to_read(service: Service) -> None:
    looks: list[Callable[[], None]] = []
    service.server._busy_poll = BusyPoll(looks.append, service.clock)
    raw = await Raw.connect(service)
    await raw.ask(RemotingCommand(code=32, opaque=1))
    assert not looks
    await raw.ask(max_offset(2))
    assert len(looks) == 1
    await raw.close()


@pytest.mark.parametrize(
    ("text", "expected"), [("max 100000\n", True), ("150000 100000\n", False), ("200000 100000\n", True), ("?", True)]
)
def test_a_container_with_less_than_two_processors_sleeps(
    text: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2})
    (tmp_path / "cpu.max").write_text(text)
    assert can_busy_poll(tmp_path / "cpu.max") is expected


def test_a_process_on_one_processor_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert not can_busy_poll(tmp_path / "none")
