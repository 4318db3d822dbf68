"""What an audit compares: each check tells, one after the other, what does not agree and what is worth a note."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.quantity import are, quantity
from cometmq.spark.audit_frames import QUEUE, gaps_in
from cometmq.spark.audit_parties import Parties
from cometmq.spark.audit_report import Disagreement, moment
from cometmq.spark.queues import Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST: Final = 5
"""Disagreements told of each kind."""
_SAID_BY_COMMITS: Final = "the commits of the archive (gaps) say whether they were gone before they could be read"


class Note(NamedTuple):
    """Something that is no disagreement."""

    told: str


Findings = Iterator[Disagreement | Note]


def stored_offsets(parties: Parties, stored: DataFrame, counted: Mapping[Queue, Any]) -> Findings:
    """Offsets of a queue follow each other."""
    bad = []
    for queue, held in sorted(parties.bounds.items()):
        row = counted.get(queue)
        there = row["stored"] if row is not None else 0
        if there == held.end - held.first:
            continue
        kept_from = parties.kept_from[queue]
        bad.append((queue.broker, queue.queue_id, kept_from))
        ends = (held.end, held.end)
        if row is not None and there:
            ends = (row["storedFirst"], row["storedLast"] + 1)
        for first, end in ((kept_from, ends[0]), (max(ends[1], kept_from), held.end)):
            if first < end:
                yield Disagreement(
                    f"{queue}: the broker says it holds offsets {first:,} to {end:,}, and hands on none of them",
                    "read its log (cometmq doctor, then pipeline rebuild --dry-run on its store)",
                )
    if bad:
        for broker, queue_id, first, end in gaps_in(stored, bad, FIRST):
            yield Disagreement(
                f"{Queue(parties.topic, broker, queue_id)}: offsets {first:,} to {end:,} are missing at the broker",
                "compare its consume queues with its log: cometmq pipeline rebuild --dry-run",
            )


def group_offsets(parties: Parties) -> Findings:
    """Groups stand within what the broker holds."""
    for group, offsets in parties.consumed.items():
        if not offsets:
            yield Note(f"group {group} has no offsets in this topic")
        for queue, offset in sorted(offsets.items()):
            held = parties.bounds[queue]
            if offset > held.end:
                yield Disagreement(
                    f"{queue}: group {group} has consumed up to {offset:,}, and the queue ends at {held.end:,}",
                    "was the topic made anew, or did the broker lose its end? cometmq group reset-offset",
                )
            elif offset < held.first:
                yield Disagreement(
                    f"{queue}: {quantity(held.first - offset, 'message')} went before group {group} had consumed them",
                    "an archive may hold them: cometmq pipeline replay",
                )


def reach(parties: Parties) -> Findings:
    """Archive and broker meet."""
    late = 0
    for queue in sorted({*parties.bounds, *parties.totals}):
        held, of = parties.bounds.get(queue), parties.totals.get(queue)
        if held is None and of is not None:
            yield Disagreement(f"{queue} is in the archive, and no broker has it", "is a broker away? cometmq cluster")
        elif held is not None and of is None:
            late += held.end - held.first
        elif held is not None and of is not None and of.next > held.end:
            yield Disagreement(
                f"{queue}: the archive goes up to {of.next:,}, and the queue ends at {held.end:,}",
                "was the topic made anew, or did the broker lose its end? archive it into another directory",
            )
        elif held is not None and of is not None:
            kept_from = parties.kept_from[queue]
            if kept_from > of.next:
                yield Disagreement(
                    f"{queue}: offsets {of.next:,} to {kept_from:,} went before they were archived",
                    "archive more often, or keep messages longer (fileReservedTime)",
                )
            late += held.end - max(kept_from, of.next)
    if late:
        yield Note(f"{quantity(late, 'message')} {are(late)} not archived yet")


def archived_offsets(parties: Parties, archived: DataFrame, counted: Mapping[Queue, Any]) -> Findings:
    """The archive's files hold what its log says, each offset once."""
    bad = []
    for queue, of in sorted(parties.totals.items()):
        row = counted.get(queue)
        there = row["archived"] if row else 0
        if there != of.rows:
            yield Disagreement(
                f"{queue}: the archive's log counts {quantity(of.rows, 'message')}, its files hold {there:,}",
                "restore the archive's files from a backup",
            )
        if there != of.next - of.first:
            bad.append((queue.broker, queue.queue_id, of.expired_to))
            ends = (of.next, of.next)
            if row is not None and there:
                ends = (row["archivedFirst"], row["archivedLast"] + 1)
            for first, end in ((of.first, ends[0]), (ends[1], of.next)):
                if first < end:
                    yield Disagreement(
                        f"{queue}: offsets {first:,} to {end:,} are missing in the archive", _SAID_BY_COMMITS
                    )
        if of.expired_to:
            yield Note(
                f"{queue}: retention has taken out what was stored before {moment(of.expired_before_ms)}, up to "
                f"offset {of.expired_to:,}; the archive is looked at for gaps from there on"
            )
    for broker, queue_id, first, end in gaps_in(archived, bad, FIRST) if bad else ():
        yield Disagreement(
            f"{Queue(parties.topic, broker, queue_id)}: offsets {first:,} to {end:,} are missing in the archive",
            _SAID_BY_COMMITS,
        )
    twice = archived.groupBy(*QUEUE, "queueOffset").count().where("count > 1")
    for row in twice.orderBy(*QUEUE, "queueOffset").limit(FIRST).collect():
        yield Disagreement(
            f"{Queue(parties.topic, row['brokerName'], row['queueId'])}: offset {row['queueOffset']:,} is in the "
            f"archive {row['count']} times",
            "restore the archive from a backup; report a bug",
        )


def minute_by_minute(parties: Parties, minutes: DataFrame) -> Findings:
    """Where both hold a stretch of a queue, every minute of it has the same messages."""
    from pyspark.sql import functions as f

    rows = (
        minutes.where("storedBoth != archivedBoth OR NOT storedContent <=> archivedContent")
        .orderBy("minute", *QUEUE)
        .limit(FIRST)
        .select(*QUEUE, "storedBoth", "archivedBoth", f.unix_millis("minute").alias("at"))
        .collect()
    )
    for row in rows:
        queue = Queue(parties.topic, row["brokerName"], row["queueId"])
        counts = (row["storedBoth"], row["archivedBoth"])
        told = "as many, but not the same messages" if counts[0] == counts[1] else "not the same"
        yield Disagreement(
            f"{queue}, {moment(row['at'])}: {counts[0]:,} stored and {counts[1]:,} archived, {told}",
            "compare the two by queueOffset and uniqKey: spark.read.format('rocketmq') and read_archive",
        )


def unique_keys(stored: DataFrame, *, allowed: bool) -> Findings:
    """Each is stored once, or it is noted where copies are allowed."""
    from pyspark.sql import functions as f

    twice = stored.where("uniqKey IS NOT NULL").groupBy("uniqKey").agg(f.count("*").alias("times"))
    twice = twice.where("times > 1")
    sums = twice.agg(f.count("*").alias("keys"), f.sum(f.col("times") - 1).alias("copies")).collect()[0]
    if not sums["keys"]:
        return
    first = ", ".join(row["uniqKey"] for row in twice.orderBy("uniqKey").limit(FIRST).collect())
    told = (
        f"{quantity(sums['keys'], 'unique key')} {are(sums['keys'])} stored more than once "
        f"({sums['copies']:,} {'copy' if sums['copies'] == 1 else 'copies'}): {first}"
    )
    if allowed:
        yield Note(told)
    else:
        yield Disagreement(
            told,
            "producers that send again after a failure make copies; --allow-duplicates takes them for normal",
        )


def acknowledged(produced: DataFrame, there: DataFrame, known: DataFrame) -> Findings:
    """What producers say they have sent is stored, or archived.

    :param produced: as of :func:`~.audit_frames.produced_frame`.
    :param there: what is stored or archived, with ``uniqKey``.
    :param known: of it what is there of all queues, back to the oldest ``bornTimestamp`` and ``storeTimestamp``.
    """
    from pyspark.sql import functions as f

    since = known.selectExpr("unix_millis(greatest(min(bornTimestamp), min(storeTimestamp))) AS since").collect()[0][0]
    missing = produced.join(there, "uniqKey", "left_anti")
    if since is not None:
        missing = missing.where(f.unix_millis("producedTimestamp") >= since)
    lost = missing.count()
    if lost:
        first = missing.orderBy("producedTimestamp", "uniqKey").limit(FIRST).collect()
        yield Disagreement(
            f"{quantity(lost, 'message')} that producers had acknowledged {are(lost)} neither stored nor archived: "
            + ", ".join(row["uniqKey"] for row in first),
            "see what became of one: cometmq message trace; did a broker lose its disk?",
        )
