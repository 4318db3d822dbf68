"""The rebuild job: consume queues and index of a store made anew from its log, byte for byte as a broker writes them.

1. Every stretch of the log is looked through for how far each queue goes and where a topic begins a new life.
2. The stretches are read again, side by side, and write their units; one more task writes the index.
3. When all of it is on the disk, ``comet/position.json`` goes, so that the broker that opens the store next checks it
   as a whole; then the new directories take the place of the old ones, which go to ``comet/quarantine/``.

Until the third step nothing of the store has changed. A run that died in the second goes on: ``plan`` in its workshop
says what was to be made of which files of the log, and ``done`` has a file for each stretch that is on the disk, and
for the index. Where the plan is not the same any more, and after a death in the third step, it begins again.
"""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.clock import SYSTEM_CLOCK
from cometmq.durable import flush_directory, replace_file
from cometmq.quantity import quantity
from cometmq.spark.job_source import job_session
from cometmq.spark.rebuild_report import QueueUnits, RebuildReport
from cometmq.spark.rebuild_tasks import (
    Compared,
    Layout,
    QueueKey,
    Seen,
    compare_units,
    fill_blank,
    lives,
    write_index,
    write_units,
)
from cometmq.spark.store_options import parse_store_options
from cometmq.spark.store_stretches import Stretch, stretches
from cometmq.store.checkpoint import StoreLock
from cometmq.store.config import StoreConfig
from cometmq.store.load import Findings
from cometmq.store.opening import known_topics
from cometmq.store.topic_queue import BLANK_UNIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "rocketmq_rebuild"
STRETCHES_OF_JOB: Final = 256
"""Stretches of the log that one Spark job looks through: the driver gets a row for each queue in each, for 32 GiB."""
WORKSHOP: Final = "comet/rebuild"
"""Where new files are made, below the store."""
_PLAN, _DONE, _INDEX = "plan", "done", "index"
"""What tells there how far that is."""
_WORK: Final = "work"
_DIRECTORIES: Final = ("consumequeue", "index")
_LIVES, _UNITS, _COMPARE = "lives", "units", "compare"


def rebuild(
    store: str | Path,
    *,
    dry_run: bool = False,
    config: StoreConfig | None = None,
    bad_records_path: str | None = None,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[str], object] = lambda _: None,
) -> RebuildReport:
    """Make the consume queues and the index of a store anew from its log.

    :param store: directory that holds ``commitlog/``, shared by driver and executors; no broker may run on it.
    :param dry_run: only compare the consume queues that are there with the log.
    :param config: the broker's configuration; sizes of files and the delay levels come from it.
    :param bad_records_path: directory for damaged records, which get no unit.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: told what is being done.
    :raises StoreLockedError: a broker runs on the store.
    :raises NoStoreError: there is no log.
    :raises SparkSourceError: it has damaged records and ``bad_records_path`` is not given, or cannot be read.
    """
    began = SYSTEM_CLOCK.monotonic()
    root = Path(store).absolute()
    parts = stretches(parse_store_options({"path": str(root), "useConsumeQueue": "true" if dry_run else "false"}))
    lock = StoreLock(root / "lock")
    try:
        with job_session(spark, master, "cometmq rebuild") as session:
            passes = _Passes(session, root, parts, config or StoreConfig(), bad_records_path)
            on_step(f"looking through {len(parts)} stretches of the log")
            queues = passes.lives()
            messages = sum(life.count for life in queues.values())
            what = f"{quantity(messages, 'message')} of {quantity(len(queues), 'queue')}"
            if dry_run:
                on_step(f"comparing {what}")
                compared, indexed = passes.compare(queues), 0
            else:
                on_step(f"writing units of {what}, and the index")
                compared, indexed = {}, passes.write(queues)
                on_step("putting the new files in place")
                _put_in_place(root)
    finally:
        lock.release()
    made = [QueueUnits(*key, queues[key].count, compared.get(key, 0)) for key in sorted(queues)]
    return RebuildReport(str(root), dry_run, tuple(made), indexed, SYSTEM_CLOCK.monotonic() - began)


@dataclass(slots=True)
class _Life:
    """The last life of a queue: where it begins, and how many messages it has."""

    begins_at: int
    first: int
    last: int
    count: int


class _Work(msgspec.Struct, frozen=True):
    """What the tasks of one Spark job are told; it travels as an option of the data source."""

    kind: str
    """``lives``, ``units`` or ``compare``."""
    root: str
    """Below it lie ``consumequeue`` and ``index``."""
    layout: Layout
    known: list[str] | None
    live_from: list[tuple[str, int, int]]
    stretches: list[Stretch]
    bad_records_path: str | None

    def packed(self) -> str:
        return base64.b64encode(zlib.compress(msgspec.json.encode(self))).decode("ascii")

    @classmethod
    def unpacked(cls, text: str) -> _Work:
        return msgspec.json.decode(zlib.decompress(base64.b64decode(text)), type=cls)


class _Passes:
    """The passes over the log."""

    def __init__(
        self, spark: SparkSession, root: Path, parts: list[Stretch], config: StoreConfig, bad_records_path: str | None
    ) -> None:
        spark.dataSource.register(RebuildSource)
        self._spark = spark
        self._root = root
        self._parts = parts
        self._layout = Layout(
            config.consume_queue_file_bytes, config.max_hash_slot_num, config.max_index_num, tuple(config.delays_ms)
        )
        known = known_topics(root, Findings(root))
        self._known = None if known is None else sorted(known)
        self._bad_records_path = bad_records_path

    def lives(self) -> dict[QueueKey, _Life]:
        """The queues that there should be."""
        found: dict[QueueKey, _Life] = {}
        for rows in self._rows(_LIVES, self._root, {}, STRETCHES_OF_JOB):
            _follow(found, msgspec.convert(rows, list[Seen]))
        return found

    def compare(self, queues: Mapping[QueueKey, _Life]) -> dict[QueueKey, int]:
        """How many units of each queue differ."""
        differ: dict[QueueKey, int] = {}
        for rows in self._rows(_COMPARE, self._root, queues, STRETCHES_OF_JOB):
            for part in msgspec.convert(rows, list[Compared]):
                key = (part.topic, part.queue_id)
                differ[key] = differ.get(key, 0) + part.differ
        return differ

    def write(self, queues: Mapping[QueueKey, _Life]) -> int:
        """Make the new directories aside, or what is missing in them; gives how many messages the index has."""
        workshop = self._root / WORKSHOP
        plan = self._plan(self._work(_UNITS, workshop, queues, self._parts))
        if not (workshop / _PLAN).exists() or (workshop / _PLAN).read_bytes() != plan:
            shutil.rmtree(workshop, ignore_errors=True)
            for name in (*_DIRECTORIES, _DONE):
                (workshop / name).mkdir(parents=True)
            replace_file(workshop / _PLAN, plan)
        if _left_of(workshop, self._parts):  # none would be one of which Spark knows nothing
            all_at_once = max(len(self._parts), 1)  # the index takes longest, and is one task
            for _ in self._rows(_UNITS, workshop, queues, all_at_once):
                pass
        for (topic, queue_id), life in queues.items():
            file_bytes = self._layout.queue_file_bytes
            fill_blank(workshop / "consumequeue", topic, queue_id, life.first, BLANK_UNIT, file_bytes)
        return int((workshop / _DONE / _INDEX).read_bytes())

    def _plan(self, work: _Work) -> bytes:
        """What is to be made, of files of the log as they are now."""
        files = sorted((self._root / "commitlog").glob("*"))
        return msgspec.json.encode((work, [(file.name, *_identity(file)) for file in files]))

    def _work(self, kind: str, below: Path, queues: Mapping[QueueKey, _Life], parts: list[Stretch]) -> _Work:
        live_from = [(topic, queue_id, life.begins_at) for (topic, queue_id), life in sorted(queues.items())]
        return _Work(kind, str(below), self._layout, self._known, live_from, parts, self._bad_records_path)

    def _rows(
        self, kind: str, below: Path, queues: Mapping[QueueKey, _Life], at_once: int
    ) -> Iterator[list[dict[str, Any]]]:
        """What the tasks of each Spark job found."""
        for first in range(0, len(self._parts), at_once):
            work = self._work(kind, below, queues, self._parts[first : first + at_once])
            rows = self._spark.read.format(FORMAT).option(_WORK, work.packed()).load().collect()
            yield [json.loads(row[0]) for row in rows]


def _follow(found: dict[QueueKey, _Life], seen: Iterable[Seen]) -> None:
    """Follow each queue through some more stretches, in the order of the log."""
    for part in sorted(seen, key=lambda part: part.begins_at):
        key = (part.topic, part.queue_id)
        life = found.get(key)
        if part.restarts_at != part.begins_at:
            count = part.last - part.restarts_with + 1
            found[key] = _Life(part.restarts_at, part.restarts_with, part.last, count)
        elif life is None or part.first <= life.last:
            found[key] = _Life(part.begins_at, part.first, part.last, part.count)
        else:
            life.last = part.last
            life.count += part.count


def _put_in_place(root: Path) -> None:
    findings = Findings(root)
    workshop = root / WORKSHOP
    (workshop / _PLAN).unlink()  # what is missing there from now on is not to be made
    for name in _DIRECTORIES:
        flush_directory(workshop / name)
    (root / "comet" / "position.json").unlink(missing_ok=True)
    flush_directory(root / "comet")
    for name in _DIRECTORIES:
        if (root / name).exists():
            (root / name).rename(findings.place_for(root / name))
        (workshop / name).rename(root / name)
    shutil.rmtree(workshop)
    flush_directory(root)


def _identity(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


class _Task(InputPartition):
    """A stretch, or with ``None`` the index."""

    def __init__(self, stretch: Stretch | None) -> None:
        super().__init__(None)
        self.stretch = stretch
        self.name = _INDEX if stretch is None else f"{stretch.begin}-{stretch.end}"


def _left_of(workshop: Path, parts: Sequence[Stretch]) -> list[_Task]:
    """What is still to be made."""
    done = {path.name for path in (workshop / _DONE).iterdir()}
    return [task for task in (_Task(None), *map(_Task, parts)) if task.name not in done]


class RebuildSource(DataSource):
    """Registered by the job for itself."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the one column: what a task found, as JSON."""
        return "found string"

    def reader(self, schema: StructType) -> RebuildReader:
        """Make the reader."""
        return RebuildReader(_Work.unpacked(self.options[_WORK]))


class RebuildReader(DataSourceReader):
    """Runs the tasks of one Spark job; its rows are what they found."""

    def __init__(self, work: _Work) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        """One task for each stretch, and where units are written one for the index, which takes longest.

        What an earlier run has done is left out.
        """
        if self._work.kind != _UNITS:
            return [_Task(stretch) for stretch in self._work.stretches]
        return _left_of(Path(self._work.root), self._work.stretches)

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Do one task."""
        assert isinstance(partition, _Task)
        work, stretch, aside = self._work, partition.stretch, self._work.bad_records_path
        root = Path(work.root)
        live_from = {(topic, queue_id): at for topic, queue_id, at in work.live_from}
        found: Sequence[msgspec.Struct] = ()
        if stretch is None:
            shutil.rmtree(root / _INDEX)  # what an attempt that died has made of it
            messages = write_index(work.stretches, root / _INDEX, work.layout, aside)
            replace_file(root / _DONE / partition.name, b"%d" % messages)
        elif work.kind == _LIVES:
            found = lives(stretch, None if work.known is None else frozenset(work.known), aside)
        elif work.kind == _UNITS:
            write_units(stretch, root / "consumequeue", work.layout, live_from, aside)
            replace_file(root / _DONE / partition.name, b"")
        else:
            found = compare_units(stretch, root / "consumequeue", work.layout, live_from, aside)
        for row in found:
            yield (msgspec.json.encode(row).decode(),)
