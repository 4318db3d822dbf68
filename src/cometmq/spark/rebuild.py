"""The rebuild job: consume queues and index of a store made anew from its log, byte for byte as a broker writes them.

1. Every stretch of the log is looked through for how far each queue goes and where a topic begins a new life.
2. The stretches are read again, side by side, and write their units; one more task writes the index.
3. When all of it is on the disk, the new directories take the place of the old ones, which go to
   ``comet/quarantine/``, and ``comet/position.json`` goes: the broker that opens the store next checks it as a whole.

Until the third step nothing of the store has changed, and a run that died is simply begun again.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.clock import SYSTEM_CLOCK
from cometmq.durable import flush_directory
from cometmq.spark.environment import driver_session
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
from cometmq.spark.store_options import StoreOptions, parse_store_options
from cometmq.spark.store_reader import BadRecords, Stretch, stretches
from cometmq.store.checkpoint import StoreLock
from cometmq.store.config import StoreConfig
from cometmq.store.load import Findings
from cometmq.store.opening import known_topics
from cometmq.store.topic_queue import BLANK_UNIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "rocketmq_rebuild"
_WORK: Final = "work"
STRETCHES_OF_JOB: Final = 256
"""Stretches of the log that one Spark job looks through: the driver gets a row for each queue in each, for 32 GiB."""
WORKSHOP: Final = "comet/rebuild"
"""Where new files are made, below the store."""
_DIRECTORIES: Final = ("consumequeue", "index")


@dataclasses.dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was rebuilt, or how what is there compares with what should be."""

    store: str
    dry_run: bool
    queues: int
    messages: int
    indexed: int
    """Messages that have index entries; 0 in a dry run, which does not look at the index."""
    differ: int
    """Units that are not what the log says: found in a dry run, mended otherwise (0 then)."""
    differing_queues: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return dataclasses.asdict(self)

    def render(self) -> str:
        """A summary to read in a terminal."""
        what = f"{self.messages:,} messages of {self.queues:,} queues"
        if not self.dry_run:
            return (
                f"{self.store}: rebuilt {what}, {self.indexed:,} of them in the index, in {self.seconds:.1f} s; "
                "what was there before is in comet/quarantine"
            )
        lines = [f"{self.store}: compared {what} in {self.seconds:.1f} s, {self.differ:,} differ from the log"]
        lines += [f"  {line}" for line in self.differing_queues]
        return "\n".join(lines)


class _Task(InputPartition):
    """A stretch, or with ``None`` the index."""

    def __init__(self, stretch: Stretch | None) -> None:
        super().__init__(None)
        self.stretch = stretch


class _Work(msgspec.Struct, frozen=True):
    """What the tasks of one pass are told; it travels as an option of the data source."""

    kind: str
    """``lives``, ``units`` or ``compare``."""
    root: str
    """Below it lie ``consumequeue`` and ``index``."""
    layout: Layout
    known: list[str] | None
    live_from: list[tuple[str, int, int]]
    first: int
    """Stretches of the log from this one …"""
    end: int
    """… to before this one."""

    def packed(self) -> str:
        return base64.b64encode(zlib.compress(msgspec.json.encode(self))).decode("ascii")

    @classmethod
    def unpacked(cls, text: str) -> _Work:
        return msgspec.json.decode(zlib.decompress(base64.b64decode(text)), type=cls)


def rebuild(
    store: str | Path,
    *,
    dry_run: bool = False,
    config: StoreConfig | None = None,
    bad_records_path: str | None = None,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[str], None] = lambda _: None,
) -> RebuildReport:
    """Make the consume queues and the index of a store anew from its log.

    :param store: directory that holds ``commitlog/``, shared by driver and executors; no broker may run on it.
    :param dry_run: only compare the consume queues that are there with the log.
    :param config: the broker's configuration; sizes of files and the delay levels come from it.
    :param bad_records_path: directory for damaged records, which get no unit.
    :param on_step: told what is being done.
    :raises StoreLockedError: a broker runs on the store.
    :raises StoreReadError: there is no log, or it has damaged records and ``bad_records_path`` is not given.
    """
    began = SYSTEM_CLOCK.monotonic()
    root = Path(store).absolute()
    given = {"path": str(root), "useConsumeQueue": "true" if dry_run else "false"}
    if bad_records_path is not None:
        given["badRecordsPath"] = bad_records_path
    parts = len(stretches(parse_store_options(given)))
    config = config or StoreConfig()
    layout = Layout(
        config.consume_queue_file_bytes, config.max_hash_slot_num, config.max_index_num, tuple(config.delays_ms)
    )
    known = known_topics(root, Findings(root))
    lock = StoreLock(root / "lock")
    session = driver_session(spark, master, "cometmq rebuild")
    try:
        session.dataSource.register(RebuildSource)
        named = None if known is None else sorted(known)

        def run(
            kind: str, below: Path, live_from: Mapping[QueueKey, int], at_once: int = STRETCHES_OF_JOB
        ) -> Iterator[list[dict[str, Any]]]:
            table = [(topic, queue_id, at) for (topic, queue_id), at in live_from.items()]
            for first in range(0, parts, at_once):
                work = _Work(kind, str(below), layout, named, table, first, first + at_once)
                rows = session.read.format(FORMAT).options(**given, **{_WORK: work.packed()}).load().collect()
                yield [json.loads(row[0]) for row in rows]

        on_step(f"looking through {parts} stretches of the log")
        queues: dict[QueueKey, _Life] = {}
        for rows in run("lives", root, {}):
            _follow(queues, msgspec.convert(rows, list[Seen]))
        live_from = {key: life.begins_at for key, life in queues.items()}
        messages = sum(life.count for life in queues.values())
        if dry_run:
            on_step(f"comparing {messages:,} messages of {len(queues)} queues")
            compared: dict[QueueKey, Compared] = {}
            for rows in run("compare", root, live_from):
                _add(compared, msgspec.convert(rows, list[Compared]))
            wrong = [compared[key] for key in sorted(compared) if compared[key].differ]
            return RebuildReport(
                str(root),
                True,
                len(queues),
                messages,
                0,
                sum(part.differ for part in wrong),
                tuple(f"{of.topic} {of.queue_id}: {of.differ:,} of {of.units:,} differ" for of in wrong),
                SYSTEM_CLOCK.monotonic() - began,
            )
        workshop = root / WORKSHOP
        shutil.rmtree(workshop, ignore_errors=True)
        for name in _DIRECTORIES:
            (workshop / name).mkdir(parents=True)
        on_step(f"writing units of {messages:,} messages of {len(queues)} queues, and the index")
        indexed = sum(
            row["indexed"] for rows in run("units", workshop, live_from, at_once=max(parts, 1)) for row in rows
        )
        for (topic, queue_id), life in queues.items():
            fill_blank(workshop / "consumequeue", topic, queue_id, life.first, BLANK_UNIT, layout.queue_file_bytes)
        on_step("putting the new files in place")
        _put_in_place(root, workshop)
        return RebuildReport(str(root), False, len(queues), messages, indexed, 0, (), SYSTEM_CLOCK.monotonic() - began)
    finally:
        lock.release()
        if spark is None:
            session.stop()


@dataclasses.dataclass(slots=True)
class _Life:
    """The last life of a queue: where it begins, and how many messages it has."""

    begins_at: int
    first: int
    last: int
    count: int


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


def _add(sums: dict[QueueKey, Compared], compared: Iterable[Compared]) -> None:
    for part in compared:
        key = (part.topic, part.queue_id)
        before = sums.get(key, Compared(*key, 0, 0))
        sums[key] = Compared(*key, before.units + part.units, before.differ + part.differ)


def _put_in_place(root: Path, workshop: Path) -> None:
    findings = Findings(root)
    for name in _DIRECTORIES:
        flush_directory(workshop / name)
        if (root / name).exists():
            (root / name).rename(findings.place_for(root / name))
        (workshop / name).rename(root / name)
    (root / "comet" / "position.json").unlink(missing_ok=True)
    workshop.rmdir()
    flush_directory(root)


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
        given = {name: value for name, value in self.options.items() if name.lower() != _WORK}
        return RebuildReader(parse_store_options(given), _Work.unpacked(self.options[_WORK]))


class RebuildReader(DataSourceReader):
    """Runs one pass; its rows are what tasks found."""

    def __init__(self, options: StoreOptions, work: _Work) -> None:
        self._options = options
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        """One task for each stretch, and where units are written one for the index, which takes longest."""
        tasks = [_Task(stretch) for stretch in stretches(self._options)[self._work.first : self._work.end]]
        return [_Task(None), *tasks] if self._work.kind == "units" else tasks

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Do one task."""
        assert isinstance(partition, _Task)
        work, stretch = self._work, partition.stretch
        bad = BadRecords(self._options.bad_records_path)
        root = Path(work.root)
        live_from = {(topic, queue_id): at for topic, queue_id, at in work.live_from}
        found: Sequence[msgspec.Struct] = ()
        if stretch is None:
            messages = write_index(stretches(self._options), root / "index", work.layout, bad)
            yield (json.dumps({"indexed": messages}),)
        elif work.kind == "lives":
            found = lives(stretch, None if work.known is None else frozenset(work.known), bad)
        elif work.kind == "units":
            write_units(stretch, root / "consumequeue", work.layout, live_from, bad)
        else:
            found = compare_units(stretch, root / "consumequeue", work.layout, live_from, bad)
        for row in found:
            yield (msgspec.json.encode(row).decode(),)
