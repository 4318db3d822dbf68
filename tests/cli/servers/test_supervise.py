"""The supervisor of `serve --brokers`: whatever happens to a child or to its start, it is started again."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.helpers.waiting import until

from cometmq.cli.servers.supervise import LONGEST_PAUSE_SECONDS, Child, ChildFailedError
from cometmq.testing import VirtualClock

STEADY = "echo $$ >> starts; echo child ready: here; cat > /dev/null"
"""A program that is ready at once and ends with its stdin."""


class Program:
    """A shell script in the place of the interpreter that children are started with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "program"

    def put(self, text: str) -> None:
        new = self.directory / "new"
        new.write_text(f"#!/bin/sh\ncd {self.directory}\n{text}\n")
        new.chmod(0o755)
        new.replace(self.path)

    def starts(self) -> list[int]:
        try:
            return [int(line) for line in (self.directory / "starts").read_text().split()]
        except FileNotFoundError:
            return []


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    found = Program(tmp_path)
    monkeypatch.setattr(sys, "executable", str(found.path))
    return found


Supervise = Callable[[], Awaitable[tuple[Child, VirtualClock]]]


@pytest.fixture
async def supervise(program: Program) -> AsyncIterator[Supervise]:
    """Starts a child under supervision."""
    children = []

    async def start() -> tuple[Child, VirtualClock]:
        clock = VirtualClock()
        child = Child("broker-0", ("broker",), clock=clock)
        children.append(child)
        await child.start()
        return child, clock

    yield start
    for child in children:
        await child.stop()


async def test_a_start_that_the_system_refuses_is_tried_again(
    program: Program, supervise: Supervise, caplog: pytest.LogCaptureFixture
) -> None:
    program.put(STEADY)
    _, clock = await supervise()
    program.path.unlink()
    os.kill(program.starts()[0], signal.SIGKILL)
    await until(lambda: caplog.text.count("cannot be started: ") >= 3, clock=clock, step_s=0.5)
    assert "broker-0 ended with exit code -9; restarting it\n" in caplog.text
    assert "no such file or directory" in caplog.text
    program.put(STEADY)
    await until(lambda: len(program.starts()) == 2, clock=clock, step_s=0.5)


async def test_a_crash_loop_slows_down(program: Program, supervise: Supervise) -> None:
    program.put(STEADY)
    _, clock = await supervise()
    program.put("echo 1 >> starts; exit 3")
    os.kill(program.starts()[0], signal.SIGKILL)
    began = clock.monotonic()
    await until(lambda: len(program.starts()) == 10, clock=clock, step_s=0.5)
    assert clock.monotonic() - began >= 1 + 3 + 7 + 15 + 4 * LONGEST_PAUSE_SECONDS
    program.put(STEADY)
    await until(lambda: len(program.starts()) == 11, clock=clock, step_s=0.5)


async def test_a_child_that_is_ready_and_dies_at_once_slows_down_too(program: Program, supervise: Supervise) -> None:
    program.put("echo 1 >> starts; echo child ready: here")
    _, clock = await supervise()
    began = clock.monotonic()
    await until(lambda: len(program.starts()) == 8, clock=clock, step_s=0.5)
    assert clock.monotonic() - began >= 1 + 3 + 7 + 15 + LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize(
    "noise",
    ["echo", "head -c 300000 /dev/zero | tr '\\0' x", "printf '\\377\\376\\n'"],
    ids=["blank", "long", "binary"],
)
async def test_whatever_a_child_prints_before_it_is_ready_it_is_waited_for(
    program: Program, supervise: Supervise, noise: str
) -> None:
    program.put(f"{noise}; echo; {STEADY}")
    child, _ = await supervise()
    assert child.ready_line == "child ready: here"


async def test_a_child_that_prints_much_later_never_waits_for_a_reader(
    program: Program, supervise: Supervise, capsys: pytest.CaptureFixture[str]
) -> None:
    program.put("echo child ready: here; yes line | head -100000; echo $$ >> starts; cat > /dev/null")
    _, clock = await supervise()
    await until(lambda: len(program.starts()) == 1, clock=clock, step_s=0.5)
    assert "line\n" in capsys.readouterr().err


async def test_a_stop_during_a_restart_leaves_no_process(program: Program, supervise: Supervise) -> None:
    program.put(STEADY)
    child, clock = await supervise()
    program.put("echo $$ >> starts; exec sleep 600")
    os.kill(program.starts()[0], signal.SIGKILL)
    await until(lambda: len(program.starts()) == 2, clock=clock, step_s=0.5)
    await child.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(program.starts()[1], 0)


async def test_a_stop_during_a_pause_starts_nothing(program: Program, supervise: Supervise) -> None:
    program.put(STEADY)
    child, clock = await supervise()
    program.put("echo 1 >> starts; exit 3")
    os.kill(program.starts()[0], signal.SIGKILL)
    await until(lambda: len(program.starts()) == 3, clock=clock, step_s=0.5)
    await child.stop()
    assert clock.next_in() == math.inf
    assert len(program.starts()) == 3


async def test_a_first_start_that_fails_is_an_error(program: Program, supervise: Supervise) -> None:
    program.put("exit 3")
    with pytest.raises(ChildFailedError, match="broker-0 ended with exit code 3 before it was ready"):
        await supervise()


async def test_a_stderr_that_cannot_be_written_stops_no_supervision(
    program: Program, supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.put(STEADY)
    _, clock = await supervise()
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - what it holds can never be written
    monkeypatch.setattr(sys, "stderr", full)
    os.kill(program.starts()[0], signal.SIGKILL)
    await until(lambda: len(program.starts()) == 2, clock=clock, step_s=0.5)
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        full.close()


async def test_what_is_for_the_first_start_alone_is_not_said_again(program: Program) -> None:
    """A broker that dies is not started without its log, as its first start was allowed to."""
    program.put('echo "$*" >> words; ' + STEADY)
    clock = VirtualClock()
    child = Child("broker-0", ("broker",), at_first=("--begin-anew",), clock=clock)
    try:
        await child.start()
        os.kill(program.starts()[0], signal.SIGKILL)
        await until(lambda: len(program.starts()) == 2, clock=clock, step_s=0.5)
    finally:
        await child.stop()
    said = (program.directory / "words").read_text().splitlines()
    assert ["--begin-anew" in words for words in said] == [True, False]
