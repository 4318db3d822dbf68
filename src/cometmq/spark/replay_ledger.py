"""The ledger of a replay: what it is about, which steps were begun, and which are done. No Spark here.

Layout below the ledger's directory::

    job.json                              what is replayed and where to; never changes
    plans/<step, 20 digits>.json          written before the first message of a step is sent
    commits/<step, 20 digits>.json        written after its last message was acknowledged
    mapping/step=<step>/*.parquet         where each message of the step came to stand
    _lock                                 held while a job runs

A plan names the ranges of the archive that its step sends, and where each queue of the topic ended before: a step
that was killed finds what it has sent already behind those ends, by the origin that every message carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.durable import replace_file
from cometmq.spark.archive_commit import QueueTotals
from cometmq.spark.errors import ArchiveError
from cometmq.spark.job_lock import locked
from cometmq.spark.queues import Offsets, Queue

T = TypeVar("T")

MAPPING: Final = "mapping"
_DIGITS: Final = 20


class Selection(msgspec.Struct, frozen=True):
    """Which messages of an archive: those that meet every condition given."""

    since_ms: int | None = None
    """Stored at or after this time, ms since 1970."""
    until_ms: int | None = None
    """Stored before this time."""
    keys: tuple[str, ...] = ()
    """One of their index keys, or their unique key, is one of these."""
    tags: tuple[str, ...] = ()
    where: str | None = None
    """A Spark SQL predicate on the archive's columns."""


class ReplayJob(msgspec.Struct, frozen=True):
    """What a ledger is about; a run with other words needs another ledger."""

    archive: str
    topic: str
    namesrv: str
    to: str
    by_key: bool
    keep_born_time: bool
    selection: Selection


class _KeptJob(msgspec.Struct, frozen=True):
    replay_id: str
    job: ReplayJob


class Range(msgspec.Struct, frozen=True):
    """Offsets of a queue in the archive: ``first <= offset < end``."""

    broker: str
    queue_id: int
    first: int
    end: int


class TargetEnd(msgspec.Struct, frozen=True):
    """Where a queue of the topic ended."""

    broker: str
    queue_id: int
    end: int


class Plan(msgspec.Struct, frozen=True):
    """One step before it is done."""

    step: int
    ranges: list[Range]
    ends: list[TargetEnd]
    """Of every queue that may be sent to; their order numbers the queues."""


class StepDone(msgspec.Struct, frozen=True):
    """One step that is done."""

    step: int
    ranges: list[Range]
    sent: int
    found: int
    """Messages that were there already, after a run that died or a request that was not answered."""
    committed_ms: int


class ReplayLedger:
    """The ledger in a directory."""

    def __init__(self, root: str | Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.root = Path(root)
        self._clock = clock

    @contextmanager
    def opened(self, job: ReplayJob, new_id: str) -> Iterator[str]:
        """Hold the ledger for this job; gives the id of its replay, ``new_id`` in a new ledger.

        :raises ArchiveError: another process holds it, or it is about another job.
        """
        with locked(self.root):
            kept = self._kept()
            if kept is None:
                kept = _KeptJob(new_id, job)
                replace_file(self._job_path, msgspec.json.format(msgspec.json.encode(kept), indent=1))
            elif kept.job != job:
                changed = [name for name in job.__struct_fields__ if getattr(job, name) != getattr(kept.job, name)]
                raise ArchiveError(
                    f"the ledger {self.root} is about another replay: {', '.join(changed)} differ",
                    next_step="say the same as before to go on, or name a new ledger",
                )
            yield kept.replay_id

    @property
    def _job_path(self) -> Path:
        return self.root / "job.json"

    def _kept(self) -> _KeptJob | None:
        if not self._job_path.exists():
            return None
        return _read(self._job_path, _KeptJob)

    def plan_of(self, step: int) -> Plan | None:
        """Read the plan of a step that was begun."""
        path = self._path("plans", step)
        return _read(path, Plan) if path.exists() else None

    def write_plan(self, plan: Plan) -> None:
        """Keep a plan, before anything of it is sent."""
        replace_file(self._path("plans", plan.step), msgspec.json.encode(plan))

    def write_done(self, plan: Plan, sent: int, found: int) -> None:
        """Keep that a step is done."""
        done = StepDone(plan.step, plan.ranges, sent, found, self._clock.now_ms())
        replace_file(self._path("commits", plan.step), msgspec.json.encode(done))

    def steps(self) -> list[StepDone]:
        """Read the steps that are done, in order."""
        return [_read(path, StepDone) for path in sorted((self.root / "commits").glob("[0-9]*.json"))]

    def mapping_of(self, step: int) -> Path:
        """Directory of a step's mapping."""
        return self.root / MAPPING / f"step={step}"

    def mappings(self) -> list[str]:
        """Directories of the mappings of all steps that are done."""
        return [str(self.mapping_of(done.step)) for done in self.steps()]

    def _path(self, kind: str, step: int) -> Path:
        return self.root / kind / f"{step:0{_DIGITS}d}.json"


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveError(f"{path} is damaged: {error}", next_step="restore it from a backup") from error


def ranges_left(
    queues: Iterable[QueueTotals], topic: str, done: Iterable[StepDone], most: int
) -> Iterator[list[Range]]:
    """Cut what an archive holds of a topic, and what no step has sent yet, into steps of about ``most`` offsets.

    Each step takes an equal share of every queue, in the order of offsets.
    """
    reached: Offsets = {}
    for step in done:
        for sent in step.ranges:
            reached[Queue(topic, sent.broker, sent.queue_id)] = sent.end
    waiting = {of.queue: (max(of.first, reached.get(of.queue, 0)), of.next) for of in queues if of.topic == topic}
    waiting = {queue: (first, end) for queue, (first, end) in waiting.items() if first < end}
    if waiting:
        yield from _cut(waiting, most)


def _cut(waiting: dict[Queue, tuple[int, int]], most: int) -> Iterator[list[Range]]:
    total = sum(end - first for first, end in waiting.values())
    steps = -(-total // most)
    for step in range(steps):
        ranges = []
        for queue, (first, end) in sorted(waiting.items()):
            begin = first + (end - first) * step // steps
            stop = first + (end - first) * (step + 1) // steps
            if begin < stop:
                ranges.append(Range(queue.broker, queue.queue_id, begin, stop))
        yield ranges
