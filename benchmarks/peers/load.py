"""The cases, and what each costs a server: rate, latency, and processor time of all its processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import Beside, CpuTimes, process_fields
from benchmarks.mqload import SETTLE_S, compiled, generator_seconds, mqload
from benchmarks.peers.systems import QUEUES, Peer, Started

READ_S: Final = 60.0
"""A read that takes longer is broken off."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """One row of the tables."""

    name: str
    body: int
    connections: int = 16
    window: int = 32
    """Messages of a connection that are not yet acknowledged."""
    batched: bool = False
    """A request has all messages of the window; only for systems that have such requests."""
    reads: bool = False
    """One group reads the messages of the case with the same topic."""

    @property
    def topic(self) -> str:
        """The beginning of the names of its topics."""
        kind = "batch" if self.batched else "one"
        return f"{'Warm' if self.name.startswith('warm') else 'Load'}-{self.body}-{self.connections}-{kind}-"

    def warming(self) -> Case:
        """The same with a topic of its own."""
        return replace(self, name=f"warm {self.name}")


CASES: Final = tuple(
    case
    for body, size in ((128, "128 B"), (1024, "1 KB"))
    for case in (
        Case(f"{size}, 64 × 1", body, 64, 1),
        Case(f"{size}, 16 × 32", body),
        Case(f"{size}, batches", body, batched=True),
        Case(f"{size}, read", body, reads=True),
    )
)


@dataclass(frozen=True)
class Family:
    """A process and all that descend from it."""

    pid: int

    def _all(self) -> Iterator[tuple[Path, list[str]]]:
        parents, fields = {}, {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                found = process_fields(process)
            except OSError:  # it has ended
                continue
            parents[process], fields[process] = Path("/proc") / found[1], found
        for process in parents:
            above: Path | None = process
            while above is not None and above.name != str(self.pid):
                above = parents.get(above)
            if above is not None:
                yield process, fields[process]

    def cpu_seconds(self) -> float:
        """User and system time so far, with that of children that have ended."""
        return sum(sum(int(ticks) for ticks in fields[11:15]) for _, fields in self._all()) / _TICKS

    def memory_mb(self) -> dict[str, float]:
        """Resident memory in MB, and the anonymous part of it, which is no page cache."""
        total = {"VmRSS:": 0, "RssAnon:": 0}
        for process, _ in self._all():
            for line in (process / "status").read_text().splitlines():
                name, *value = line.split()
                if name in total:
                    total[name] += int(value[0])
        return {"resident_mb": total["VmRSS:"] / 1024, "anonymous_mb": total["RssAnon:"] / 1024}


def peerload(system: str, mode: str, *options: str) -> dict[str, Any]:
    """Run the generator for a system that does not speak RocketMQ's protocol.

    :raises RuntimeError: it broke off, or a message failed.
    """
    command = [str(compiled("peerload", "-lm")), system, mode, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        raise RuntimeError(f"peerload {system} {mode} {options}: {done.stdout}{done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _load(peer: Peer, port: int, case: Case, seconds: float, messages: int) -> dict[str, Any]:
    batch = case.window if case.batched or (peer.joins and not case.reads) else 1
    common = ["-t", case.topic, "-q", str(QUEUES), "-s", str(READ_S if case.reads else seconds)]
    shape = ["-c", str(case.connections), "-b", str(case.body), "-B", str(batch)]
    if peer.remoting:  # its window is of requests, not of messages
        shape += ["-w", str(case.window // batch)]
        if case.reads:
            return mqload("pull", port, *common, "-n", str(peer.pulls))
        return mqload("send", port, *common, *shape)
    where = ["-p", str(port), *common]
    if case.reads:
        return peerload(peer.key, "drain", *where, "-m", str(messages))
    return peerload(peer.key, "send", *where, *shape, "-w", str(case.window))


def measure(peer: Peer, started: Started, case: Case, seconds: float, messages: int = 0) -> dict[str, Any]:
    """Run one case.

    :param seconds: of a send; the half second behind it belongs to its processor time.
    :param messages: that a read finds.
    :raises RuntimeError: it broke off, or read another number of messages.
    """
    family = Family(started.pid)
    clocks, before, generated = CpuTimes.now(), family.cpu_seconds(), generator_seconds()
    result = _load(peer, started.port, case, seconds, messages)
    time.sleep(SETTLE_S)
    used, generated = family.cpu_seconds() - before, generator_seconds() - generated
    beside = Beside.between(clocks, CpuTimes.now(), used + generated)
    if case.reads and result["messages"] != messages:
        raise RuntimeError(f"{case.name} read {result['messages']} of {messages} messages")
    return {
        "messages": result["messages"],
        "per_s": result["per_s"],
        **({} if case.reads else {"p50_us": result["p50_us"], "p99_us": result["p99_us"]}),
        "cpu_us": used / result["messages"] * 1e6,
        "generator": generated / result["seconds"],
        "others": beside.others,
        "steal": beside.steal,
    }
