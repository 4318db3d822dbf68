"""Wait for a condition: ``until`` on the event loop, ``wait_for`` without one, ``answered`` of another process.

``real_time`` and ``block_for`` are for what nothing tells: that something does not happen, or the length of a load. And
for processes: ``run_to_end``, and whether one runs, ``process_runs``. Who waits looks often at first and then less
often: what is waited for needs the processor, and a look may ask another process.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.helpers.pace import Patience

from cometmq.testing import VirtualClock

T = TypeVar("T")

_PAUSE_S = 0.005
_PROCESS_PAUSE_S = 0.05
_PAUSE_GROWTH = 1.1


async def until(
    condition: Callable[[], object],
    *,
    clock: VirtualClock | None = None,
    step_s: float = 0.2,
    timeout_s: float = 60.0,
) -> None:
    """Let the event loop work until ``condition()`` holds; advance ``clock``, if given, by a step after each look.

    :raises TimeoutError: it does not hold after ``timeout_s`` seconds of real time, or longer on a slow machine.
    """
    pause_s = _PAUSE_S
    patience = Patience(timeout_s)
    while not condition():
        if patience.is_over:
            raise TimeoutError
        if clock is not None:
            clock.advance(step_s)
        await real_time(pause_s)
        if clock is None:
            pause_s = min(pause_s * _PAUSE_GROWTH, _PROCESS_PAUSE_S)


async def real_time(seconds: float) -> None:
    """Let the event loop work for so long."""
    await asyncio.sleep(seconds)


def block_for(seconds: float) -> None:
    """Let other threads and processes work for so long."""
    time.sleep(seconds)


async def answered(ask: Callable[[], Awaitable[T]], *, timeout_s: float = 60.0) -> T:
    """Ask until the answer is true, and return it: a server in another process tells nobody when it is ready.

    :raises TimeoutError: it is not after ``timeout_s`` seconds of real time, or longer on a slow machine.
    """
    patience = Patience(timeout_s)
    while not patience.is_over:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (answer := await ask()):
                    await real_time(_PROCESS_PAUSE_S)
                return answer
    raise TimeoutError


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Block until ``condition()`` holds.

    :raises TimeoutError: it does not hold after ``timeout_s`` seconds of real time, or longer on a slow machine;
        ``what`` says what is missing.
    """
    patience = Patience(timeout_s)
    pause_s = _PAUSE_S
    while not condition():
        if patience.is_over:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        block_for(pause_s)
        pause_s = min(pause_s * _PAUSE_GROWTH, _PROCESS_PAUSE_S)


def run_to_end(command: Sequence[str | Path], timeout_s: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its output.

    :param options: those of ``subprocess.Popen``.
    :raises subprocess.TimeoutExpired: it has not ended after ``timeout_s`` seconds, or longer on a slow machine.
    """
    patience = Patience(timeout_s)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(timeout=patience.left_s)
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                if patience.is_over:
                    raise subprocess.TimeoutExpired(command, timeout_s)
        except BaseException:  # also the time limit of the test
            process.kill()
            raise


def process_runs(process_id: int) -> bool:
    """Tell whether such a process runs; ended ones stay until somebody asks for their exit code."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
