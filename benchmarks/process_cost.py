"""CPU seconds of processes: of one, or of this one and those below it."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TICKS = os.sysconf("SC_CLK_TCK")
JVM: Final = "JVM"
PYTHON: Final = "Python"
_PR_SET_CHILD_SUBREAPER: Final = 36


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
    """CPU time of this process and all below it, by kind: Spark's JVM, Python, and each broker by its name.

    What ended counts with the process that waited for it, and what the JVM waited for is Python: workers and planners.
    Processes whose parent has ended become children of this one, and nobody waits for them: they stay to be counted.
    """

    def __init__(self) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self.brokers: dict[int, str] = {}
        """Names of the processes that are a broker's."""

    def seconds(self) -> dict[str, float]:
        """CPU seconds so far, by kind."""
        ticks: Counter[str] = Counter()
        for pid in (os.getpid(), *descendants()):
            process = Path(f"/proc/{pid}")
            try:
                fields = _stat(process)
                is_java = (process / "comm").read_text().strip() == "java"
            except OSError:
                continue
            own, waited_for = (sum(int(field) for field in fields[at : at + 2]) for at in (11, 13))
            broker = self.brokers.get(pid)
            ticks[broker or (JVM if is_java else PYTHON)] += own
            ticks[broker or PYTHON] += waited_for
        return {kind: found / _TICKS for kind, found in ticks.items()}
