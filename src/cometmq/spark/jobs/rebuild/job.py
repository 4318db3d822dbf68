"""The rebuild job. It rebuilds a store's consume queues and index from its log, byte for byte as a broker writes them.

1. The job searches each log split for the ends of queues and for new generations of topics.
2. Tasks read the splits again in parallel and write their units. One more task writes the index.
3. When all files are on disk, the job records this in ``comet/position.json``, which the next broker that opens the
   store checks. Then the new directories replace the old directories, which are moved to ``comet/quarantine/``.

Before the third step, the store is unchanged. After a crash in the second step the next run continues: ``plan`` in the
job's working directory contains the log files and settings, and ``done`` contains a file for each finished split and
for the index. If the plan has changed, or after a crash in the third step, the job starts from the beginning.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.apache_keys import BROKER, apache_keys
from cometmq.clock import SYSTEM_CLOCK
from cometmq.durable import flush_directory, replace_file
from cometmq.options import load_options
from cometmq.properties_file import read_properties
from cometmq.quantity import quantity
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import RebuildOptions, Tell
from cometmq.spark.jobs.rebuild.ends import keep_end, old_queues
from cometmq.spark.jobs.rebuild.tasks import (
    Compared,
    Layout,
    QueueKey,
    Seen,
    compare_units,
    fill_blank,
    generations,
    write_index,
    write_units,
)
from cometmq.spark.jobs.report.parts import Part, Table
from cometmq.spark.jobs.report.plots import Plot, bars
from cometmq.spark.jobs.report.report import FAILED, Report
from cometmq.spark.jobs.run import job_session, run_tasks
from cometmq.spark.store.options import parse_store_options
from cometmq.spark.store.scan import LogSplit, splits
from cometmq.storage import Storage, open_storage
from cometmq.store.config import StoreConfig
from cometmq.store.log.checkpoint import StoreLock
from cometmq.store.queue.consume_queue import BLANK_UNIT
from cometmq.store.recovery.file_sizes import use_existing_sizes
from cometmq.store.recovery.known_topics import known_topics
from cometmq.store.recovery.load import Findings
from cometmq.store.recovery.lost_log import require_log
from cometmq.store.recovery.position import mark_as_rebuilt
from cometmq.store.version import require_readable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """The units in one consume queue."""

    topic: str
    queue_id: int
    units: int
    """Number of the queue's messages in the log."""
    differ: int
    """Number of units in the files that differ from the log, or 0 for a queue that was rebuilt."""


@dataclass(frozen=True)
class RebuildReport(Report):
    """The queues that were rebuilt or compared."""

    COMPUTED = ("messages", "differ")

    store: str
    dry_run: bool
    queues: tuple[QueueUnits, ...]
    indexed: int
    """Number of messages that have index entries; 0 in a dry run, which does not check the index."""
    seconds: float

    @property
    def messages(self) -> int:
        """Return the number of messages in all queues."""
        return sum(of.units for of in self.queues)

    @property
    def differ(self) -> int:
        """Return the number of units that differ from the log."""
        return sum(of.differ for of in self.queues)

    @property
    def title(self) -> str:
        """Return the title of the page."""
        return f"{'Comparison' if self.dry_run else 'Rebuild'} of {self.store}"

    @property
    def exit_code(self) -> int:
        """Return exit code 1 if queues differ from the log."""
        return FAILED if self.differ else 0

    @property
    def _by_difference(self) -> list[QueueUnits]:
        return sorted(self.queues, key=lambda of: (-of.differ, of.topic, of.queue_id))

    @property
    def verdict(self) -> str:
        """Return a sentence that states whether the queues and the log agree."""
        if self.differ:
            return f"{quantity(self.differ, 'unit')} of queues differ{'s' * (self.differ == 1)} from the log"
        return "All queues agree with the log" if self.dry_run else "Queues and index are rebuilt"

    def _figures(self) -> list[tuple[str, str]]:
        counts = [("messages", self.messages), ("queues", len(self.queues))]
        counts.append(("differ", self.differ) if self.dry_run else ("in the index", self.indexed))
        return [*((f"{count:,}", name) for name, count in counts), (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        held = f"{quantity(self.messages, 'message')} of {quantity(len(self.queues), 'queue')}"
        if self.dry_run:
            yield f"{self.store}: compared {held} in {self.seconds:.1f} s, {self.differ:,} differ from the log"
        else:
            yield (
                f"{self.store}: rebuilt {held}, {self.indexed:,} of them in the index, in {self.seconds:.1f} s; "
                "the old files are in comet/quarantine"
            )
        if self.queues:
            rows = [(of.topic, of.queue_id, of.units, of.differ) for of in self._by_difference]
            yield Table(("<topic", ">queue", ">messages", ">differ"), rows, "Queues", most=40, what="queues")

    def _plots(self) -> list[Plot]:
        shown = [(f"{of.topic[:24]} {of.queue_id}", of) for of in self._by_difference[:60]]
        plots: list[Plot] = [bars("By queue", "messages", ((name, of.units) for name, of in shown))]
        if self.differ:
            plots.append(bars("Differences from the log", "units", ((name, of.differ) for name, of in shown)))
        return plots


SPLITS_OF_JOB: Final = 256
"""Number of log splits that one Spark job searches: 32 GiB in total. The driver receives a row for each queue and
split.
"""
WORKSHOP: Final = "comet/rebuild"
"""Directory for the new files, below the store."""
_PLAN, _DONE, _INDEX = "plan", "done", "index"
"""Names of the files in that directory that record the progress."""
_DIRECTORIES: Final = ("consumequeue", "index")


@job(RebuildOptions)
def rebuild(options: RebuildOptions) -> RebuildReport:
    """Rebuild the consume queues and the index of a store from its log.

    :raises StoreLockedError: a broker is using the store.
    :raises NoStoreError: the directory has no log.
    :raises StoreError: the log is empty although the queues contain messages, or a newer version wrote the store.
    :raises ConfigError: the configuration file is invalid.
    :raises SparkSourceError: the log cannot be read, or contains damaged records while ``bad_records_path`` is not set.
    """
    began = SYSTEM_CLOCK.monotonic()
    root, dry_run, on_step = Path(options.store).absolute(), options.dry_run, options.on_step
    parts = splits(parse_store_options({"path": str(root), "useConsumeQueue": "true" if dry_run else "false"}))
    lock = StoreLock(root / "lock")
    try:
        config = _config(options.config, root, on_step)
        with job_session(options, "cometmq rebuild") as session:
            apart = options.bad_records_path
            passes = _Passes(session, root, parts, config, None if apart is None else open_storage(apart))
            on_step(f"searching {len(parts)} splits of the log")
            queues = passes.generations()
            messages = sum(generation.count for generation in queues.values())
            what = f"{quantity(messages, 'message')} of {quantity(len(queues), 'queue')}"
            if dry_run:
                on_step(f"comparing {what}")
                compared, indexed = passes.compare(queues), 0
            else:
                on_step(f"writing units of {what}, and the index")
                compared, indexed = Counter(), passes.write(queues)
                on_step("putting the new files in place")
                _put_in_place(root)
    finally:
        lock.release()
    made = [QueueUnits(*key, queues[key].count, compared.get(key, 0)) for key in sorted(queues)]
    return RebuildReport(str(root), dry_run, tuple(made), indexed, SYSTEM_CLOCK.monotonic() - began)


def _config(given: StoreConfig | Path | None, root: Path, tell: Tell) -> StoreConfig:
    """Return the broker's configuration, which determines the sizes of the store's files.

    The store path in the file is ignored, since the file may be from another machine.
    """
    mark = require_readable(root)
    sizes = mark.sizes if mark is not None else None
    if given is None:
        config = StoreConfig() if sizes is None else StoreConfig().with_sizes(sizes)
    elif isinstance(given, StoreConfig):
        config = given
    else:
        config, _ = load_options(StoreConfig, read_properties(given), source=str(given), apache=apache_keys(BROKER))
    config = replace(config, store_path_root_dir=str(root), store_path_commit_log="")
    config, kept = use_existing_sizes(config, sizes)
    for line in kept:
        tell(line)
    require_log(config)
    return config


@dataclass(slots=True)
class _Generation:
    """A queue's last generation: its first offset and its number of messages."""

    begins_at: int
    first: int
    last: int
    count: int


class _Plan(msgspec.Struct, frozen=True):
    """Everything that determines the units and the index. A working directory belongs to one plan."""

    layout: Layout
    live_from: list[tuple[str, int, int]]
    splits: list[LogSplit]
    bad_records_path: str | None
    files: list[tuple[str, int, int]]
    """Name, size and modification time of each file in the log."""


class _Passes:
    """The passes of the rebuild job over the log."""

    def __init__(
        self, spark: SparkSession, root: Path, parts: list[LogSplit], config: StoreConfig, bad_records: Storage | None
    ) -> None:
        self._spark = spark
        self._root = root
        self._parts = parts
        self._layout = Layout(
            config.consume_queue_file_bytes, config.max_hash_slot_num, config.max_index_num, tuple(config.delays_ms)
        )
        self._bad_records = bad_records
        self._known = known_topics(root, Findings(root))

    def generations(self) -> dict[QueueKey, _Generation]:
        """Find each queue's last generation in the log."""
        work = partial(generations, known=self._known, bad_records=self._bad_records)
        found: dict[QueueKey, _Generation] = {}
        for some in self._some_at_a_time():
            _follow(found, run_tasks(self._spark, some, work, Seen))
        return found

    def compare(self, queues: Mapping[QueueKey, _Generation]) -> Counter[QueueKey]:
        """Count each queue's units that differ from the log."""
        work = partial(
            compare_units,
            root=self._root / "consumequeue",
            layout=self._layout,
            live_from=_live_from(queues),
            bad_records=self._bad_records,
        )
        differ: Counter[QueueKey] = Counter()
        for some in self._some_at_a_time():
            for part in run_tasks(self._spark, some, work, Compared):
                differ[part.topic, part.queue_id] += part.differ
        return differ

    def _some_at_a_time(self) -> Iterator[list[LogSplit]]:
        for first in range(0, len(self._parts), SPLITS_OF_JOB):
            yield self._parts[first : first + SPLITS_OF_JOB]

    def write(self, queues: Mapping[QueueKey, _Generation]) -> int:
        """Write the new directories, or their missing parts. Return the number of messages in the index."""
        workshop, live_from = self._root / WORKSHOP, _live_from(queues)
        files = [(file.name, *_identity(file)) for file in sorted((self._root / "commitlog").glob("*"))]
        begins = [(*key, at) for key, at in sorted(live_from.items())]
        apart = None if self._bad_records is None else self._bad_records.url
        plan = msgspec.json.encode(_Plan(self._layout, begins, self._parts, apart, files))
        if not (workshop / _PLAN).exists() or (workshop / _PLAN).read_bytes() != plan:
            shutil.rmtree(workshop, ignore_errors=True)
            for name in (*_DIRECTORIES, _DONE):
                (workshop / name).mkdir(parents=True)
            replace_file(workshop / _PLAN, plan)
        done = {path.name for path in (workshop / _DONE).iterdir()}
        # The index is one task, and takes longest.
        left = [split for split in (None, *self._parts) if _name_of(split) not in done]
        if left:
            work = partial(_write, workshop, self._parts, self._layout, live_from, self._bad_records)
            run_tasks(self._spark, left, work, Seen)
        made = workshop / "consumequeue"
        for (topic, queue_id), generation in queues.items():
            fill_blank(made, topic, queue_id, generation.first, BLANK_UNIT, self._layout.queue_file_bytes)
        log_begin, log_end = self._parts[0].file.start, self._parts[-1].file.end
        for key, old in old_queues(self._root, self._layout, self._known, log_end):
            keep_end(old, made, queues[key].last + 1 if key in queues else 0, log_begin)
        return int((workshop / _DONE / _INDEX).read_bytes())


def _live_from(queues: Mapping[QueueKey, _Generation]) -> dict[QueueKey, int]:
    return {key: generation.begins_at for key, generation in queues.items()}


def _write(
    workshop: Path,
    parts: list[LogSplit],
    layout: Layout,
    live_from: Mapping[QueueKey, int],
    aside: Storage | None,
    split: LogSplit | None,
) -> tuple[Seen, ...]:
    """Write a split's units or, for ``None``, the index. An earlier attempt may have written part of them."""
    if split is None:
        shutil.rmtree(workshop / _INDEX)
        (workshop / _INDEX).mkdir()  # messages without keys leave it empty
        done = b"%d" % write_index(parts, workshop / _INDEX, layout, aside)
    else:
        write_units(split, workshop / "consumequeue", layout, live_from, aside)
        done = b""
    replace_file(workshop / _DONE / _name_of(split), done)
    return ()


def _name_of(split: LogSplit | None) -> str:
    return _INDEX if split is None else f"{split.begin}-{split.end}"


def _follow(found: dict[QueueKey, _Generation], seen: Iterable[Seen]) -> None:
    """Add further splits to each queue, in log order."""
    for part in sorted(seen, key=lambda part: part.begins_at):
        key = (part.topic, part.queue_id)
        generation = found.get(key)
        if part.restarts_at != part.begins_at:
            count = part.last - part.restarts_with + 1
            found[key] = _Generation(part.restarts_at, part.restarts_with, part.last, count)
        elif generation is None or part.first <= generation.last:
            found[key] = _Generation(part.begins_at, part.first, part.last, part.count)
        else:
            generation.last = part.last
            generation.count += part.count


def _put_in_place(root: Path) -> None:
    findings = Findings(root)
    workshop = root / WORKSHOP
    (workshop / _PLAN).unlink()  # what is missing there from now on is not to be made
    for name in _DIRECTORIES:
        flush_directory(workshop / name)
    mark_as_rebuilt(root / "comet" / "position.json")
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
