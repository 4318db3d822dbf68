"""Runs `mqload.c`, the load generator in C, against a broker, and measures what the load costs the broker's process."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import Beside, CpuTimes, cpu_seconds
from benchmarks.servers import ACCOUNT

SETTLE_S: Final = 0.5
"""After a load: queues, index and flushes of its messages belong to its processor time."""


@dataclass(frozen=True)
class Measured:
    """One load at one server; times in microseconds, processor time of the server's process alone."""

    per_s: float
    p50_us: float
    p99_us: float
    user_us: float
    """User time a message."""
    system_us: float
    """System time a message."""
    generator: float
    """Share of its one processor that the generator used: near 1.0 the load measures the generator."""
    beside: Beside

    @property
    def cpu_us(self) -> float:
        """User and system time a message."""
        return self.user_us + self.system_us


def compiled(name: str, *options: str, mark: str = "") -> Path:
    """A program of this folder in C, compiled now if it is older than its source.

    :param mark: tells programs of one source with different options from each other.
    """
    source = Path(__file__).with_name(f"{name}.c")
    target = Path(tempfile.gettempdir()) / f"cometmq-{name}{mark}-{os.getuid()}"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-o", str(target), str(source), *options], check=True)
    return target


def mqload(mode: str, port: int, *options: str, tls: bool = False, signs: bool = False) -> dict[str, Any]:
    """Run the generator once.

    :param mode: ``send``, ``pull`` or ``transact``.
    :param signs: sign sends for an account.
    :raises RuntimeError: it broke off, or a send failed.
    """
    if tls:
        program = compiled("mqload", "-DTLS", "-lm", "-lssl", "-lcrypto", mark="-tls")
    elif signs:
        program = compiled("mqload", "-DSIGN", "-lm", "-lcrypto", mark="-sign")
    else:
        program = compiled("mqload", "-lm")
    command = [str(program), mode, "-p", str(port), *options, *(["-A", ":".join(ACCOUNT)] if signs else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    if not result.get("messages") or (result["failures"] and mode == "send"):
        raise RuntimeError(f"mqload {mode} {options}: {done.stdout}{done.stderr}")
    return result


def measured(mode: str, pid: int, port: int, options: Sequence[str], *, tls: bool, signs: bool) -> Measured:
    """Run one load and read what it cost a server."""
    clocks, before, generated = CpuTimes.now(), cpu_seconds(pid), generator_seconds()
    result = mqload(mode, port, *options, tls=tls, signs=signs)
    time.sleep(SETTLE_S)
    user, system = (after - begin for after, begin in zip(cpu_seconds(pid), before, strict=True))
    # What the kernel does for the broker's sockets and files counts as the broker's, not as that of others.
    generated = generator_seconds() - generated
    beside = Beside.between(clocks, CpuTimes.now(), user + system + generated)
    messages, rate, p50, p99 = (result[name] for name in ("messages", "per_s", "p50_us", "p99_us"))
    busy = generated / result["seconds"]
    return Measured(rate, p50, p99, user / messages * 1e6, system / messages * 1e6, busy, beside)


def generator_seconds() -> float:
    """Processor seconds of the children that have ended: the generator's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
