"""A benchmark says how quiet the machine was, and never calls a busy one quiet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.machine import Beside, CpuTimes, cpu_seconds, ended_by_signals, verdict

ROOT = Path(__file__).resolve().parents[2]
QUIET = Beside(others=0.01, steal=0.0)


def test_what_is_measured_is_not_counted_as_others() -> None:
    """Of 20 seconds of two cores 8 were idle, 2 stolen, 7 measured: 3 are of others."""
    found = Beside.between(CpuTimes(100.0, 50.0, 1.0), CpuTimes(120.0, 58.0, 3.0), measured_s=7.0)
    assert found.others == pytest.approx(0.15)
    assert found.steal == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("before", "during", "quiet"),
    [
        (QUIET, QUIET, True),
        (Beside(others=0.3, steal=0.0), QUIET, False),
        (QUIET, Beside(others=0.3, steal=0.0), False),
        (QUIET, Beside(others=0.0, steal=0.1), False),
    ],
)
def test_one_busy_case_is_enough_to_call_the_machine_busy(before: Beside, during: Beside, quiet: bool) -> None:
    said = verdict(0.1, before, [QUIET, during, QUIET])
    assert said.startswith("Quiet machine") == quiet
    assert f"steal {max(during.steal, QUIET.steal):.1%}" in said


def test_processor_time_of_a_process_is_read_from_the_system() -> None:
    """This process itself, which knows its own time: a tick is 10 ms."""
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    user, system = cpu_seconds(os.getpid())
    own = os.times()
    assert user == pytest.approx(own.user, abs=0.03)
    assert system == pytest.approx(own.system, abs=0.03)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_that_is_ended_by_a_signal_leaves_no_directory(number: signal.Signals) -> None:
    code = (
        "import sys, tempfile; from benchmarks.machine import ended_by_signals\n"
        "with ended_by_signals(), tempfile.TemporaryDirectory() as name: print(name, flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        place = Path(process.stdout.readline().strip())
        assert place.is_dir()
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert not place.exists()


def test_the_handlers_of_signals_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ended_by_signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
