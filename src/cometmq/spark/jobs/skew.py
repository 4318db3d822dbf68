"""The skew job: hot keys, uneven queues, and the number of queues that a topic should have.

Messages are read once. Their keys, queues, sizes and store times remain on the executors' disks between the passes. The
driver receives one row for each queue, and the most frequent keys.

The rule for the number of queues:

1. Each queue is consumed by one consumer and, where order matters, by one of its threads. At the peak, the busiest
   queue must not receive more than the consumer handles: ``peak × imbalance / handled``, rounded up.
2. A consumer without a queue is idle, so there must be at least as many queues as consumers.
3. Queues are divided evenly among consumers, so the number of queues must be a multiple of the number of consumers.

If the messages with one key exceed what one queue can handle, more queues do not help. In that case the key causes the
imbalance, and the first step ignores the imbalance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.properties import SHARDING_KEY
from cometmq.quantity import quantity
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.columns import property_of
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.options import KEYS, SkewOptions
from cometmq.spark.jobs.report.parts import Notes, Part, Table
from cometmq.spark.jobs.report.plots import Plot, bars
from cometmq.spark.jobs.report.report import Report
from cometmq.spark.jobs.run import job_session, persisted
from cometmq.spark.records.queues import Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The messages in one queue."""

    broker: str
    queue_id: int
    messages: int
    bytes: int
    """Size of the stored records in bytes, including headers and properties."""


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that is common to many messages."""

    topic: str
    key: str
    messages: int
    bytes: int
    share: float
    """Share of the topic's messages, from 0 to 1."""
    queues: int
    """Number of queues that contain messages with the key."""


@dataclass(frozen=True, slots=True)
class TopicSkew:
    """The distribution of a topic's messages over its queues."""

    topic: str
    messages: int
    bytes: int
    keys: int
    """Number of distinct keys."""
    peak_per_s: float
    """Messages per second in the busiest minute of store time."""
    max_to_mean: float
    max_to_mean_bytes: float
    gini: float
    gini_bytes: float
    recommended_queues: int
    notes: tuple[str, ...]
    queues: tuple[QueueLoad, ...]


@dataclass(frozen=True)
class SkewReport(Report):
    """The skew job's report: hot keys and uneven queues."""

    COMPUTED = ("messages",)

    source: str
    by: str
    """Field that is used as a message's key: keys, shardingKey or tags."""
    topics: tuple[TopicSkew, ...]
    hot_keys: tuple[HotKey, ...]
    """Hot keys in all topics, most messages first."""
    seconds: float

    @property
    def messages(self) -> int:
        """Return the total number of messages in all topics."""
        return sum(of.messages for of in self.topics)

    @property
    def title(self) -> str:
        """Return the title of the page."""
        return f"Skew of {', '.join(of.topic for of in self.topics)}"

    @property
    def verdict(self) -> str:
        """Return a sentence about the topic whose fullest queue is furthest above the mean."""
        worst = max(self.topics, key=lambda of: of.max_to_mean)
        return f"The fullest queue of {worst.topic} holds {worst.max_to_mean:.2f} times the mean"

    def _figures(self) -> list[tuple[str, str]]:
        counts = (("messages", self.messages), ("topics", len(self.topics)))
        figures = [(f"{count:,}", name) for name, count in counts]
        if self.hot_keys:
            figures.append((f"{max(hot.share for hot in self.hot_keys):.1%}", f"of a topic for one of {self.by}"))
        return [*figures, (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        yield (
            f"{quantity(self.messages, 'message')} of {quantity(len(self.topics), 'topic')} of {self.source}; "
            f"{self.seconds:.1f} s"
        )
        yield Table(
            ("<topic", ">messages", ">peak/s", ">queues", ">max/mean", ">gini", ">in bytes", ">should be"),
            [
                (
                    of.topic,
                    of.messages,
                    f"{of.peak_per_s:,.1f}",
                    len(of.queues),
                    f"{of.max_to_mean:.2f}",
                    f"{of.gini:.2f}",
                    f"{of.gini_bytes:.2f}",
                    of.recommended_queues,
                )
                for of in self.topics
            ],
            "Topics",
        )
        notes = [f"{of.topic}: {note}" for of in self.topics for note in of.notes]
        if notes:
            yield Notes(notes, urgent=True)
        for of in self.topics:
            yield Table(
                (f"<{of.topic}", ">queue", ">messages", ">share", ">bytes"),
                [
                    (q.broker, q.queue_id, q.messages, f"{q.messages / (of.messages or 1):.1%}", q.bytes)
                    for q in of.queues
                ],
                f"Queues of {of.topic}",
            )
        if self.hot_keys:
            yield Table(
                (f"<hot {self.by}", "<topic", ">messages", ">share", ">queues"),
                [(hot.key, hot.topic, hot.messages, f"{hot.share:.1%}", hot.queues) for hot in self.hot_keys],
                f"Hot {self.by}",
            )

    def _plots(self) -> list[Plot]:
        plots: list[Plot] = []
        for of in self.topics:
            counts = ((f"{queue.broker} {queue.queue_id}", queue.messages) for queue in of.queues)
            plots.append(bars(f"Queues of {of.topic}", "messages", counts))
        shares = ((hot.key[:24], 100 * hot.share) for hot in self.hot_keys[:20])
        return [*plots, bars(f"Hot {self.by}", "% of the topic", shares)]


def gini(loads: Sequence[int]) -> float:
    """Return the Gini coefficient of the queues' loads: 0 if all loads are equal, (n - 1) / n if one queue has the
    entire load.
    """
    total = sum(loads)
    if not total:
        return 0.0
    ranked = sum((2 * rank - len(loads) - 1) * load for rank, load in enumerate(sorted(loads), 1))
    return ranked / (len(loads) * total)


def max_to_mean(loads: Sequence[int]) -> float:
    """Return the busiest queue's load divided by the mean: 1 if all loads are equal, n if one of n queues has the
    entire load.
    """
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """The figures that determine a topic's recommended number of queues."""

    peak_per_s: float
    """Messages per second in the busiest minute."""
    handled_per_s: float
    """Number of messages per second that one consumer can handle from one queue."""
    consumers: int
    imbalance: float
    """Number of messages in the busiest queue divided by the mean."""
    hottest_share: float
    """Share of the messages with the most frequent key, if all of them are in one queue; otherwise 0."""

    @property
    def key_is_too_hot(self) -> bool:
        """Return True if the messages with one key exceed what a queue's consumer can handle."""
        return self.peak_per_s * self.hottest_share > self.handled_per_s


def recommended_queues(demand: Demand) -> int:
    """Return the total number of queues that a topic should have on all brokers, according to the rule in the module's
    docstring.
    """
    imbalance = 1.0 if demand.key_is_too_hot else demand.imbalance
    needed = max(math.ceil(demand.peak_per_s * imbalance / demand.handled_per_s), demand.consumers)
    return math.ceil(needed / demand.consumers) * demand.consumers


UNEVEN: Final = 1.5
"""Minimum load of the busiest queue, relative to the mean, that is reported in a note."""


@job(SkewOptions)
def skew(options: SkewOptions) -> SkewReport:
    """Measure how evenly the topics' messages are distributed over queues, and find hot keys.

    :raises OptionError: an argument is invalid, or a topic does not exist.
    :raises SparkSourceError: the messages cannot be read.
    """
    source, topics, by, on_step = options.source, options.topics, options.by, options.on_step
    if by not in KEYS:
        raise OptionError(f"invalid by {by!r}: use {', '.join(KEYS)}")
    if options.consumers < 1 or not options.handled_per_s > 0:
        raise OptionError("consumers and handled_per_s must be above 0")
    named = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    queues = source.queues(named)
    began = SYSTEM_CLOCK.monotonic()
    with job_session(options, "cometmq skew") as session:
        on_step(f"reading {quantity(len(queues), 'queue')} of {quantity(len(named), 'topic')}")
        with persisted(_rows(source, session, named, by)) as rows:
            loads, peaks = _loads(rows), _peaks(rows)
            on_step(f"counting {by} of {quantity(sum(messages for messages, _ in loads.values()), 'message')}")
            totals = {topic: sum(loads.get(of, (0, 0))[0] for of in queues if of.topic == topic) for topic in named}
            hot_keys, hottest = _keys(rows, totals, options.top)
    found = []
    for topic in named:
        held = tuple(QueueLoad(of.broker, of.queue_id, *loads.get(of, (0, 0))) for of in queues if of.topic == topic)
        keys, most, in_queues = hottest.get(topic, (0, 0, 0))
        demand = Demand(
            peak_per_s=peaks.get(topic, 0.0),
            handled_per_s=options.handled_per_s,
            consumers=options.consumers,
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
    column = "properties" if by == "shardingKey" else by
    found = source.read(spark, topics, ("topic", "brokerName", "queueId", column, "storeSize", "storeTimestamp"))
    if by == "keys":
        keys = f.array_distinct(f.split("keys", " "))
    else:
        keys = f.array(property_of(SHARDING_KEY) if by == "shardingKey" else f.col(by))
    minute = f.date_trunc("minute", "storeTimestamp").alias("minute")
    return found.select("topic", "brokerName", "queueId", keys.alias("keys"), "storeSize", minute)


def _loads(rows: DataFrame) -> dict[Queue, tuple[int, int]]:
    sums = rows.groupBy("topic", "brokerName", "queueId").agg(f.count("*"), f.sum("storeSize")).collect()
    return {Queue(*place): (messages, size) for *place, messages, size in sums}


def _peaks(rows: DataFrame) -> dict[str, float]:
    busiest = rows.groupBy("topic", "minute").count().groupBy("topic").agg(f.max("count")).collect()
    return {topic: count / 60 for topic, count in busiest}


def _keys(
    rows: DataFrame, totals: Mapping[str, int], top: int
) -> tuple[tuple[HotKey, ...], dict[str, tuple[int, int, int]]]:
    """Return the hottest keys and, for each topic, its number of keys and its hottest key's messages and queues."""
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
