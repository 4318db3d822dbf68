"""Holds a benchmark, its servers and its generators to half of the processors, as a slow machine would.

A control group (cgroups(7), version 2 or 1) gives all of them together half of the processor time, whatever the number
of their threads. Where groups cannot be written, a competitor runs on each processor instead; since the kernel shares a
processor between threads, a system with more threads than another then gets more of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

PERIOD_US: Final = 10_000
"""Time in which the group gets half: short, so that waits come from the load and not from the group."""
_GROUPS: Final = Path("/sys/fs/cgroup")
_COMPETITOR: Final = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
_ENDS_S: Final = 10.0


@contextmanager
def half_of_processors(groups: Path = _GROUPS) -> Iterator[str]:
    """Hold this process, and those that it starts, to half of the processors; gives a sentence that says how.

    :param groups: where control groups are mounted.
    """
    with ExitStack() as undo:
        for make in (_second_version, _first_version):
            with suppress(OSError):
                yield undo.enter_context(make(groups))
                return
        yield undo.enter_context(_competitors())


@contextmanager
def _second_version(groups: Path) -> Iterator[str]:
    """:raises OSError: there are no groups of version 2 that limit processors, or they are read-only."""
    own = groups / _own_group("")
    if "cpu" not in (own / "cgroup.controllers").read_text().split():
        raise FileNotFoundError(own)
    (own / "cgroup.subtree_control").write_text("+cpu")
    with _group(own, {"cpu.max": f"{_quota_us()} {PERIOD_US}"}):
        yield f"A control group (cpu.max) held everything together to {_half()} of {_count()} processors."


@contextmanager
def _first_version(groups: Path) -> Iterator[str]:
    """:raises OSError: there are no groups of version 1 that limit processors, or they are read-only."""
    own = groups / "cpu" / _own_group("cpu")
    with _group(own, {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(_quota_us())}):
        yield f"A control group (cpu.cfs_quota_us) held everything together to {_half()} of {_count()} processors."


@contextmanager
def _group(parent: Path, limits: dict[str, str]) -> Iterator[None]:
    """Run this process in a group of its own below ``parent``."""
    group = parent / f"cometmq-bench-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        with suppress(OSError):
            (parent / "cgroup.procs").write_text(str(os.getpid()))
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a group when its last process has ended."""
    ends = time.monotonic() + _ENDS_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > ends:
                return
            time.sleep(0.05)
        else:
            return


@contextmanager
def _competitors() -> Iterator[str]:
    """Run a process that only computes on each processor."""
    started = [
        subprocess.Popen([sys.executable, "-c", _COMPETITOR, str(processor)])
        for processor in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield (
            f"No control group can be written here: a competitor ran on each of {_count()} processors, which favours a "
            "system with many threads."
        )
    finally:
        for process in started:
            process.kill()
            process.wait()


def _own_group(controller: str) -> str:
    """The path of this process's group for a controller; version 2 has no name."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    raise FileNotFoundError(controller)


def _count() -> int:
    return len(os.sched_getaffinity(0))


def _half() -> str:
    return f"{_count() / 2:g}"


def _quota_us() -> int:
    return _count() * PERIOD_US // 2
