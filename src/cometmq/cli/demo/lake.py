"""The Spark process of the demo: archives the orders, audits the archive, replays it into a new topic, audits that.

One session does all of it, since a session takes longer to start than each of these steps to run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.cli.demo.orders import COPY, GROUP, TOPIC
from cometmq.cli.demo.worker import Teller, Told
from cometmq.cli.failures import guarded
from cometmq.clock import SYSTEM_CLOCK
from cometmq.durable import replace_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.audit_report import AuditReport

_CONTENT: Final = "queueId int, queueOffset bigint, uniqKey string, tags string, keys string, body binary"
_FINGERPRINT: Final = "bit_xor(xxhash64(queueOffset, uniqKey, tags, keys, body))"
"""Does not depend on the order in which Spark sees the rows; every message has its offset in it."""


class Task(msgspec.Struct):
    """What the stage hands to the process as its argument."""

    namesrv: str
    archive: str
    pages: str
    """Directory for the pages of the jobs."""
    work: str
    per_commit: int
    """Most messages of one commit of the archive."""
    found: str
    """File for what was found."""


class Audited(msgspec.Struct):
    """What an audit said."""

    agrees: bool
    stored: dict[int, int]
    """Messages by queue, each offset looked at."""
    disagreements: list[str]


class Lake(msgspec.Struct):
    """What Spark found."""

    archive_bytes: int
    replayed: dict[int, int]
    """Messages sent to the new topic, by queue."""
    of_archive: Audited
    of_copy: Audited
    unlike: list[int]
    """Queues of the new topic whose messages are not those of the archive."""
    seconds: dict[str, float]


class _Steps:
    """Tells the stage what is going on, and takes the time."""

    def __init__(self) -> None:
        self.told = Told()
        self.seconds: dict[str, float] = {}
        self._teller = Teller()

    @contextmanager
    def step(self, name: str, act: str) -> Iterator[None]:
        """One step, from its begin to its end."""
        began = SYSTEM_CLOCK.monotonic()
        self.told.act = act
        self.tell()
        yield
        self.seconds[name] = SYSTEM_CLOCK.monotonic() - began

    def tell(self) -> None:
        """Tell how far it is."""
        self._teller.tell(self.told, now=True)


def run(task: Task) -> Lake:
    """Do all steps in one session."""
    from cometmq.cli.jobs.audit import write_audit_page
    from cometmq.cli.jobs.replay import write_replay_page
    from cometmq.spark.archive import archive
    from cometmq.spark.archive_report import ArchivedBatch
    from cometmq.spark.audit import audit
    from cometmq.spark.environment import local_session
    from cometmq.spark.replay import replay
    from cometmq.spark.replay_report import ReplayedStep

    steps = _Steps()
    pages = Path(task.pages)
    work = Path(task.work)

    def archived(batch: ArchivedBatch) -> None:
        steps.told.archived = batch.total_rows
        steps.tell()

    def replayed(step: ReplayedStep) -> None:
        steps.told.replayed = step.total
        steps.tell()

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
        # What was sent again after the crash stands there twice; the demo counts it.
        of_archive = audit(
            task.namesrv, TOPIC, archive=task.archive, groups=[GROUP], allow_duplicates=True, spark=spark
        )
        write_audit_page(of_archive, pages / "audit.html")
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
        write_replay_page(sent, pages / "replay.html")
    with steps.step("audit again", "Spark audits the copy"):
        of_copy = audit(task.namesrv, COPY, allow_duplicates=True, spark=spark)
        write_audit_page(of_copy, pages / "audit-copy.html")
        unlike = _unlike(spark, task)
    spark.stop()
    return Lake(
        archive_bytes=kept.bytes,
        replayed={of.queue_id: of.messages for of in sent.queues},
        of_archive=_audited(of_archive),
        of_copy=_audited(of_copy),
        unlike=unlike,
        seconds=steps.seconds,
    )


def _audited(report: AuditReport) -> Audited:
    return Audited(
        agrees=report.agrees,
        stored={of.queue_id: of.stored or 0 for of in report.queues},
        disagreements=[found.what for found in report.disagreements],
    )


def _unlike(spark: SparkSession, task: Task) -> list[int]:
    """Queues whose messages differ between archive and copy: in offset, unique key, tag, keys or body."""
    from cometmq.spark.archive_reader import read_archive

    source = spark.read.format("rocketmq").option("namesrvAddr", task.namesrv).option("topic", COPY)
    copied = _fingerprints(source.schema(_CONTENT).load())
    kept = _fingerprints(read_archive(spark, task.archive))
    return sorted(queue for queue in kept.keys() | copied.keys() if kept.get(queue) != copied.get(queue))


def _fingerprints(frame: DataFrame) -> dict[int, tuple[int, int]]:
    from pyspark.sql.functions import expr

    rows: list[Any] = frame.groupBy("queueId").agg(expr(f"{_FINGERPRINT} AS content"), expr("count(*) AS n")).collect()
    return {row.queueId: (row.n, row.content) for row in rows}


def _run() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    replace_file(Path(task.found), msgspec.json.encode(run(task)))


if __name__ == "__main__":
    sys.exit(guarded(_run))
