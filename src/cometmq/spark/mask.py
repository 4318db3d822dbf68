"""The mask job: a copy of topics, an archive or a store with fields dropped, masked, hashed or encrypted.

The copy is an archive (:mod:`~.archive_log`): tasks write files, the driver commits them step by step, and a run goes
on where the last commit ends, so that each message is there once whatever is killed. To a topic it goes from there,
by the replay job, which sends each once. Messages are only ever written masked.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK
from cometmq.durable import replace_file
from cometmq.message.properties import decode_properties
from cometmq.spark.archive_commit import Covered
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.archive_table import TableFormat, format_of
from cometmq.spark.cluster import Bounds
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.job_source import MessageSource, job_session
from cometmq.spark.mask_keys import KeyStore, hash_secret_place, master_key_place
from cometmq.spark.mask_message import Plain
from cometmq.spark.mask_report import MaskedSample, MaskedStep, MaskReport
from cometmq.spark.mask_rules import ENCRYPT, HASH, MaskRules
from cometmq.spark.mask_task import MASKED_COLUMNS, RESULT_DDL, MaskResult, MaskTask, mask_batches
from cometmq.spark.queues import OffsetRange, Offsets, Queue
from cometmq.spark.reach import reach
from cometmq.spark.replay import replay, target_queues
from cometmq.spark.source_ranges import bounds_of, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_OFFSETS: Final = 200_000
"""Offsets of one step: what is read again after a crash. A store is one step, since its log is read as a whole."""
SAMPLES: Final = 3
_JOB: Final = "_mask/job.json"


class _Job(msgspec.Struct, frozen=True):
    """What a copy is; a run with other words needs another directory."""

    source: str
    since_ms: int | None
    until_ms: int | None
    rules: dict[str, Any]


def mask(
    source: MessageSource,
    topics: str | Sequence[str],
    rules: MaskRules,
    to: str | Path,
    *,
    table_format: TableFormat | str | None = None,
    keys: str | Path | None = None,
    master_key_file: str | Path | None = None,
    hash_secret_file: str | Path | None = None,
    dry_run: bool = False,
    samples: int = SAMPLES,
    step_offsets: int = STEP_OFFSETS,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[MaskedStep], object] = lambda _: None,
    stop: threading.Event | None = None,
) -> MaskReport:
    """Copy topics into an archive with fields masked, and return what was done.

    :param source: brokers, an archive, or a store; with times only what was stored between them is copied.
    :param rules: see :func:`~.mask_rules.rules_from_toml` and :func:`~.mask_rules.rules_from_options`.
    :param to: directory that driver and executors share; the same one again goes on where the last run stopped.
    :param table_format: of a copy that is not there yet, as of :func:`~.archive.archive`: ``parquet``, ``delta`` or
        ``iceberg``, or more in a :class:`~.archive_table.TableFormat`.
    :param keys: file of the subjects' keys, made when it is not there; needed where a rule encrypts.
    :param master_key_file: the key that wraps them; in the environment (``COMETMQ_MASK_MASTER_KEY``) without it.
    :param hash_secret_file: the secret of hashes; in the environment (``COMETMQ_MASK_HASH_SECRET``) without it.
    :param dry_run: write nothing; count, and show some messages before and after.
    :param samples: how many.
    :param step_offsets: offsets of the source in one step.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: called after each step; ``stop``, when set, ends the run after the step under way.
    :raises OptionError: an argument is wrong, a secret is missing, or a topic is not there.
    :raises ArchiveError: another job holds the copy, or it is another one.
    :raises MaskError: the keys cannot be opened.
    :raises SparkSourceError: a message may not go apart and cannot be masked, or cannot be read; what was committed
        stays.
    """
    named = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    root = Path(to).absolute()
    began = SYSTEM_CLOCK.monotonic()
    task = MaskTask(
        str(root),
        rules,
        None if keys is None else str(Path(keys).absolute()),
        master_key_place(master_key_file),
        hash_secret_place(hash_secret_file),
    )
    _demand_secrets(task, dry_run=dry_run)
    bounds = bounds_of(source, named)
    log = ArchiveLog(root, format_of(table_format))
    place = source.namesrv or str((source.archive or source.store or root).absolute())
    job = _Job(place, source.begin_ms, source.end_ms, rules.to_dict())
    with job_session(spark, master, "cometmq mask") as session:
        run = _Run(session, source, task, on_step)
        if dry_run:
            _demand_same_job(root, log, job)
            run.count(_left(bounds, log.next_offsets()))
            shown = tuple(run.samples(bounds, samples))
            return run.report(str(source), root, log, dry_run=True, finished=True, began=began, samples=shown)
        with log.locked():
            _demand_same_job(root, log, job)
            if not (root / _JOB).exists():
                replace_file(root / _JOB, msgspec.json.format(msgspec.json.encode(job), indent=1))
            most = step_offsets if source.store is None else 1 << 62
            finished = True
            for ranges in _steps(_left(bounds, log.next_offsets()), most):
                if stop is not None and stop.is_set():
                    finished = False
                    break
                run.step(log, ranges, began)
            return run.report(str(source), root, log, dry_run=False, finished=finished, began=began)


def mask_to_topic(
    source: MessageSource,
    topic: str,
    rules: MaskRules,
    work: str | Path,
    namesrv: str,
    to: str,
    *,
    by_key: bool = False,
    per_second: float | None = None,
    to_access: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    stop: threading.Event | None = None,
    **named: Any,
) -> MaskReport:
    """Copy one topic into another, each message once, with fields masked.

    :param work: directory that keeps the masked messages and how far they are sent; the same one again goes on.
    :param namesrv: nameservers of ``to``, which must exist.
    :param by_key: as of :func:`~.replay.replay`, like ``per_second``.
    :param to_access: credentials and TLS for ``namesrv``, if not those of the source.
    :param named: as of :func:`mask`.
    :raises CometMQError: as :func:`mask` and :func:`~.replay.replay`.
    """
    place = Path(work).absolute()
    access = source.access if to_access is None else to_access
    target_queues(reach(namesrv, access), to)  # before anything is masked
    with job_session(spark, master, "cometmq mask") as session:
        done = mask(source, topic, rules, place / "archive", spark=session, stop=stop, **named)
        if done.dry_run or not done.finished or not done.total:
            return done
        sent = replay(
            place / "archive",
            namesrv,
            place / "ledger",
            topic=topic,
            to=to,
            by_key=by_key,
            per_second=per_second,
            access=access,
            spark=session,
            stop=stop,
        )
        return replace(done, replayed=sent)


def _demand_secrets(task: MaskTask, *, dry_run: bool) -> None:
    """Look here first: a task that finds none fails after minutes."""
    if HASH in task.rules.actions:
        task.hash_secret.read()
    if ENCRYPT in task.rules.actions and not dry_run:
        if task.keys is None:
            raise OptionError(
                "rules that encrypt need a file for the keys of subjects", next_step="name one: --keys FILE"
            )
        KeyStore(task.keys, task.master, make=True).close()


def _demand_same_job(root: Path, log: ArchiveLog, job: _Job) -> None:
    path = root / _JOB
    if not path.exists():
        if log.last() is not None:
            raise ArchiveError(f"{root} holds an archive that is not masked", next_step="name another directory")
        return
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Job)
    except msgspec.MsgspecError as error:
        raise ArchiveError(f"{path} is damaged: {error}", next_step="restore it from a backup") from error
    changed = [name for name in job.__struct_fields__ if getattr(job, name) != getattr(kept, name)]
    if changed:
        raise ArchiveError(
            f"{root} is another copy: {', '.join(changed)} differ",
            next_step="say the same as before to go on, or name another directory",
        )


def _left(bounds: dict[Queue, Bounds], reached: Offsets) -> list[OffsetRange]:
    return [
        OffsetRange(queue, first, held.end)
        for queue, held in sorted(bounds.items())
        if (first := max(held.first, reached.get(queue, 0))) < held.end
    ]


def _steps(left: Sequence[OffsetRange], most: int) -> Iterator[list[OffsetRange]]:
    """Cut into steps of about ``most`` offsets; each takes an equal share of every queue."""
    count = -(-sum(len(part) for part in left) // most)
    for step in range(count):
        cut = [
            OffsetRange(of.queue, of.first + len(of) * step // count, of.first + len(of) * (step + 1) // count)
            for of in left
        ]
        yield [part for part in cut if len(part)]


class _Run:
    """One run, and what it adds up."""

    def __init__(
        self, spark: SparkSession, source: MessageSource, task: MaskTask, on_step: Callable[[MaskedStep], object]
    ) -> None:
        self._spark = spark
        self._source = source
        self._task = task
        self._on_step = on_step
        self._id = f"mask-{uuid.uuid4()}"
        self._values: Counter[str] = Counter({rule.field: 0 for rule in task.rules.rules})
        self._apart: Counter[str] = Counter()
        self._steps: list[MaskedStep] = []
        self._messages = 0
        self._gaps: list[str] = []

    def _rows(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        from pyspark.sql import functions as f

        rows = read_ranges(self._spark, self._source, ranges, MASKED_COLUMNS)
        if self._source.begin_ms is not None:
            rows = rows.where(f.unix_millis("storeTimestamp") >= self._source.begin_ms)
        if self._source.end_ms is not None:
            rows = rows.where(f.unix_millis("storeTimestamp") < self._source.end_ms)
        return rows

    def _results(self, task: MaskTask, ranges: Sequence[OffsetRange]) -> list[MaskResult]:
        """Run the tasks; a row comes back for each file, and one for each task."""
        rows = self._rows(ranges).mapInArrow(partial(mask_batches, task), RESULT_DDL).collect()
        results = [msgspec.json.decode(row[0], type=MaskResult) for row in rows]
        for result in results:
            self._values.update(result.values or {})
            self._apart.update(result.apart or {})
            self._messages += result.messages
        return results

    def count(self, ranges: Sequence[OffsetRange]) -> None:
        """Mask and write nothing."""
        if ranges:
            self._results(replace(self._task, root=None, keys=None), ranges)

    def step(self, log: ArchiveLog, ranges: Sequence[OffsetRange], began: float) -> None:
        """Write and commit one step."""
        before = self._messages
        files = [result.file for result in self._results(self._task, ranges) if result.file is not None]
        covered = [Covered(*part.queue, part.first, part.end) for part in ranges]
        commit = log.append(self._id, len(self._steps), covered, files)
        self._gaps += commit.gaps if commit is not None else []
        done = MaskedStep(self._messages - before, self._messages, SYSTEM_CLOCK.monotonic() - began)
        self._steps.append(done)
        self._on_step(done)

    def samples(self, bounds: dict[Queue, Bounds], most: int) -> Iterator[MaskedSample]:
        """Some messages before and after; encrypted with keys that nobody keeps."""
        first = [
            OffsetRange(queue, held.first, held.end) for queue, held in sorted(bounds.items()) if held.first < held.end
        ]
        if not first or not most:
            return
        shown = ("topic", "brokerName", "queueId", "queueOffset", "body", "propertiesText")
        rows = self._rows(first).where("body IS NOT NULL").select(*shown).limit(most).collect()
        with replace(self._task, root=None, keys=None).masker() as masker:
            outcomes = masker.masked(Plain(bytes(row["body"]), row["propertiesText"] or "") for row in rows)
        for row, outcome in zip(rows, outcomes, strict=True):
            after = outcome if isinstance(outcome, Plain) else None
            yield MaskedSample(
                topic=row["topic"],
                broker=row["brokerName"],
                queue_id=row["queueId"],
                queue_offset=row["queueOffset"],
                before=bytes(row["body"]).decode("utf-8", "replace"),
                after=after.body.decode("utf-8", "replace") if after is not None else f"apart: {outcome}",
                properties_before=decode_properties(row["propertiesText"] or ""),
                properties_after=decode_properties(after.properties_text) if after is not None else {},
            )

    def report(
        self,
        source: str,
        root: Path,
        log: ArchiveLog,
        *,
        dry_run: bool,
        finished: bool,
        began: float,
        samples: tuple[MaskedSample, ...] = (),
    ) -> MaskReport:
        """What was done."""
        warnings = [f"{gap} was gone before it could be copied" for gap in self._gaps]
        if self._messages:
            warnings += [f"no message has {field}" for field, count in self._values.items() if not count]
        return MaskReport(
            source=source,
            to=str(root),
            dry_run=dry_run,
            finished=finished,
            messages=self._messages,
            total=sum(of.rows for of in log.queues()),
            values=dict(self._values),
            apart=dict(self._apart),
            steps=tuple(self._steps),
            warnings=tuple(warnings),
            replayed=None,
            seconds=SYSTEM_CLOCK.monotonic() - began,
            samples=samples,
        )
