"""Where consumer groups of an old topic go on in the new one, by the mapping that a replay has written.

A queue of the new topic is gone on with at the first message that the group had not consumed in the old one. Where
queues were kept that is exact. Where messages were spread anew, a queue holds messages of several old ones, and what
the group had consumed behind that first message comes again: none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.quantity import quantity
from cometmq.spark.cluster import Cluster
from cometmq.spark.errors import OptionError
from cometmq.spark.group_offsets import committed_offsets
from cometmq.spark.options import parse_options
from cometmq.spark.queues import Queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a group goes on in one queue."""

    group: str
    broker: str
    queue_id: int
    offset: int
    again: int
    """Messages from there on that the group has consumed in the old topic."""

    @property
    def note(self) -> str:
        """What a person should know of it."""
        return f"{quantity(self.again, 'message')} come again" if self.again else ""


def translate(
    spark: SparkSession,
    mappings: Sequence[str],
    topic: str,
    groups: Sequence[str],
    servers: Mapping[str, str],
    archived: Mapping[Queue, int],
) -> tuple[list[GroupOffset], list[str]]:
    """Translate the offsets that groups have in ``topic`` now; also tells what to warn of.

    :param mappings: directories of a replay's mapping.
    :param servers: options that reach the brokers of the old topic.
    :param archived: where the archive that was replayed ends.
    :raises OptionError: a group has no offsets in the topic.
    """
    from pyspark.sql import functions as f

    cluster = Cluster(parse_options({**servers, "topic": topic}))
    old = cluster.queues()
    offsets: list[tuple[str, str, int, int]] = []
    warnings: list[str] = []
    for group in groups:
        committed = committed_offsets(cluster, old, group)
        if not committed:
            raise OptionError(
                f"group {group} has no offsets in topic {topic}", next_step=f"see cometmq group offsets {group}"
            )
        beyond = sum(max(0, committed.get(queue, 0) - end) for queue, end in archived.items() if queue.topic == topic)
        if beyond:
            warnings.append(
                f"group {group} has consumed {quantity(beyond, 'message')} that the archive does not hold yet"
            )
        offsets += [(group, queue.broker, queue.queue_id, committed.get(queue, 0)) for queue in old]
    if not mappings:
        return [], [*warnings, "nothing is replayed yet, so offsets cannot be translated"]
    known = spark.createDataFrame(offsets, "group string, brokerName string, queueId int, committed bigint")
    moved = spark.read.parquet(*mappings)
    rows = (
        moved.join(f.broadcast(known), ["brokerName", "queueId"])
        .withColumn("open", f.col("queueOffset") >= f.col("committed"))
        .groupBy("group", "toBroker", "toQueue")
        .agg(
            f.min(f.when(f.col("open"), f.col("toOffset"))).alias("first"),
            (f.max("toOffset") + 1).alias("end"),
        )
    )
    placed = rows.select("group", "toBroker", "toQueue", f.coalesce("first", "end").alias("offset"))
    again = (
        moved.join(f.broadcast(known), ["brokerName", "queueId"])
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
    """Write offsets into the groups, on the brokers of the new topic.

    :raises UnreachableError: a broker does not answer.
    """
    for group in sorted({of.group for of in offsets}):
        of_group = {Queue(topic, of.broker, of.queue_id): of.offset for of in offsets if of.group == group}
        cluster.commit_offsets(group, of_group)
