"""The mask job: it copies topics, an archive or a store, and drops, masks, hashes or encrypts fields.

The copy is an archive (:mod:`cometmq.spark.archives.log`): tasks write files, the driver commits them step by step, and
a run continues where the last commit ends. So each message is copied once, even if processes are killed. The replay job
sends the copy to a topic, each message once. The job never writes unmasked messages.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as f

from cometmq.archive.changes import Batch
from cometmq.archive.commits import Covered
from cometmq.client.blocking.offsets import Bounds
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.properties import decode_properties
from cometmq.quantity import are, quantity
from cometmq.spark.archives.log import ArchiveLog, demand_same_queues
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.documents import create_document, find_document
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.mask.keys import KeyStore, hash_secret_place, master_key_place
from cometmq.spark.jobs.mask.task import MASKED_COLUMNS, MaskResult, MaskTask, Plain, mask_batches
from cometmq.spark.jobs.mask_rules import ENCRYPT, HASH
from cometmq.spark.jobs.message_source import bounds_of, other_queues, read_ranges
from cometmq.spark.jobs.options import CopyOptions, MaskOptions, MaskToTopicOptions
from cometmq.spark.jobs.replay.job import replay, target_queues
from cometmq.spark.jobs.replay.report import ReplayReport
from cometmq.spark.jobs.report.parts import Notes, Part, Table
from cometmq.spark.jobs.report.plots import Line, Plot, bars
from cometmq.spark.jobs.report.report import Report, RunReport, Step
from cometmq.spark.jobs.run import collect_results, job_session
from cometmq.spark.records.queues import OffsetRange, Offsets, Queue, steps_of
from cometmq.spark.security_options import server_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN: Final = 400
"""Maximum number of characters of a sampled body in a table."""


@dataclass(frozen=True, slots=True)
class MaskedSample:
    """One message before and after masking."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    before: str
    """Original body as text."""
    after: str
    """Masked body, or the reason why the message would be left out."""
    properties_before: dict[str, str]
    properties_after: dict[str, str]


@dataclass(frozen=True)
class MaskReport(RunReport):
    """The result of one run of the mask job."""

    COMPUTED = ("complete",)

    source: str
    to: str
    """Directory of the copy."""
    dry_run: bool
    finished: bool
    messages: int
    """Number of messages that this run copied or, in a dry run, would copy."""
    total: int
    """Number of messages that the copy now contains."""
    values: dict[str, int]
    """Number of masked values, by the rule's field."""
    apart: dict[str, int]
    """Number of messages that are not in the copy, by reason."""
    steps: tuple[Step, ...]
    warnings: tuple[str, ...]
    replayed: ReplayReport | None
    """Report of the replay to a topic, if the messages were sent to one."""
    seconds: float
    topics: tuple[str, ...] = ()
    samples: tuple[MaskedSample, ...] = ()
    """Sample messages, shown only in a dry run."""

    @property
    def complete(self) -> bool:
        """Return True if all messages were copied."""
        return self.finished and not self.apart and (self.replayed is None or self.replayed.complete)

    @property
    def title(self) -> str:
        """Return the title of the page."""
        return f"Masked copy of {', '.join(self.topics)}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON, except the samples, which contain unmasked values."""
        plain = Report.to_dict(replace(self, samples=()))
        del plain["samples"], plain["topics"]
        return plain | {"replayed": None if self.replayed is None else self.replayed.to_dict()}

    @property
    def verdict(self) -> str:
        """Return a sentence that states whether the copy is complete, or what is missing."""
        if self.apart:
            return f"{quantity(sum(self.apart.values()), 'message')} {are(sum(self.apart.values()))} not in the copy"
        if self.replayed is not None and not self.replayed.complete:
            return f"The replay: {self.replayed.verdict}"
        return super().verdict

    def _figures(self) -> list[tuple[str, str]]:
        figures = [(f"{self.messages:,}", "would be copied" if self.dry_run else "copied by this run")]
        if not self.dry_run:
            figures.append((f"{self.total:,}", "in the copy"))
        figures.append((f"{sum(self.values.values()):,}", "values masked"))
        return [*figures, (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        verb = "would be copied" if self.dry_run else "copied"
        yield f"{quantity(self.messages, 'message')} of {self.source} {verb} to {self.to}; {self.seconds:.1f} s"
        if not self.dry_run:
            yield f" the copy contains {self.total:,}" + ("" if self.finished else "; stopped before the end")
        if self.warnings:
            yield Notes(self.warnings, urgent=True)
        yield Table(("<field", ">values masked"), [*self.values.items()], "Masked values")
        if self.apart:
            yield Table(("<not copied", ">messages"), sorted(self.apart.items()), "Not copied")
        if self.replayed is not None:
            yield ""
            yield from self.replayed._parts()

    def _plots(self) -> list[Plot]:
        plots: list[Plot] = [bars("Masked", "values", ((name[:24], count) for name, count in self.values.items()))]
        if len(self.steps) > 1:
            at, totals = [step.seconds for step in self.steps], {"messages": [step.total for step in self.steps]}
            plots.append(Line("Progress", "messages copied", "seconds", at, totals))
        return plots

    def render_samples(self) -> str:
        """Return the samples from a dry run. They contain unmasked values."""
        lines = []
        for of in self.samples:
            lines += ["", f"{of.topic} at {of.broker}, queue {of.queue_id}, offset {of.queue_offset}:"]
            lines += [f"  before  {of.before[:_SHOWN]}", f"  after   {of.after[:_SHOWN]}"]
            for name, value in of.properties_before.items():
                if of.properties_after.get(name) != value:
                    lines.append(f"  {name}: {value} → {of.properties_after.get(name, 'dropped')}"[:_SHOWN])
        return "\n".join(lines)


_JOB: Final = "_mask/job.json"


class _Job(msgspec.Struct, frozen=True):
    """A copy's identity. A run with different options needs another directory."""

    source: str
    since_ms: int | None
    until_ms: int | None
    rules: dict[str, Any]


@job(MaskOptions)
def mask(options: MaskOptions) -> MaskReport:
    """Copy topics into an archive, mask fields, and return the report.

    ``to`` is a directory that the driver and the executors share, or a URL. A run with the same place continues where
    the last run stopped. A store is read in one step, since its entire log must be read.

    :raises OptionError: an argument is invalid, a secret is missing, or a topic does not exist.
    :raises ArchiveError: another job holds the copy, or the copy was made with other options.
    :raises MaskError: the keys cannot be opened.
    :raises SparkSourceError: a message cannot be read, or a message that must not be left out cannot be masked.
        Committed messages are kept.
    """
    source, topics, rules, dry_run = options.source, options.topics, options.rules, options.dry_run
    named = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    task = MaskTask(
        None,
        rules,
        None if options.keys is None else str(Path(options.keys).absolute()),
        master_key_place(options.master_key_file),
        hash_secret_place(options.hash_secret_file),
    )
    _demand_secrets(task, dry_run=dry_run)
    bounds = bounds_of(source, named)
    log = ArchiveLog(options.to, options.table_format, storage=source.storage)
    place = source.namesrv or str(source.store or source.archive)
    words = _Job(place, source.begin_ms, source.end_ms, rules.to_dict())
    with job_session(options, "cometmq mask") as session:
        run = _Run(session, options, task, named)
        demand_same_queues(log.url, other_queues(source, log.marks()))
        if dry_run:
            _demand_same_job(log, words)
            run.count(_left(bounds, log.next_offsets()))
            shown = tuple(run.samples(bounds, options.samples))
            return run.report(log, finished=True, samples=shown)
        with log.locked():
            _demand_same_job(log, words)
            if find_document(log.storage, _JOB, _Job) is None:
                create_document(log.storage, _JOB, words)
            most = options.step_offsets if source.store is None else 1 << 62
            finished = True
            for ranges in steps_of(_left(bounds, log.next_offsets()), most):
                if options.stop is not None and options.stop.is_set():
                    finished = False
                    break
                run.step(log, ranges)
            return run.report(log, finished=finished)


@job(MaskToTopicOptions)
def mask_to_topic(options: MaskToTopicOptions) -> MaskReport:
    """Copy each message of one topic once into another topic, and mask fields.

    ``work`` is a directory or URL that stores the masked messages and the progress of sending. A run with the same
    place continues where the last run stopped. ``namesrv`` and ``to_access`` specify the cluster with the topic ``to``,
    which must exist.

    :raises CometMQError: see :func:`mask` and :func:`cometmq.spark.replay`.
    """
    access = options.source.access if options.to_access is None else options.to_access
    target_queues(server_options(options.namesrv, access), options.to)  # before anything is masked
    with job_session(options, "cometmq mask") as session:
        common = {of.name: getattr(options, of.name) for of in fields(CopyOptions)} | {"spark": session}
        done = mask(options.source, options.topic, options.rules, f"{options.work}/archive", **common)
        if done.dry_run or not done.finished or not done.total:
            return done
        sent = replay(
            f"{options.work}/archive",
            options.namesrv,
            f"{options.work}/ledger",
            topic=options.topic,
            to=options.to,
            by_key=options.by_key,
            per_second=options.per_second,
            access=access,
            storage=options.source.storage,
            spark=session,
            stop=options.stop,
        )
        return replace(done, replayed=sent)


def _demand_secrets(task: MaskTask, *, dry_run: bool) -> None:
    """Check the secrets before Spark starts. Otherwise, a task would only fail after several minutes."""
    if HASH in task.rules.actions:
        task.hash_secret.read()
    if ENCRYPT in task.rules.actions and not dry_run:
        if task.keys is None:
            raise OptionError(
                "rules with encrypt need a file for the keys of subjects", next_step="set it: --keys FILE"
            )
        KeyStore(task.keys, task.master, make=True).close()


def _demand_same_job(log: ArchiveLog, job: _Job) -> None:
    if log.in_catalog and log.last() is None:
        return  # the catalog has not chosen a location yet
    saved: _Job | None = find_document(log.storage, _JOB, _Job)
    if saved is None:
        if log.queues():
            raise ArchiveError(f"{log.url} contains an archive that is not masked", next_step="use another directory")
        return
    changed = [name for name in job.__struct_fields__ if getattr(job, name) != getattr(saved, name)]
    if changed:
        raise ArchiveError(
            f"{log.url} is a copy with other options: {', '.join(changed)} differ",
            next_step="use the same options as before to continue, or use another directory",
        )


def _left(bounds: dict[Queue, Bounds], reached: Offsets) -> list[OffsetRange]:
    return [
        OffsetRange(queue, first, held.end)
        for queue, held in sorted(bounds.items())
        if (first := max(held.first, reached.get(queue, 0))) < held.end
    ]


class _Run:
    """One run of the mask job, and its totals."""

    def __init__(self, spark: SparkSession, options: MaskOptions, task: MaskTask, topics: tuple[str, ...]) -> None:
        self._began = SYSTEM_CLOCK.monotonic()
        self._spark = spark
        self._options = options
        self._source = options.source
        self._task = task
        self._topics = topics
        self._id = f"mask-{uuid.uuid4()}"
        self._values: Counter[str] = Counter({rule.field: 0 for rule in task.rules.rules})
        self._apart: Counter[str] = Counter()
        self._steps: list[Step] = []
        self._messages = 0
        self._gaps: list[str] = []

    def _rows(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        rows = read_ranges(self._spark, self._source, ranges, MASKED_COLUMNS)
        if self._source.begin_ms is not None:
            rows = rows.where(f.unix_millis("storeTimestamp") >= self._source.begin_ms)
        if self._source.end_ms is not None:
            rows = rows.where(f.unix_millis("storeTimestamp") < self._source.end_ms)
        return rows

    def _results(self, task: MaskTask, ranges: Sequence[OffsetRange]) -> list[MaskResult]:
        """Run the tasks. Return a row for each file and a row for each task."""
        results = collect_results(self._rows(ranges), partial(mask_batches, task), MaskResult)
        for result in results:
            self._values.update(result.values or {})
            self._apart.update(result.apart or {})
            self._messages += result.messages
        return results

    def count(self, ranges: Sequence[OffsetRange]) -> None:
        """Mask the messages without writing anything."""
        if ranges:
            self._results(replace(self._task, keys=None), ranges)

    def step(self, log: ArchiveLog, ranges: Sequence[OffsetRange]) -> None:
        """Write one step's files, and commit them."""
        before = self._messages
        task = replace(self._task, place=log.storage, epoch=log.writer.epoch)
        files = [result.file for result in self._results(task, ranges) if result.file is not None]
        covered = [Covered(*part.queue, part.first, part.end) for part in ranges]
        commit = log.append(Batch(self._id, len(self._steps), covered, files))
        self._gaps += commit.gaps if commit is not None else []
        done = Step(self._messages - before, self._messages, SYSTEM_CLOCK.monotonic() - self._began)
        self._steps.append(done)
        self._options.on_step(done)

    def samples(self, bounds: dict[Queue, Bounds], most: int) -> Iterator[MaskedSample]:
        """Return a few messages before and after masking. Values are encrypted with temporary keys."""
        first = [
            OffsetRange(queue, held.first, held.end) for queue, held in sorted(bounds.items()) if held.first < held.end
        ]
        if not first or not most:
            return
        shown = ("topic", "brokerName", "queueId", "queueOffset", "body", "propertiesText")
        rows = self._rows(first).where("body IS NOT NULL").select(*shown).limit(most).collect()
        with replace(self._task, keys=None).masker() as masker:
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

    def report(self, log: ArchiveLog, *, finished: bool, samples: tuple[MaskedSample, ...] = ()) -> MaskReport:
        """Build the run's report."""
        warnings = [f"{gap} was gone before it could be copied" for gap in self._gaps]
        if self._messages:
            warnings += [f"no message has {field}" for field, count in self._values.items() if not count]
        return MaskReport(
            source=str(self._source),
            to=log.url,
            dry_run=self._options.dry_run,
            finished=finished,
            messages=self._messages,
            total=sum(of.rows for of in log.queues()),
            values=dict(self._values),
            apart=dict(self._apart),
            steps=tuple(self._steps),
            warnings=tuple(warnings),
            replayed=None,
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
            topics=self._topics,
            samples=samples,
        )
