"""The skew job: keys that many messages have, queues that hold more than others, and how many queues there should be.

Messages are read once; what is needed of them (key, queue, size, store time) lies on the executors' disks between
the passes. The driver gets one row for each queue, and the commonest keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.properties import SHARDING_KEY
from cometmq.quantity import quantity
from cometmq.spark.errors import OptionError
from cometmq.spark.job_source import MessageSource, job_session, kept
from cometmq.spark.queue_balance import HANDLED_PER_S, Demand, gini, max_to_mean, recommended_queues
from cometmq.spark.queues import Queue
from cometmq.spark.skew_report import BY, TOP, HotKey, QueueLoad, SkewReport, TopicSkew

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNEVEN: Final = 1.5
"""Messages of the busiest queue, in means of all, from which on it is worth a note."""


def skew(
    source: MessageSource,
    topics: str | Sequence[str],
    *,
    by: str = "keys",
    consumers: int = 1,
    handled_per_s: float = HANDLED_PER_S,
    top: int = TOP,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[str], object] = lambda _: None,
) -> SkewReport:
    """Look how evenly the messages of topics lie in their queues, and which keys are hot.

    :param source: brokers, or an archive.
    :param by: what counts as the key, one of :data:`~.skew_report.BY`.
    :param consumers: how many consumers the largest group has, for the number of queues.
    :param handled_per_s: messages a second that one consumer gets through of one queue, for the same.
    :param top: how many hot keys to name.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: told what the job begins to do.
    :raises OptionError: an argument is wrong, or a topic is not there.
    :raises SparkSourceError: the messages cannot be read.
    """
    if by not in BY:
        raise OptionError(f"by {by!r} is none of {', '.join(BY)}")
    if consumers < 1 or not handled_per_s > 0:
        raise OptionError("consumers and handled_per_s must be above 0")
    named = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    queues = source.queues(named)
    began = SYSTEM_CLOCK.monotonic()
    with job_session(spark, master, "cometmq skew") as session:
        on_step(f"reading {quantity(len(queues), 'queue')} of {quantity(len(named), 'topic')}")
        with kept(_rows(source, session, named, by)) as rows:
            loads, peaks = _loads(rows), _peaks(rows)
            on_step(f"counting {by} of {quantity(sum(messages for messages, _ in loads.values()), 'message')}")
            totals = {topic: sum(loads.get(of, (0, 0))[0] for of in queues if of.topic == topic) for topic in named}
            hot_keys, hottest = _keys(rows, totals, top)
    found = []
    for topic in named:
        held = tuple(QueueLoad(of.broker, of.queue_id, *loads.get(of, (0, 0))) for of in queues if of.topic == topic)
        keys, most, in_queues = hottest.get(topic, (0, 0, 0))
        demand = Demand(
            peak_per_s=peaks.get(topic, 0.0),
            handled_per_s=handled_per_s,
            consumers=consumers,
            imbalance=max_to_mean([of.messages for of in held]),
            hottest_share=most / totals[topic] if in_queues == 1 else 0.0,
        )
        found.append(_topic_skew(topic, held, keys, demand))
    return SkewReport(str(source), by, tuple(found), hot_keys, SYSTEM_CLOCK.monotonic() - began)


def _topic_skew(topic: str, held: tuple[QueueLoad, ...], keys: int, demand: Demand) -> TopicSkew:
    messages, sizes = [of.messages for of in held], [of.bytes for of in held]
    notes = []
    if demand.imbalance >= UNEVEN:
        notes.append(f"the busiest queue has {demand.imbalance:.1f} times the mean")
    if sum(messages) and (unused := messages.count(0)):
        notes.append(f"{unused} of {quantity(len(held), 'queue')} hold no messages")
    if demand.hottest_share * len(held) >= UNEVEN:
        notes.append(
            f"one key has {demand.hottest_share:.0%} of the messages, all in one queue: more queues do not spread them"
        )
    if demand.key_is_too_hot:
        notes.append("that is more than one queue's consumer handles at the peak: divide the key")
    return TopicSkew(
        topic=topic,
        messages=sum(messages),
        bytes=sum(sizes),
        keys=keys,
        peak_per_s=demand.peak_per_s,
        max_to_mean=demand.imbalance,
        max_to_mean_bytes=max_to_mean(sizes),
        gini=gini(messages),
        gini_bytes=gini(sizes),
        recommended_queues=recommended_queues(demand),
        notes=tuple(notes),
        queues=held,
    )


def _rows(source: MessageSource, spark: SparkSession, topics: Sequence[str], by: str) -> DataFrame:
    from pyspark.sql import functions as f

    column = "properties" if by == "shardingKey" else by
    found = source.read(spark, topics, ("topic", "brokerName", "queueId", column, "storeSize", "storeTimestamp"))
    if by == "keys":
        keys = f.array_distinct(f.split("keys", " "))
    else:
        keys = f.array(f.try_element_at("properties", f.lit(SHARDING_KEY)) if by == "shardingKey" else f.col(by))
    minute = f.date_trunc("minute", "storeTimestamp").alias("minute")
    return found.select("topic", "brokerName", "queueId", keys.alias("keys"), "storeSize", minute)


def _loads(rows: DataFrame) -> dict[Queue, tuple[int, int]]:
    from pyspark.sql import functions as f

    sums = rows.groupBy("topic", "brokerName", "queueId").agg(f.count("*"), f.sum("storeSize")).collect()
    return {Queue(*place): (messages, size) for *place, messages, size in sums}


def _peaks(rows: DataFrame) -> dict[str, float]:
    from pyspark.sql import functions as f

    busiest = rows.groupBy("topic", "minute").count().groupBy("topic").agg(f.max("count")).collect()
    return {topic: count / 60 for topic, count in busiest}


def _keys(
    rows: DataFrame, totals: Mapping[str, int], top: int
) -> tuple[tuple[HotKey, ...], dict[str, tuple[int, int, int]]]:
    """The commonest keys; and of each topic its number of keys, the first one's messages, and in how many queues."""
    from pyspark.sql import functions as f

    counted = (
        rows.select("topic", "brokerName", "queueId", "storeSize", f.explode("keys").alias("key"))
        .where("key <> ''")
        .groupBy("topic", "key")
        .agg(
            f.count("*").alias("messages"),
            f.sum("storeSize").alias("bytes"),
            f.size(f.collect_set(f.struct("brokerName", "queueId"))).alias("queues"),
        )
    )
    first = counted.orderBy(f.desc("messages"), "topic", "key").limit(top).collect()
    hot = tuple(
        HotKey(row.topic, row.key, row.messages, row.bytes, row.messages / totals[row.topic], row.queues)
        for row in first
    )
    of_topics = (
        counted.groupBy("topic")
        .agg(f.count("*"), f.max("messages"), f.max_by("queues", f.struct("messages", f.negative("queues"))))
        .collect()
    )
    return hot, {topic: (keys, most, queues) for topic, keys, most, queues in of_topics}
