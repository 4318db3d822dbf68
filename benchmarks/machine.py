"""Processor time of processes, and how quiet the machine was: what ran before a measurement, and what ran beside it.

A busy machine flatters a broker of one process: Apache RocketMQ needs two cores and gets them only when they are free.
All shares are of the whole machine: 1.0 is every core. Source: ``/proc/stat`` (proc(5)), in clock ticks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")
LOOK_S: Final = 5.0
QUIET_BUSY: Final = 0.05
"""Above this share of other processes a run is not quiet."""
QUIET_STEAL: Final = 0.02
"""Above this share taken by the hypervisor a run is not quiet."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this block like an error, so that its servers stop and its directories are removed."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of processor time since the machine started, of all cores together."""

    total: float
    idle: float
    steal: float

    @classmethod
    def now(cls) -> Self:
        """Read the clocks of the machine."""
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(ticks) / _TICKS for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        waits = idle + iowait
        return cls(user + nice + system + waits + irq + softirq + steal, waits, steal)


@dataclass(frozen=True)
class Beside:
    """The shares of the processors that others took while something was measured."""

    others: float
    """Share of other processes."""
    steal: float
    """Share that the hypervisor took."""

    @classmethod
    def between(cls, begin: CpuTimes, end: CpuTimes, measured_s: float = 0.0) -> Self:
        """The shares between two readings, without ``measured_s`` seconds of what is measured."""
        total = max(end.total - begin.total, 1 / _TICKS)
        steal = end.steal - begin.steal
        others = total - (end.idle - begin.idle) - steal - measured_s
        return cls(max(others, 0.0) / total, steal / total)

    @property
    def quiet(self) -> bool:
        """True when figures made meanwhile are those of the system alone."""
        return self.others <= QUIET_BUSY and self.steal <= QUIET_STEAL

    def __str__(self) -> str:
        return f"others {self.others:.1%}, steal {self.steal:.1%}"


def look_before() -> Beside:
    """Watch the machine for some seconds in which nothing is measured."""
    begin = CpuTimes.now()
    time.sleep(LOOK_S)
    return Beside.between(begin, CpuTimes.now())


def verdict(load_before: float, before: Beside, during: Sequence[Beside]) -> str:
    """One sentence for below a table: how quiet the machine was before and during a run."""
    others, steal = max(one.others for one in during), max(one.steal for one in during)
    worst = Beside(others, steal)
    quiet = "Quiet machine" if before.quiet and worst.quiet else "**The machine was not quiet**"
    return (
        f"{quiet}: before the run load {load_before:.2f}, {before}; during a case at most {worst} "
        f"(of {os.cpu_count()} cores, generator and servers not counted)."
    )


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system seconds of one process so far, all its threads together.

    :raises OSError: there is no such process.
    """
    fields = process_fields(Path(f"/proc/{pid}"))
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def process_fields(process: Path) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold blanks: state, parent, …"""
    return (process / "stat").read_text().rpartition(")")[2].split()


def anonymous_mb(pid: int) -> float:
    """Anonymous memory of a process in MB: what it cannot give back to the page cache."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(row.split()[1] for row in rows if row.startswith("Anonymous:"))) / 1024
