"""Kills processes of workers and the broker while tasks are sent and run, and counts what became of the tasks.

A producer sends tasks that take some milliseconds, and notes each before it is sent and after the broker has
acknowledged it. Two workers run them and acknowledge each when it has ended (``acks_late``, ``reject_on_worker_lost``).
Kills come in turn: a process of a worker's pool, a whole worker, the broker. What was killed is started again. At the
end the workers run until every task that was acknowledged has ended, or for a limit of time.

* *lost*: the broker has acknowledged the task, and it has never ended.
* *twice*: it has ended more than once.
* *again after*: from the kill of a process that ran a task to the next begin of this task.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.helpers.waiting import block_for, wait_for
from tests.interop.celery.brokers import Broker
from tests.interop.celery.diary import Diary, Kind, Note
from tests.interop.celery.workers import ROOT, Shape, Worker, environment, settings

VICTIMS: Final = ("child", "worker", "broker")
WORK_S: Final = 0.05
PACE: Final = 40.0
"""Tasks a second: half of what the workers' four processes can run."""
PATIENCE: Final = {"max_retries": 200, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5}
"""Of the producer while the broker is away."""
UNSEEN_S: Final = 5.0
"""For brokers that do not see that a worker has died: a task of it comes again after so long."""


@dataclass(frozen=True)
class Plan:
    """What is killed, and how often."""

    kills: int
    victims: tuple[str, ...] = VICTIMS
    pause_s: tuple[float, float] = (1.0, 2.0)
    """Between kills, in a uniform distribution."""
    settle_s: float = 60.0
    """The most that the end is waited for."""
    seed: int = 1
    unseen_s: float = UNSEEN_S


@dataclass
class Killed:
    """One kill."""

    victim: str
    at: float
    pids: frozenset[int]


@dataclass
class Result:
    """What became of the tasks."""

    sent: int = 0
    lost: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    interrupted: int = 0
    """Runs that a kill has ended."""
    again_s: dict[str, list[float]] = field(default_factory=dict)
    """By victim: from the kill to the next begin of each task that it interrupted."""
    settled_s: float = 0.0
    """From the last kill to the end of the last task."""

    def figures(self) -> dict[str, Any]:
        """For a table."""
        found: dict[str, Any] = {"sent": self.sent, "lost": len(self.lost), "twice": len(self.twice)}
        found |= {"interrupted": self.interrupted, "settled_s": self.settled_s}
        for victim, times in sorted(self.again_s.items()):
            ranked = sorted(times)
            found[f"again after a {victim}, p50 s"] = ranked[len(ranked) // 2]
            found[f"again after a {victim}, max s"] = ranked[-1]
        return found


def judge(notes: list[Note], kills: list[Killed]) -> Result:
    """Count what became of the tasks."""
    sent = {note.number for note in notes if note.kind is Kind.SENT}
    ended = Counter(note.number for note in notes if note.kind is Kind.END)
    result = Result(len(sent), sorted(sent - ended.keys()), sorted(n for n, times in ended.items() if times > 1))
    begins: dict[int, list[Note]] = {}
    ends = Counter((note.number, note.pid) for note in notes if note.kind is Kind.END)
    for note in notes:
        if note.kind is Kind.BEGIN:
            begins.setdefault(note.number, []).append(note)
    for number, runs in begins.items():
        for run in runs:
            if ends[number, run.pid] >= sum(other.pid == run.pid for other in runs):
                continue
            kill = next((one for one in kills if run.pid in one.pids and one.at >= run.at), None)
            if kill is None:
                continue
            result.interrupted += 1
            after = [other.at for other in runs if other.at > kill.at]
            if after:
                result.again_s.setdefault(kill.victim, []).append(min(after) - kill.at)
    last_kill = max((kill.at for kill in kills), default=0.0)
    result.settled_s = max((note.at for note in notes if note.kind is Kind.END), default=last_kill) - last_kill
    return result


class Scene:
    """A broker, a producer and two workers, of which something is killed again and again."""

    def __init__(self, broker: Broker, directory: Path, plan: Plan) -> None:
        self.broker = broker
        self.plan = plan
        self.diary = Diary(directory / "diary")
        told = settings(broker, plan.unseen_s, task_publish_retry_policy=PATIENCE)
        self._environment = environment(told, self.diary.path)
        shape = Shape("prefork", 2)
        self.workers = [
            Worker(shape, self._environment, self.diary, directory / f"worker-{n}.log", f"w{n}") for n in (1, 2)
        ]
        self._stop = directory / "stop"
        self._output = directory / "producer.log"
        self._random = random.Random(plan.seed)
        self.kills: list[Killed] = []

    @contextmanager
    def producing(self) -> Iterator[None]:
        """Tasks are sent until the end of this context."""
        words = ["--until", str(self._stop), "--noted", "--work", str(WORK_S), "--pace", str(PACE)]
        command = [sys.executable, "-m", "tests.interop.celery.producer", *words]
        with self._output.open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=output, stderr=output)
        try:
            wait_for(lambda: self.diary.of(Kind.SENT) or process.poll() is not None, "a task is sent")
            yield
            self._stop.touch()
            if process.wait(self.plan.settle_s):
                raise RuntimeError(f"the producer failed: {self._output.read_text(errors='replace')[-2000:]}")
        finally:
            process.kill()
            process.wait()

    def kill(self, victim: str) -> None:
        """Kill something, and start it again; wait until it works."""
        worker = self._random.choice(self.workers)
        if victim == "broker":
            self.kills.append(Killed(victim, time.time(), frozenset()))
            self.broker.kill()
            self.broker.start()
        elif victim == "worker":
            at = time.time()
            self.kills.append(Killed(victim, at, frozenset(worker.kill())))
            worker.start()
            worker.wait_ready()
        else:
            wait_for(worker.children, "the worker has processes")
            chosen = self._random.choice(worker.children())
            self.kills.append(Killed(victim, time.time(), frozenset({chosen})))
            with suppress(ProcessLookupError):
                os.kill(chosen, signal.SIGKILL)

    def run(self) -> Result:
        """The kills, and then the wait until all that was sent has ended."""
        with ExitStack() as undo:
            for worker in self.workers:
                undo.callback(worker.kill)
                worker.start()
            for worker in self.workers:
                worker.wait_ready()
            with self.producing():
                for number in range(self.plan.kills):
                    block_for(self._random.uniform(*self.plan.pause_s))
                    self.kill(self.plan.victims[number % len(self.plan.victims)])
                block_for(self.plan.pause_s[1])

            def settled() -> bool:
                return set(self.diary.numbers(Kind.SENT)) <= set(self.diary.numbers(Kind.END))

            until = time.monotonic() + self.plan.settle_s
            while not settled() and time.monotonic() < until:
                block_for(0.2)
        return judge(self.diary.notes(), self.kills)

    def logs(self) -> str:
        """The ends of what the workers printed."""
        return "\n".join(worker.tail() for worker in self.workers)
