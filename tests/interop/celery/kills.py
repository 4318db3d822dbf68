"""Kills processes of workers and the broker while tasks are sent and run, and counts what became of the tasks.

A producer sends tasks that take some milliseconds, and notes each before it is sent and after the broker has
acknowledged it. Two workers run them and acknowledge each when it has ended (``acks_late``, ``reject_on_worker_lost``).
Kills come in turn: a process of a worker's pool, a whole worker, the broker. What was killed is started again. At the
end the workers run until every task that was acknowledged has ended, or until none has begun or ended for ``idle_s``.
So a backlog is no loss.

* *lost*: the broker has acknowledged the task, and it has never ended.
* *waiting*: messages that the broker still has at the end, which no worker gets.
* *twice*: it has ended more than once.
* *again after*: from the kill of a process that ran a task to the next begin of this task.
* *workers that ended*: by themselves, with an error of their transport for example. They are started again.
"""

from __future__ import annotations

import os
import random
import re
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
STARTS: Final = 20
"""The most that a worker is started in a row."""
PRODUCER_S: Final = 120.0
"""For the last task to be sent."""
PATIENCE: Final = {"max_retries": 200, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5}
"""Of the producer while the broker is away."""
UNSEEN_S: Final = 60.0
"""For brokers that do not see that a worker has died: a task of it comes again after so long."""
SWEEP_S: Final = 100.0
"""The interval at which Kombu's transport for Redis looks for tasks of workers that have died."""
_REASON: Final = re.compile(r"Unrecoverable error: (.*)")


@dataclass(frozen=True)
class Plan:
    """What is killed, and how often."""

    kills: int
    victims: tuple[str, ...] = VICTIMS
    pause_s: tuple[float, float] = (1.0, 2.0)
    """Between kills, in a uniform distribution."""
    seed: int = 1
    unseen_s: float = UNSEEN_S

    @property
    def idle_s(self) -> float:
        """Time without a begin or an end of a task after which what has not ended is lost."""
        return self.unseen_s + 2 * SWEEP_S


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
    waiting: int = 0
    fallen: Counter[str] = field(default_factory=Counter)
    """The number of workers that ended by themselves, by reason."""
    interrupted: int = 0
    """Runs that a kill has ended."""
    again_s: dict[str, list[float]] = field(default_factory=dict)
    """By victim: from the kill to the next begin of each task that it interrupted."""
    settled_s: float = 0.0
    """From the last kill to the end of the last task."""

    def figures(self) -> dict[str, Any]:
        """For a table."""
        found: dict[str, Any] = {"sent": self.sent, "lost": len(self.lost), "twice": len(self.twice)}
        found |= {"waiting": self.waiting, "workers that ended": self.fallen.total()}
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


def reason_of(output: str) -> str:
    """Why a worker ended, by the end of what it printed."""
    found = _REASON.findall(output)
    return found[-1] if found else output[-200:]


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
        self.fallen: Counter[str] = Counter()

    def keep_working(self, seconds: float) -> None:
        """Let time pass; workers that end by themselves are counted and started again."""
        until = time.monotonic() + seconds
        while True:
            for worker in self.workers:
                if not worker.running:
                    self.fallen[reason_of(worker.tail(20_000))] += 1
                    self._start(worker)
            if time.monotonic() >= until:
                return
            block_for(min(0.2, seconds))

    def _start(self, worker: Worker) -> None:
        """Start a worker, again if it ends by itself before it is ready."""
        for _ in range(STARTS):
            worker.kill()
            worker.start()
            try:
                worker.wait_ready()
            except (RuntimeError, TimeoutError):
                self.fallen[reason_of(worker.tail(20_000))] += 1
            else:
                return
        raise RuntimeError(f"a worker ends whenever it starts:\n{worker.tail()}")

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
            if process.wait(PRODUCER_S):
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
            self._start(worker)
        else:
            chosen = self._random.choice(self._children(worker))
            self.kills.append(Killed(victim, time.time(), frozenset({chosen})))
            with suppress(ProcessLookupError):
                os.kill(chosen, signal.SIGKILL)

    def _children(self, worker: Worker) -> list[int]:
        """The processes of a worker, which is started again if it ends by itself."""

        children: list[int] = []

        def has_some() -> bool:
            self.keep_working(0)
            children[:] = worker.children()
            return bool(children)

        wait_for(has_some, "the worker has processes")
        return children

    def _wait_for_the_end(self) -> None:
        """Let the workers run until all tasks have ended, or none begins or ends any more."""
        count, at = self.diary.count(), time.monotonic()
        while not set(self.diary.numbers(Kind.SENT)) <= set(self.diary.numbers(Kind.END)):
            self.keep_working(0.5)
            if self.diary.count() != count:
                count, at = self.diary.count(), time.monotonic()
            elif time.monotonic() > at + self.plan.idle_s:
                return

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
                    self.keep_working(self._random.uniform(*self.plan.pause_s))
                    self.kill(self.plan.victims[number % len(self.plan.victims)])
                self.keep_working(self.plan.pause_s[1])
            self._wait_for_the_end()
        result = judge(self.diary.notes(), self.kills)
        result.waiting, result.fallen = self.waiting(), self.fallen
        return result

    def waiting(self) -> int:
        """The number of messages that the broker has for workers, while none runs."""
        words = ["-m", "tests.interop.celery.producer", "--waiting"]
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=self._environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the broker does not count: {done.stderr[-1500:]}")
        return int(done.stdout)

    def logs(self) -> str:
        """The ends of what the workers printed."""
        return "\n".join(worker.tail() for worker in self.workers)
