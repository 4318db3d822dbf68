"""The Spark process of the demo: archive the orders, audit the archive, replay it into a new topic, audit that.

The counts come from the audits (``cometmq.spark.audit``), as users run them. One query checks what only the demo
knows: which events an order has, and in which order. One session runs all steps, since its start takes longer than
each of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from examples.demo.orders import COPY, GROUP, STEPS, TOPIC
from examples.demo.process import Progress, Reporter, Sent

from cometmq.cli.failures import guarded
from cometmq.clock import SYSTEM_CLOCK
from cometmq.durable import replace_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.jobs.audit.report import AuditReport

_CONTENT: Final = "queueId int, queueOffset bigint, uniqKey string, tags string, keys string, body binary"
_FINGERPRINT: Final = "bit_xor(xxhash64(queueOffset, uniqKey, tags, keys, body))"
"""Independent of the order in which Spark reads the rows; every message has its offset in it."""
_EVENTS: Final = f"""
WITH messages AS (
  SELECT queueId, queueOffset, from_json(CAST(body AS STRING), '`order` BIGINT, step INT') AS event FROM {{archive}}
), firsts AS (
  SELECT queueId, event.`order` AS orderId, event.step, min(queueOffset) AS first FROM messages GROUP BY 1, 2, 3
), ordered AS (
  SELECT *, first < max(first) OVER (PARTITION BY orderId ORDER BY step) AS isEarly FROM firsts
)
SELECT queueId, count(*) AS events, sum(orderId * {STEPS} + step) AS numberSum, count_if(isEarly) AS early
FROM ordered GROUP BY queueId
"""
"""Distinct events by queue; an event is early when it stands before an earlier change of its order."""


class Task(msgspec.Struct):
    """The argument of the process."""

    namesrv: str
    archive: str
    pages: str
    """Directory for the pages of the jobs."""
    work: str
    per_commit: int
    """Most messages of one commit of the archive."""
    result: str
    """File for the result, a :class:`Lake`."""


class Audited(msgspec.Struct):
    """The result of one audit, by queue id."""

    agrees: bool
    stored: dict[int, int]
    consumed: dict[int, int]
    archived: dict[int, int]
    disagreements: list[str]


class Lake(msgspec.Struct):
    """The results of Spark."""

    archive_bytes: int
    replayed: dict[int, int]
    """Messages sent to the new topic, by queue id."""
    of_archive: Audited
    of_copy: Audited
    events: dict[int, Sent]
    """Distinct events in the archive, by queue id."""
    out_of_order: int
    """Events that stand before an earlier change of their order."""
    unlike: list[int]
    """Queues of the new topic whose messages differ from the archive."""
    seconds: dict[str, float]


class _Steps:
    """Reports the current step, and measures it."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.seconds: dict[str, float] = {}
        self._reporter = Reporter()

    @contextmanager
    def step(self, name: str, act: str) -> Iterator[None]:
        """Run one step."""
        began = SYSTEM_CLOCK.monotonic()
        self.progress.act = act
        self.report()
        yield
        self.seconds[name] = SYSTEM_CLOCK.monotonic() - began

    def report(self) -> None:
        """Report the progress."""
        self._reporter.report(self.progress, now=True)


def run(task: Task) -> Lake:
    """Run all steps in one session."""
    from cometmq.spark import archive, audit, local_session, read_archive, replay
    from cometmq.spark.jobs.archive.report import ArchivedBatch
    from cometmq.spark.jobs.replay.report import ReplayedStep

    steps = _Steps()
    pages = Path(task.pages)
    work = Path(task.work)

    def archived(batch: ArchivedBatch) -> None:
        steps.progress.archived = batch.total
        steps.report()

    def replayed(step: ReplayedStep) -> None:
        steps.progress.replayed = step.total
        steps.report()

    with steps.step("session", "Spark starts"):
        spark = local_session(app_name="cometmq demo", brief=True)
    with steps.step("archive", "Spark archives"):
        kept = archive(
            task.namesrv,
            TOPIC,
            task.archive,
            work / "checkpoint",
            max_offsets_per_trigger=task.per_commit,
            spark=spark,
            on_batch=archived,
        )
    with steps.step("audit", "Spark audits broker, group and archive"):
        # Batches that were sent again after the crash stand twice; the demo counts them.
        of_archive = audit(
            task.namesrv, TOPIC, archive=task.archive, groups=[GROUP], allow_duplicates=True, spark=spark
        )
        of_archive.write_page(pages / "audit.html")
    with steps.step("replay", "Spark replays the archive"):
        sent = replay(
            task.archive,
            task.namesrv,
            work / "replay",
            to=COPY,
            step_offsets=task.per_commit,
            spark=spark,
            on_step=replayed,
        )
        sent.write_page(pages / "replay.html")
    with steps.step("audit again", "Spark audits the copy"):
        of_copy = audit(task.namesrv, COPY, allow_duplicates=True, spark=spark)
        of_copy.write_page(pages / "audit-copy.html")
        rows = read_archive(spark, task.archive)
        unlike = _unlike(spark, task.namesrv, rows)
        events = spark.sql(_EVENTS, archive=rows).collect()
    spark.stop()
    return Lake(
        archive_bytes=kept.bytes,
        replayed={of.queue_id: of.messages for of in sent.queues},
        of_archive=_audited(of_archive),
        of_copy=_audited(of_copy),
        events={row.queueId: Sent(row.events, row.numberSum) for row in events},
        out_of_order=sum(row.early for row in events),
        unlike=unlike,
        seconds=steps.seconds,
    )


def _audited(report: AuditReport) -> Audited:
    return Audited(
        agrees=report.agrees,
        stored={of.queue_id: of.stored or 0 for of in report.queues},
        consumed={of.queue_id: of.consumed.get(GROUP, 0) - (of.first or 0) for of in report.queues},
        archived={of.queue_id: of.archived or 0 for of in report.queues},
        disagreements=[found.what for found in report.disagreements],
    )


def _unlike(spark: SparkSession, namesrv: str, archived: DataFrame) -> list[int]:
    """Return the queues whose messages differ between archive and copy in offset, unique key, tag, keys or body."""
    source = spark.read.format("rocketmq").option("namesrvAddr", namesrv).option("topic", COPY)
    copied = _fingerprints(source.schema(_CONTENT).load())
    kept = _fingerprints(archived)
    return sorted(queue for queue in kept.keys() | copied.keys() if kept.get(queue) != copied.get(queue))


def _fingerprints(frame: DataFrame) -> dict[int, tuple[int, int]]:
    from pyspark.sql.functions import expr

    rows: list[Any] = frame.groupBy("queueId").agg(expr(f"{_FINGERPRINT} AS content"), expr("count(*) AS n")).collect()
    return {row.queueId: (row.n, row.content) for row in rows}


def _run() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    replace_file(Path(task.result), msgspec.json.encode(run(task)))


if __name__ == "__main__":
    sys.exit(guarded(_run))
