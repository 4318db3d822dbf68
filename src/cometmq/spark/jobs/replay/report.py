"""The replay's report, and the offsets at which consumer groups continue in the new topic.

In each queue of the new topic, a group continues at the first message that it had not consumed in the old topic. If
messages kept their queues, this offset is exact. If messages were spread by key, a queue contains messages from several
old queues: the group receives some messages after that offset twice, but does not miss any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from cometmq.quantity import are, quantity
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.report.parts import Part, Table, TextOnly, per_second
from cometmq.spark.jobs.report.plots import Line, Plot, bars
from cometmq.spark.jobs.report.report import RunReport, Step
from cometmq.spark.records.queues import Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ReplayedStep(Step):
    """A replay step that has just finished."""

    step: int
    found: int

    def _done(self) -> str:
        again = f" ({self.found:,} of them had already been sent)" if self.found else ""
        return f"step {self.step}: {quantity(self.messages, 'message')}{again}"


@dataclass(frozen=True, slots=True)
class QueueReplayed:
    """The messages that one queue in the topic received or, in a dry run, would receive."""

    broker: str
    queue_id: int
    messages: int
    found: int
    """Number of messages that the queue already contained because of a killed run or an unanswered request."""
    first: int | None
    """New offsets: the first offset, and the offset after the last message. None in a dry run."""
    next: int | None


@dataclass(frozen=True, slots=True)
class TranslatedOffset:
    """The offset at which a group continues in one queue of the new topic, for the report."""

    group: str
    broker: str
    queue_id: int
    offset: int
    note: str


@dataclass(frozen=True)
class ReplayReport(RunReport):
    """The messages that one run of a replay sent or, with ``dry_run``, would send."""

    TITLE = "Replay of {0.topic} to {0.to}"
    COMPUTED = ("complete",)

    archive: str
    topic: str
    to: str
    ledger: str
    replay_id: str
    dry_run: bool
    finished: bool
    messages: int
    found: int
    earlier: int
    """Number of messages that earlier runs with this ledger sent."""
    steps: tuple[ReplayedStep, ...]
    queues: tuple[QueueReplayed, ...]
    translated: tuple[TranslatedOffset, ...]
    warnings: tuple[str, ...]
    seconds: float

    def _figures(self) -> list[tuple[str, str]]:
        sent = "would be sent" if self.dry_run else "in the topic now"
        figures = [(f"{self.messages:,}", sent), (f"{self.earlier:,}", "by earlier runs")]
        return [*figures, (f"{len(self.queues):,}", "queues"), (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        speed = per_second(self.messages, self.seconds)
        held = f"{quantity(self.messages, 'message')} of {self.topic} in {self.archive}"
        if self.dry_run:
            yield f"would send {held} to {self.to}; nothing was sent"
        else:
            yield f"{held} {are(self.messages)} now in {self.to}, {self.seconds:.1f} s ({speed:,.0f} messages/s)"
            if self.found:
                yield (f"{self.found:,} of them had already been sent by a failed run or request, and were not resent")
        if self.earlier:
            yield f"earlier runs with {self.ledger} have sent {self.earlier:,}"
        if self.queues:
            yield Table(
                ("<broker", ">queue", ">messages", ">from offset", ">to before"),
                [(of.broker, of.queue_id, of.messages, of.first, of.next) for of in self.queues],
                "Queues",
            )
        if self.translated:
            goes_on = f"groups {'would continue' if self.dry_run else 'continue'} in {self.to} at"
            yield TextOnly(f"{goes_on}:")
            yield Table(
                ("<group", "<broker", ">queue", ">offset", "<note"),
                [(of.group, of.broker, of.queue_id, of.offset, of.note) for of in self.translated],
                f"G{goes_on[1:]}",
            )
        yield from self._ending("with the same ledger to continue")

    def _plots(self) -> list[Plot]:
        counts = ((f"{of.broker} {of.queue_id}", of.messages) for of in self.queues)
        plots: list[Plot] = [bars("By queue", "messages", counts)]
        if self.steps:
            seconds, totals = [0.0, *(of.seconds for of in self.steps)], [0, *(of.total for of in self.steps)]
            plots.append(Line("Progress", "messages sent", "seconds", seconds, {"messages": totals}))
        return plots


def queues_replayed(
    queues: Sequence[Queue], counts: Mapping[int, tuple[int, int, int | None, int | None]]
) -> tuple[QueueReplayed, ...]:
    """For each queue, by its number in the plan, return the number of messages, the number of messages that it already
    contained, and its first and next offsets.
    """
    return tuple(
        QueueReplayed(queues[at].broker, queues[at].queue_id, *counts[at]) for at in sorted(counts) if counts[at][0]
    )


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """One queue's offset at which a group continues."""

    group: str
    broker: str
    queue_id: int
    offset: int
    again: int
    """Number of messages after this offset that the group has already consumed in the old topic."""

    @property
    def note(self) -> str:
        """A warning for the user about the group's offsets."""
        return f"{quantity(self.again, 'message')} will be received again" if self.again else ""


def translate(
    spark: SparkSession,
    mapping: DataFrame | None,
    topic: str,
    groups: Sequence[str],
    servers: Mapping[str, str],
    archived: Mapping[Queue, int],
) -> tuple[list[GroupOffset], list[str]]:
    """Translate the current offsets of groups in ``topic``. Return the offsets and any warnings.

    :param mapping: the replay's mapping, or None if nothing was sent.
    :param servers: options for connections to the brokers of the old topic.
    :param archived: archived ends of the queues that were replayed.
    :raises OptionError: a group has no offsets in the topic.
    """
    cluster = Cluster(parse_options({**servers, "topic": topic}))
    old = cluster.queues()
    offsets: list[tuple[str, str, int, int]] = []
    warnings: list[str] = []
    for group in groups:
        committed = cluster.committed_offsets(old, group)
        if not committed:
            raise OptionError(
                f"group {group} has no offsets in topic {topic}", next_step=f"check cometmq group offsets {group}"
            )
        beyond = sum(max(0, committed.get(queue, 0) - end) for queue, end in archived.items() if queue.topic == topic)
        if beyond:
            warnings.append(f"group {group} has consumed {quantity(beyond, 'message')} that are not in the archive yet")
        offsets += [(group, queue.broker, queue.queue_id, committed.get(queue, 0)) for queue in old]
    if mapping is None:
        return [], [*warnings, "nothing is replayed yet, so offsets cannot be translated"]
    known = spark.createDataFrame(offsets, "group string, brokerName string, queueId int, committed bigint")
    rows = (
        mapping.join(f.broadcast(known), ["brokerName", "queueId"])
        .withColumn("open", f.col("queueOffset") >= f.col("committed"))
        .groupBy("group", "toBroker", "toQueue")
        .agg(
            f.min(f.when(f.col("open"), f.col("toOffset"))).alias("first"),
            (f.max("toOffset") + 1).alias("end"),
        )
    )
    placed = rows.select("group", "toBroker", "toQueue", f.coalesce("first", "end").alias("offset"))
    again = (
        mapping.join(f.broadcast(known), ["brokerName", "queueId"])
        .where("queueOffset < committed")
        .join(f.broadcast(placed), ["group", "toBroker", "toQueue"])
        .where("toOffset >= offset")
        .groupBy("group", "toBroker", "toQueue")
        .agg(f.count("*").alias("again"))
    )
    found = placed.join(again, ["group", "toBroker", "toQueue"], "left").fillna(0, ["again"]).collect()
    return [
        GroupOffset(row["group"], row["toBroker"], row["toQueue"], row["offset"], row["again"]) for row in found
    ], warnings


def write_offsets(cluster: Cluster, topic: str, offsets: Sequence[GroupOffset]) -> None:
    """Set the groups' offsets on the new topic's brokers.

    :raises UnreachableError: a broker does not answer.
    """
    for group in sorted({of.group for of in offsets}):
        of_group = {Queue(topic, of.broker, of.queue_id): of.offset for of in offsets if of.group == group}
        cluster.commit_offsets(group, of_group)
