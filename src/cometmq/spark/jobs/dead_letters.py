"""The dlq job: it counts dead letters by cause, and resends selected dead letters.

Spark counts the dead letters in all ``%DLQ%`` topics, or in those of the given groups. Resending does not need Spark:
:mod:`cometmq.client.dead_letters` sends one message at a time and keeps a ledger, so that nothing is sent twice.
``cometmq dlq resend`` does the same without counting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from cometmq.client.admin import Admin
from cometmq.client.dead_letters import Ledger, Outcome, Selection, read_dead_letters, resend
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.message import MessageExt
from cometmq.message.names import DLQ_PREFIX, check_group, dlq_topic
from cometmq.message.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC
from cometmq.quantity import quantity
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.columns import HOUR_MS, begin_of, interval_of, property_of
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import DeadLetterOptions, SendAgainOptions
from cometmq.spark.jobs.report.parts import Notes, Part, Table, bar_rows, moment
from cometmq.spark.jobs.report.plots import Plot, bars
from cometmq.spark.jobs.report.report import FAILED, PARTLY_DONE, Report
from cometmq.spark.jobs.run import job_session, persisted
from cometmq.spark.options import demand_forward
from cometmq.spark.security_options import access_options, security_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class GroupLetters:
    """The dead letters of one consumer group."""

    group: str
    letters: int
    oldest_ms: int
    """Time when the first message became a dead letter, ms since 1970."""
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of dead letters that have the same value, for example the same tag."""

    value: str
    """The shared value, or empty for dead letters that have no value."""
    letters: int
    groups: int
    """Number of consumer groups to which the dead letters belong."""


@dataclass(frozen=True, slots=True)
class Resent:
    """The result of resending one group's selected dead letters."""

    group: str
    sent: int
    """Number of messages that a run would send; set only in a dry run."""
    sent_before: int
    failed: int
    first_failure: str
    """Reason for the first failure, or empty if no message failed."""


@dataclass(frozen=True)
class DeadLetterReport(Report):
    """Dead letters by group, original topic, tag, key, time and reason."""

    TITLE = "Dead letters in {0.source}"
    COMPUTED = ("letters", "failed")

    source: str
    groups: tuple[GroupLetters, ...]
    topics: tuple[Counted, ...]
    """Dead letters by the topic to which they were originally sent."""
    tags: tuple[Counted, ...]
    keys: tuple[Counted, ...]
    reasons: tuple[Counted, ...]
    """Dead letters by the property that contains the reason, or empty if no property was given."""
    over_time: tuple[tuple[int, int], ...]
    """Pairs: start of an interval in ms since 1970, and number of dead letters. Empty intervals are left out."""
    stretch_ms: int
    """Length of an interval in ms: a multiple of an hour."""
    resent: tuple[Resent, ...]
    dry_run: bool
    seconds: float

    @property
    def letters(self) -> int:
        """Return the total number of dead letters in all groups."""
        return sum(of.letters for of in self.groups)

    @property
    def failed(self) -> int:
        """Return the number of dead letters that could not be resent."""
        return sum(of.failed for of in self.resent)

    @property
    def exit_code(self) -> int:
        """Return exit code 1 if no dead letter could be resent, or 3 if some of them could not be resent."""
        if not self.failed:
            return 0
        return PARTLY_DONE if any(of.sent or of.sent_before for of in self.resent) else FAILED

    @property
    def verdict(self) -> str:
        """Return a sentence with the number of dead letters and the number that could not be resent."""
        found = f"{quantity(self.letters, 'dead letter')} of {quantity(len(self.groups), 'group')}"
        return f"{found}; {self.failed:,} could not be resent" if self.failed else found

    def _figures(self) -> list[tuple[str, str]]:
        figures = [(f"{self.letters:,}", "dead letters"), (f"{len(self.groups):,}", "groups")]
        if self.resent:
            sent = sum(of.sent for of in self.resent)
            figures.append((f"{sent:,}", "would be sent again" if self.dry_run else "sent again"))
        return [*figures, (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        yield (
            f"{quantity(self.letters, 'dead letter')} of {quantity(len(self.groups), 'group')} in {self.source}; "
            f"{self.seconds:.1f} s"
        )
        if self.groups:
            yield Table(
                ("<group", ">letters", "<oldest (UTC)", "<newest (UTC)"),
                [(of.group, of.letters, moment(of.oldest_ms), moment(of.newest_ms)) for of in self.groups],
                "Groups",
            )
        kinds = (
            ("sent to", "By topic", self.topics),
            ("tag", "By tag", self.tags),
            ("key", "By key", self.keys),
            ("reason", "By reason", self.reasons),
        )
        for head, caption, counts in kinds:
            if counts:
                rows = [(of.value or None, of.letters, of.groups) for of in counts]
                yield Table((f"<{head}", ">letters", ">groups"), rows, caption)
        if self.over_time:
            over_time = bar_rows((moment(at), count) for at, count in self.over_time)
            yield Table(("<from (UTC)", ">letters", "<"), over_time, "Over time")
        if self.resent:
            verb = "would be sent" if self.dry_run else "sent again"
            yield Table(
                ("<group", f">{verb}", ">before", ">failed"),
                [(of.group, of.sent, of.sent_before, of.failed) for of in self.resent],
                "Sent again",
            )
            failures = [f"{of.group}: {of.first_failure}" for of in self.resent if of.first_failure]
            if failures:
                yield Notes(failures, urgent=True)

    def _plots(self) -> list[Plot]:
        plots: list[Plot] = []
        if self.over_time:
            counts = dict(self.over_time)
            times = range(min(counts), max(counts) + 1, self.stretch_ms)
            over_time = ((moment(at, "m"), counts.get(at, 0)) for at in times)
            plots.append(bars("Over time, from … (UTC) on", "dead letters", over_time))
        for title, found in (("topic of origin", self.topics), ("tag", self.tags), ("reason", self.reasons)):
            plots.append(bars(f"By {title}", "dead letters", [(of.value[:24] or "–", of.letters) for of in found]))
        return [*plots, bars("By group", "dead letters", [(of.group[:24], of.letters) for of in self.groups[:20]])]


_COLUMNS: Final = ("topic", "msgId", "uniqKey", "tags", "keys", "properties", "storeTimestamp")


@job(DeadLetterOptions)
def dead_letters(options: DeadLetterOptions) -> DeadLetterReport:
    """Count dead letters by group, original topic, tag, key, time and reason.

    :raises OptionError: an argument is invalid, or a group has no dead letters.
    :raises SparkSourceError: the topics cannot be read.
    """
    source, groups, reason, top = options.source, options.groups, options.reason, options.top
    for group in groups:
        if wrong := check_group(group):
            raise OptionError(f"invalid group name {group!r}: {wrong}")
    selection = options.selection or Selection()
    demand_forward("begin_ms", selection.begin_ms, "end_ms", selection.end_ms)
    began = SYSTEM_CLOCK.monotonic()
    topics = [dlq_topic(group) for group in dict.fromkeys(groups)] or source.topics(DLQ_PREFIX)
    if not topics:
        return DeadLetterReport(str(source), (), (), (), (), (), (), HOUR_MS, (), False, 0.0)
    source.queues(topics)
    with job_session(options, "cometmq dlq") as session:
        options.on_step(f"reading the dead letters of {quantity(len(topics), 'group')}")
        letters = _letters(source.read(session, topics, _COLUMNS), selection, reason)
        with persisted(letters) as rows:
            found = _groups(rows)
            options.on_step(f"counting {quantity(sum(of.letters for of in found), 'dead letter')}")
            stretch_ms = interval_of(
                min((of.oldest_ms for of in found), default=0), max((of.newest_ms for of in found), default=0)
            )
            keys = rows.select("group", f.explode("keys").alias("key")).where("key <> ''")
            return DeadLetterReport(
                source=str(source),
                groups=found,
                topics=_counted(rows, "origin", top),
                tags=_counted(rows, "tags", top),
                keys=_counted(keys, "key", top),
                reasons=() if reason is None else _counted(rows, "reason", top),
                over_time=_over_time(rows, stretch_ms),
                stretch_ms=stretch_ms,
                resent=(),
                dry_run=False,
                seconds=SYSTEM_CLOCK.monotonic() - began,
            )


@job(SendAgainOptions)
def send_again(options: SendAgainOptions) -> tuple[Resent, ...]:
    """Resend the groups' selected dead letters to their original topics, each of them once.

    :raises OptionError: the options for credentials and TLS are invalid.
    :raises LedgerError: a ledger cannot be read or written.
    :raises CometMQError: the cluster cannot be reached.
    """
    security = security_of(access_options(options.access))

    async def run() -> tuple[Resent, ...]:
        async with Admin(options.namesrv, security=security) as admin:
            return tuple([await one(admin, group) for group in dict.fromkeys(options.groups)])

    async def one(admin: Admin, group: str) -> Resent:
        outcomes: Counter[Outcome] = Counter()
        failures: list[str] = []
        letters = read_dead_letters(admin, group, options.selection)
        path = options.ledgers / f"dlq-{group}.ledger"
        if options.dry_run:
            sent: set[str] = set()
            if path.exists():
                with Ledger(path) as ledger:
                    sent = ledger.sent
            async for letter in letters:
                outcomes[Outcome.SENT_BEFORE if letter.offset_msg_id in sent else Outcome.SENT] += 1
        else:
            options.on_step(f"sending dead letters of {group} again")

            def report(_: MessageExt, outcome: Outcome, words: str) -> None:
                outcomes[outcome] += 1
                if words and not failures:
                    failures.append(words)

            with Ledger(path) as ledger:
                await resend(admin, letters, ledger, report, rate=options.rate)
        return Resent(
            group=group,
            sent=outcomes[Outcome.SENT],
            sent_before=outcomes[Outcome.SENT_BEFORE],
            failed=outcomes[Outcome.FAILED],
            first_failure="".join(failures),
        )

    return asyncio.run(run())


def _letters(messages: DataFrame, selection: Selection, reason: str | None) -> DataFrame:
    """Return the dead letters that :meth:`Selection.takes` selects."""

    keys = f.array_distinct(f.split(f.coalesce("keys", f.lit("")), " "))
    stored_ms = f.unix_millis("storeTimestamp")
    chosen = stored_ms.between(selection.begin_ms, selection.end_ms)
    if selection.key is not None:
        chosen &= f.array_contains(keys, selection.key)
    if selection.tag is not None:
        chosen &= f.col("tags") == selection.tag
    if selection.origin_topic is not None:
        chosen &= property_of(RETRY_TOPIC) == selection.origin_topic
    if selection.ids:
        ids = sorted(selection.ids)
        chosen &= f.col("msgId").isin(ids) | f.col("uniqKey").isin(ids) | property_of(ORIGIN_MESSAGE_ID).isin(ids)
    return messages.where(chosen).select(
        f.substring("topic", len(DLQ_PREFIX) + 1, 1 << 15).alias("group"),
        property_of(RETRY_TOPIC).alias("origin"),
        "tags",
        keys.alias("keys"),
        (f.lit(None).cast("string") if reason is None else property_of(reason)).alias("reason"),
        stored_ms.alias("storedMs"),
    )


def _groups(rows: DataFrame) -> tuple[GroupLetters, ...]:
    sums = rows.groupBy("group").agg(f.count("*").alias("letters"), f.min("storedMs"), f.max("storedMs"))
    return tuple(GroupLetters(*row) for row in sums.orderBy(f.desc("letters"), "group").collect())


def _counted(rows: DataFrame, column: str, top: int) -> tuple[Counted, ...]:
    value = f.coalesce(column, f.lit("")).alias("value")
    sums = rows.groupBy(value).agg(f.count("*").alias("letters"), f.count_distinct("group"))
    return tuple(Counted(*row) for row in sums.orderBy(f.desc("letters"), "value").limit(top).collect())


def _over_time(rows: DataFrame, stretch_ms: int) -> tuple[tuple[int, int], ...]:
    begins = rows.groupBy(begin_of("storedMs", stretch_ms))
    return tuple((row[0], row[1]) for row in begins.count().orderBy("begin").collect())
