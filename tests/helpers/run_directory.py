"""The directory of a run of ``scripts/test``, and the processes that have it, or one below, as their ``TMPDIR``."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.helpers.pace import Patience

_KILL_SECONDS = 10.0
"""How long killed processes are waited for."""
_DISK_FREE_BYTES = 15_000_000_000
"""Some times what the tests have on the disk at once."""
_DISK_USED_RATIO = 0.85
"""Brokers of default configuration delete old files from here on, and soon refuse messages."""
_MEMORY = Path("/dev/shm")
_MEMORY_FREE_BYTES = 4_000_000_000
"""Some times what the part in memory has there at once."""
_PREFIX = "cometmq-test-"
_LOCK = "lock"


@contextmanager
def made(place: Path) -> Iterator[Path]:
    """A directory for a run in this place, locked as long as it lasts; what killed runs have left goes now."""
    for left in place.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), left.open() as lock:  # it is in use, or another user's
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end_processes(left.parent)
            shutil.rmtree(left.parent, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    directory.chmod(0o711)  # servers of some tests run as another user, in directories of their own below
    try:
        with (directory / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _processes(directory: Path, program: str = "") -> Iterator[int]:
    """The processes whose temporary directory is this one or below, in whatever group they are.

    :param program: how the names of their programs begin.
    """
    mark = f"TMPDIR={directory}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is another user's, or has ended meanwhile
            texts = (process / "environ").read_bytes().split(b"\0")
            ours = any(text == mark or text.startswith(mark + b"/") for text in texts)
            if ours and (process / "exe").readlink().name.startswith(program):
                yield int(process.name)


def end_processes(
    directory: Path, number: signal.Signals = signal.SIGKILL, program: str = "", within_s: float = _KILL_SECONDS
) -> None:
    """End those processes by a signal and wait until they are gone, so that they write no more.

    The oldest last: pytest-xdist's workers end without a word, and without their stacks, when the process that started
    them is gone.

    :param within_s: how long they are waited for, longer on a slow machine.
    """
    patience = Patience(within_s)
    asked: set[int] = set()
    while (left := set(_processes(directory, program))) and not patience.is_over:
        new = left - asked
        if len(left) > 1 and (not asked or left & asked):
            new.discard(min(left, key=_started_at))
        for process_id in new:
            with suppress(ProcessLookupError):
                os.kill(process_id, number)
        asked |= new
        time.sleep(0.02)


def _started_at(process_id: int) -> tuple[float, int]:
    """When a process started, in ticks of the kernel; as late as can be when it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[19]), process_id
    return math.inf, process_id


def place_in_memory() -> Path | None:
    """A file system in memory, when there is one with room for a part, on which programs of tests can be run."""
    if not os.access(_MEMORY, os.W_OK) or os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:
        return None
    return _MEMORY if shutil.disk_usage(_MEMORY).free >= _MEMORY_FREE_BYTES else None


def disk_notice(directory: Path) -> str | None:
    """A sentence about a disk on which the tests may fail for want of room."""
    usage = shutil.disk_usage(directory)
    used = usage.used / (usage.used + usage.free)
    if usage.free >= _DISK_FREE_BYTES and used <= _DISK_USED_RATIO:
        return None
    return (
        f"The disk of {directory} has {usage.free / 1e9:.1f} GB free and is {used:.0%} full, where tests may fail: "
        f"free {_DISK_FREE_BYTES / 1e9:.0f} GB on it, or set TMPDIR to a directory on another disk."
    )
