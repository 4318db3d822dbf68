"""Drivers of jobs in processes of their own, which tests kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

PATIENCE_S = 120
"""For one driver; ten are enough on an idle machine."""


def start_driver(module: str, *words: str) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill driver, JVM and Python workers of one job at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def await_kill(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Demand that a driver kills itself, and kill what is left of it."""
    try:
        assert process.wait(patience_s) == -signal.SIGKILL
    finally:
        end_group(process)
