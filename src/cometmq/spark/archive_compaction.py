"""The compaction job: small files of a queue's hour joined into larger ones, while others read and write the archive.

Files that lie next to each other in the order of offsets are joined up to a size; tasks write the new files, and one
commit puts them in the place of the old ones. Readers see the old files or the new ones, never both. A run that was
killed leaves at most files that no commit names; the next one plans what is left. The old files stay on the disk
until ``vacuum`` takes them, for readers that have begun with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.spark.archive_commit import DataFile, hour_ended_ms
from cometmq.spark.archive_log import JOINING, ArchiveLog
from cometmq.spark.archive_upkeep import COMPACT, Change, Upkeep, UpkeepReport
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.job_source import job_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TARGET_BYTES: Final = 128 * 1024 * 1024
"""Size up to which files are joined: some hundred files for a terabyte's day, and still one task each to read."""
SETTLED_MS: Final = 3_600_000
"""How long ago an hour must have ended: a job that archives all the time still adds to it before."""
COMMIT_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Bytes joined in one commit: a minute or so to repeat after a crash."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Files of one queue and hour, in the order of offsets, that become one."""

    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(file.bytes for file in self.files)


def compact(
    archive: str | Path,
    *,
    target_bytes: int = TARGET_BYTES,
    settled_ms: int = SETTLED_MS,
    topics: Sequence[str] = (),
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[Upkeep], None] = lambda _: None,
    stop: threading.Event | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> UpkeepReport:
    """Join small files of an archive, and return what was done.

    :param target_bytes: files are joined as long as the result is not larger; larger ones stay as they are.
    :param settled_ms: only hours that ended so long ago, ms.
    :param topics: only these; all without any.
    :param dry_run: change nothing; say what would be joined.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: called after each commit; ``stop``, when set, ends the run after the commit under way.
    :raises OptionError: an argument is wrong, or there is no archive, or none of a topic.
    :raises ArchiveError: another upkeep of it is under way, or a file cannot be joined as it is.
    """
    if target_bytes < 1:
        raise OptionError(f"files of {target_bytes} bytes cannot be made")
    log = ArchiveLog(archive, clock=clock)
    log.demand_any(topics)
    work = Upkeep(COMPACT, log, dry_run, on_step)
    with log.kept_up():
        files = [file for file in log.files() if not topics or file.topic in topics]
        planned = planned_joinings(files, target_bytes, clock.now_ms() - settled_ms)
        if dry_run or not planned:
            for joining in planned:
                work.changed(_expected(joining))
            return work.report(finished=True)
        log.discard(JOINING)
        with job_session(spark, master, "cometmq archive compact") as session:
            for step in _steps(planned):
                if stop is not None and stop.is_set():
                    return work.report(finished=False)
                made = _join(session, log.root, step)
                log.replace([file for joining in step for file in joining.files], made)
                for joining, file in zip(step, made, strict=True):
                    work.changed(Change(file.topic, joining.files[0].path, joining.files, (file,)))
                work.stepped()
    return work.report(finished=True)


def planned_joinings(files: Iterable[DataFile], target_bytes: int, ended_before_ms: int) -> list[Joining]:
    """Choose what is joined: neighbours in the order of offsets, two at least, up to ``target_bytes`` together."""
    hours: dict[str, list[DataFile]] = {}
    for file in files:
        if hour_ended_ms(file.path) <= ended_before_ms:
            hours.setdefault(file.path.rpartition("-")[0].rpartition("-")[0], []).append(file)
    planned = []
    for _, held in sorted(hours.items()):
        gathered: list[DataFile] = []
        for file in sorted(held, key=lambda file: file.first):
            if gathered and sum(of.bytes for of in gathered) + file.bytes > target_bytes:
                planned.append(Joining(tuple(gathered)))
                gathered = []
            gathered.append(file)
        planned.append(Joining(tuple(gathered)))
    return [joining for joining in planned if len(joining.files) > 1]


def _steps(planned: Iterable[Joining]) -> Iterator[list[Joining]]:
    step: list[Joining] = []
    for joining in planned:
        step.append(joining)
        if sum(of.bytes for of in step) >= COMMIT_BYTES:
            yield step
            step = []
    if step:
        yield step


def _expected(joining: Joining) -> Change:
    """What a joining would make; the size is that of its files."""
    first, last = joining.files[0], joining.files[-1]
    rows = sum(file.rows for file in joining.files)
    made = msgspec.structs.replace(first, end=last.end, rows=rows, bytes=joining.bytes)
    return Change(first.topic, first.path, joining.files, (made,))


def _join(spark: SparkSession, root: Path, step: Sequence[Joining]) -> list[DataFile]:
    """Write the new files, each in a task of its own."""
    plans = [joining.files for joining in step]

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = msgspec.json.encode(join_files(root, plans[number])).decode()
                yield pa.RecordBatch.from_pydict({"number": [number], "file": [made]})

    rows: list[Any] = spark.range(0, len(plans), 1, len(plans)).mapInArrow(work, "number bigint, file string").collect()
    made = {row["number"]: msgspec.json.decode(row["file"], type=DataFile) for row in rows}
    return [made[number] for number in range(len(plans))]


def join_files(root: Path, files: Sequence[DataFile]) -> DataFile:
    """Write the messages of some files of one queue and hour, in the order of offsets, into one file.

    :raises ArchiveError: it is not the messages that the table says.
    """
    import numpy as np
    import pyarrow.parquet as pq

    from cometmq.spark.archive_writer import QueueWriter
    from cometmq.spark.columns import ARCHIVE_COLUMNS, arrow_schema

    schema = arrow_schema(ARCHIVE_COLUMNS)
    writer = QueueWriter(root, files[0].queue, schema, writing=JOINING)
    for file in files:
        rows, last = 0, file.first - 1
        with pq.ParquetFile(root / file.path) as opened:
            for batch in opened.iter_batches(use_threads=False):
                offsets = np.concatenate(([last], batch.column("queueOffset").to_numpy()))
                _demand(bool((np.diff(offsets) > 0).all()), file)
                rows, last = rows + batch.num_rows, int(offsets[-1])
                writer.add(batch.cast(schema))
        _demand((rows, last + 1) == (file.rows, file.end), file)
    made = writer.close()
    _demand(len(made) == 1, files[0])
    return msgspec.structs.replace(made[0], committed_ms=max(file.committed_ms for file in files))


def _demand(good: bool, file: DataFile) -> None:
    if not good:
        raise ArchiveError(
            f"{file.path} does not hold the {file.rows} messages that the table says",
            next_step="see what is damaged: cometmq pipeline audit; then restore it from a backup",
        )
