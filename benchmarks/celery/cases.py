"""The cases: tasks that are sent, run, run one at a time, and run at their times."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import Beside, CpuTimes
from benchmarks.peers.load import Family
from benchmarks.rounds import percentiles
from tests.helpers.waiting import wait_for
from tests.interop.celery.brokers import Broker
from tests.interop.celery.diary import Diary, Kind
from tests.interop.celery.workers import HOST, ROOT, Shape, Worker, environment, settings, working

SHAPES: Final = (Shape("prefork", 1), Shape("prefork", 4), Shape("threads", 4))
TIMED_PER_S: Final = 500
SPARE: Final = "spare"
"""A queue without tasks: a worker begins with it, so that its start is not measured."""
RUN_S: Final = 240.0
TRAVEL_S: Final = 0.02
"""Between tasks that are sent one at a time."""


@dataclass(frozen=True)
class Given:
    """The amounts that are measured."""

    tasks: int = 5000
    timed: int = 10000
    single: int = 300
    only: tuple[str, ...] = ()
    """Beginnings of the names of cases; all if empty."""

    def wants(self, case: str) -> bool:
        """Tell whether a case is asked for."""
        return not self.only or case.startswith(self.only)


def _said(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


class Bench:
    """The cases on one broker."""

    def __init__(self, broker: Broker, directory: Path, given: Given) -> None:
        self._broker = broker
        self._directory = directory
        self._given = given
        self._first = 0
        self._cases = 0
        self._told = settings(broker)

    def all(self) -> Iterator[dict[str, Any]]:
        """Every case that is asked for."""
        cases: dict[str, Callable[[], dict[str, Any]]] = {f"run, {shape.name}": self._run_of(shape) for shape in SHAPES}
        cases |= {"one task": self._one_by_one, "times": self._timed}
        for name, case in cases.items():
            if not self._given.wants(name):
                continue
            clocks, began = CpuTimes.now(), time.monotonic()
            figures = case()
            beside = Beside.between(clocks, CpuTimes.now(), figures.pop("used_s"))
            yield {"case": name, **figures, "others": beside.others, "took_s": time.monotonic() - began}

    def _diary(self) -> Diary:
        self._cases += 1
        return Diary(self._directory / f"diary-{self._cases}")

    def _worker(self, shape: Shape, diary: Diary) -> Worker:
        return Worker(shape, environment(self._told, diary.path), diary, self._directory / "worker.log")

    def _send(self, diary: Diary, count: int, *words: str) -> dict[str, Any]:
        """Send tasks from a process of its own; what it printed, and the broker's processor time."""
        family = Family(self._broker.pid)
        before = family.cpu_seconds()
        command = ["-m", "tests.interop.celery.producer", "--count", str(count), "--first", str(self._first), *words]
        told = environment(self._told, diary.path)
        done = _said([sys.executable, *command], told)
        if done.returncode:
            raise RuntimeError(f"the producer failed: {done.stderr[-1500:]}")
        self._first += count
        return {**json.loads(done.stdout.splitlines()[-1]), "broker_s": family.cpu_seconds() - before}

    def _run_of(self, shape: Shape) -> Callable[[], dict[str, Any]]:
        return lambda: self._run(shape)

    def _run(self, shape: Shape) -> dict[str, Any]:
        """Tasks wait; then a worker that has started runs them."""
        count, diary = self._given.tasks, self._diary()
        sent = self._send(diary, count)
        idle = Shape(shape.pool, shape.concurrency, SPARE, shape.options)
        with working(self._worker(idle, diary)) as worker:
            broker, family = Family(self._broker.pid), Family(worker.pid)
            server_s, worker_s = broker.cpu_seconds(), family.cpu_seconds()
            self._consume(diary)
            wait_for(lambda: diary.count() > count, f"{count} tasks have begun, not {diary.count()}", RUN_S)
            server_s, worker_s = broker.cpu_seconds() - server_s, family.cpu_seconds() - worker_s
        begins = sorted(note.at for note in diary.of(Kind.BEGIN))
        numbers = diary.numbers(Kind.BEGIN)
        used = sent["cpu_s"] + sent["broker_s"] + server_s + worker_s
        return {
            "tasks": count,
            "sent_per_s": count / sent["seconds"],
            "send_producer_us": sent["cpu_s"] / count * 1e6,
            "send_broker_us": sent["broker_s"] / count * 1e6,
            "run_per_s": (count - 1) / (begins[-1] - begins[0]),
            "run_worker_us": worker_s / count * 1e6,
            "run_broker_us": server_s / count * 1e6,
            "twice": len(numbers) - len(set(numbers)),
            "used_s": used,
        }

    def _consume(self, diary: Diary) -> None:
        """Have the worker read the queue of the tasks."""
        place = ["--timeout", "10", "--destination", f"worker@{HOST}"]
        words = ["-A", "tests.interop.celery.tasks", "control", *place, "add_consumer", "celery"]
        command = [sys.executable, "-m", "celery", *words]
        told = environment(self._told, diary.path)
        done = _said(command, told)
        if done.returncode:
            raise RuntimeError(f"the worker does not take remote control: {done.stdout}{done.stderr[-1500:]}")

    def _one_by_one(self) -> dict[str, Any]:
        """Tasks for an idle worker."""
        count, diary = self._given.single, self._diary()
        with working(self._worker(SHAPES[0], diary)) as worker:
            broker, family = Family(self._broker.pid), Family(worker.pid)
            server_s, worker_s = broker.cpu_seconds(), family.cpu_seconds()
            sent = self._send(diary, count, "--noted", "--pace", str(1 / TRAVEL_S))
            wait_for(lambda: len(diary.of(Kind.BEGIN)) >= count, f"{count} single tasks have begun", RUN_S)
            server_s, worker_s = broker.cpu_seconds() - server_s, family.cpu_seconds() - worker_s
        sends = {note.number: note.at for note in diary.of(Kind.SENDS)}
        late = [(note.at - sends[note.number]) * 1e3 for note in diary.of(Kind.BEGIN)]
        return {"tasks": count, **percentiles(late[count // 10 :]), "used_s": sent["cpu_s"] + server_s + worker_s}

    def _timed(self) -> dict[str, Any]:
        """Tasks with times, which begin when all of them are sent."""
        count, diary, first = self._given.timed, self._diary(), self._first
        over = count / TIMED_PER_S
        due = count / 250 + 5
        with working(self._worker(Shape("prefork", 4), diary)) as worker:
            broker, family = Family(self._broker.pid), Family(worker.pid)
            server_s, worker_s = broker.cpu_seconds(), family.cpu_seconds()
            sent = self._send(diary, count, "--due", str(due), "--over", str(over))
            held_mb = family.memory_mb()["anonymous_mb"]
            begun = diary.count() - 1
            wait_for(lambda: diary.count() > count, f"{count} tasks with times have begun", RUN_S + due + over)
            server_s, worker_s = broker.cpu_seconds() - server_s, family.cpu_seconds() - worker_s
        times = {first + n: sent["began"] + due + over * n / count for n in range(count)}
        late = [(note.at - times[note.number]) * 1e3 for note in diary.of(Kind.BEGIN)]
        return {
            "tasks": count,
            "sent_per_s": count / sent["seconds"],
            "begun_while_sent": begun,
            "early": sum(one < -1 for one in late),
            "twice": len(late) - len(set(diary.numbers(Kind.BEGIN))),
            **percentiles(late),
            "worker_us": worker_s / count * 1e6,
            "broker_us": server_s / count * 1e6,
            "worker_mb": held_mb,
            "used_s": sent["cpu_s"] + server_s + worker_s,
        }
