"""What the processes below this one cost: CPU seconds of all of them, and the peak memory of Spark's Python workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants() -> Iterator[int]:
    """Processes that this one, or one of its children, has started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_stat(entry)[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            yield child
            waiting.append(child)


def _stat(process: Path) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold blanks: state, parent, …"""
    return (process / "stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system seconds of one process so far, all its threads together.

    :raises OSError: there is no such process.
    """
    fields = _stat(Path(f"/proc/{pid}"))
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


class CpuMeter:
    """CPU time of all of them; what ended counts as it was seen last."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, str], int] = {}

    def seconds(self) -> float:
        """CPU seconds so far."""
        for pid in descendants():
            try:
                fields = _stat(Path(f"/proc/{pid}"))
            except OSError:
                continue
            self._ticks[pid, fields[19]] = int(fields[11]) + int(fields[12])  # by its start time: pids come again
        return sum(self._ticks.values()) / _TICKS


def peak_worker_mb() -> int:
    """The largest resident memory that any of Spark's Python workers has had."""
    peak = 0
    for pid in descendants():
        try:
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                rows = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak = max(peak, *(int(row.split()[1]) for row in rows if row.startswith("VmHWM")))
        except (OSError, TypeError):
            continue
    return peak // 1024
