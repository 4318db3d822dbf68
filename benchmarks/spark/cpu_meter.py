"""CPU seconds of this process and those below it."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.machine import process_fields

_TICKS = os.sysconf("SC_CLK_TCK")
JVM: Final = "JVM"
PYTHON: Final = "Python"
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOOK_S: Final = 0.5


def descendants() -> Iterator[int]:
    """Processes that this one, or one of its children, has started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(process_fields(entry)[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            yield child
            waiting.append(child)


@dataclass(frozen=True)
class _Seen:
    """A process as it was seen last."""

    parent: int
    kind: str
    own: int
    """Ticks of its own."""
    waited: int
    """Ticks of children that ended and that it waited for."""


class CpuMeter:
    """CPU time of this process and all below it, by kind: Spark's JVM, Python, and each broker by its name.

    What ended counts with the process that waited for it, and what the JVM waited for is Python: workers and planners.
    Spark's daemon waits for none of its workers: they count as they were seen last. Processes whose parent has ended
    become children of this one, and nobody waits for them: they stay to be counted.
    """

    def __init__(self) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self.brokers: dict[int, str] = {}
        """Names of the processes that are a broker's."""
        self._seen: dict[tuple[int, str], _Seen] = {}
        self._ended: Counter[str] = Counter()
        """Ticks of those that ended and that nobody waited for."""
        self._one_at_a_time = threading.Lock()

    def watch(self) -> None:
        """Look every half second from now on, for processes that live no longer."""

        def look() -> None:
            while True:
                time.sleep(_LOOK_S)
                self.seconds()

        threading.Thread(target=look, name="cpu-meter", daemon=True).start()

    def seconds(self) -> dict[str, float]:
        """CPU seconds so far, by kind."""
        with self._one_at_a_time:
            now = dict(self._look())
            self._end(now)
            self._seen = now
            ticks = self._ended.copy()
            for seen in now.values():
                ticks[seen.kind] += seen.own
                ticks[PYTHON if seen.kind == JVM else seen.kind] += seen.waited
            return {kind: found / _TICKS for kind, found in ticks.items()}

    def _look(self) -> Iterator[tuple[tuple[int, str], _Seen]]:
        for pid in (os.getpid(), *descendants()):
            process = Path(f"/proc/{pid}")
            try:
                fields = process_fields(process)
                is_java = (process / "comm").read_text().strip() == "java"
            except OSError:
                continue
            kind = self.brokers.get(pid) or (JVM if is_java else PYTHON)
            own, waited = (sum(int(field) for field in fields[at : at + 2]) for at in (11, 13))
            yield (pid, fields[19]), _Seen(int(fields[1]), kind, own, waited)  # by its start time: pids come again

    def _end(self, now: Mapping[tuple[int, str], _Seen]) -> None:
        """Keep what ended since the last look and is in nobody's time."""
        waited = {pid: seen.waited for (pid, _), seen in now.items()}
        for (pid, _), seen in self._seen.items():
            waited[pid] = waited.get(pid, seen.waited) - seen.waited
        for key, seen in self._seen.items():
            if key in now:
                continue
            spent = seen.own + seen.waited
            counted = min(spent, waited.get(seen.parent, 0))
            waited[seen.parent] = waited.get(seen.parent, 0) - counted
            self._ended[seen.kind] += spent - counted
