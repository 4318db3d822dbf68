"""The delay job: how late delayed messages were delivered, when waiting messages are due, and which messages are stuck.

:mod:`.rows` joins waiting records with deliveries. The executors keep the rows on their disks between the passes. The
    driver receives aggregates, each from one pass, and the messages to list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.names import SCHEDULE_TOPIC, SYSTEM_TOPICS, TIMER_TOPIC
from cometmq.quantity import quantity
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.columns import HOUR_MS, begin_of, interval_of, percentiles
from cometmq.spark.jobs.delay.progress import BrokerProgress, progress_of
from cometmq.spark.jobs.delay.report import (
    DelayReport,
    DueInterval,
    LateMessage,
    Lateness,
    Reason,
    StuckMessage,
    StuckReason,
    TimerBehind,
    TimerCount,
    WaitingTopic,
)
from cometmq.spark.jobs.delay.rows import delayed_rows
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.options import MAX_DAYS, DelayOptions
from cometmq.spark.jobs.report.parts import moment
from cometmq.spark.jobs.run import job_session, persisted
from cometmq.spark.options import demand_present
from cometmq.spark.source.offsets import closed_topic
from cometmq.spark.store.files import newest_store_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@job(DelayOptions)
def delay(options: DelayOptions) -> DelayReport:
    """Measure delayed messages, including retries. They may have delay levels or arbitrary delays.

    :raises OptionError: an argument is invalid, or a topic does not exist.
    :raises CometMQError: brokers do not answer, or the messages cannot be read.
    """
    source, topics, grace_ms = options.source, options.topics, options.grace_ms
    days, top, on_step = options.days, options.top, options.on_step
    if not 1 <= days <= MAX_DAYS or grace_ms < 0:
        raise OptionError(f"days must be from 1 to {MAX_DAYS}, and grace_ms must not be negative")
    began = SYSTEM_CLOCK.monotonic()
    there = source.topics("")
    at_ms = _moment_of(source, options.clock)
    progress = progress_of(source, options.delay_levels)
    named, closed = _topics_to_measure(source, topics, there)
    waiting_topics = [name for name in (SCHEDULE_TOPIC, TIMER_TOPIC) if name in there]
    with job_session(options, "cometmq delay") as session:
        on_step(f"reading {quantity(len(named), 'topic')} and the waiting messages")
        # Messages that wait for a topic that does not exist are counted; those that wait for a topic that is not read
        # are not.
        unread = [name for name in there if name not in named]
        chosen = f.col("topic").isin(list(named)) if topics else ~f.col("topic").isin(unread)
        progress = [of.counting(lambda topic: topic in named if topics else topic not in unread) for of in progress]
        rows = delayed_rows(session, source, named, waiting_topics, progress).where(chosen)
        seen = rows.withColumn("seenMs", _seen_ms(source, there, at_ms))
        with persisted(seen.withColumn("state", _state(source, at_ms, grace_ms))) as states:
            counts = count_states(states)
            on_step(f"measuring {counts.messages(DELIVERED):,} delivered messages")
            late_by = lateness(states.where(f.col("state") == DELIVERED), counts.due_between(DELIVERED), top)
            on_step(f"counting {counts.messages(WAITING):,} waiting and {counts.messages(STUCK):,} stuck messages")
            waits = states.where(f.col("state") == WAITING)
            waiting = waiting_by_topic(waits, top) if counts.messages(WAITING) else ()
            stuck = with_reasons(states.where(f.col("state") == STUCK), progress)
            reasons, first = stuck_messages(stuck, top) if counts.messages(STUCK) else ((), ())
            return DelayReport(
                source=str(source),
                at_ms=at_ms,
                grace_ms=grace_ms,
                delivered=counts.messages(DELIVERED),
                by_born=counts.by_born(DELIVERED),
                topics=late_by.topics,
                levels=late_by.levels,
                hours=late_by.hours,
                slowest=late_by.slowest,
                waiting=counts.messages(WAITING),
                waiting_topics=waiting,
                due=due_by_topic(waits, [of.topic for of in waiting], at_ms, days) if waiting else (),
                timer_counts=_timer_counts(progress, named, top),
                timers_behind=tuple(
                    TimerBehind(of.broker, of.timer_behind_s) for of in progress if of.timer_behind_s * 1000 > grace_ms
                ),
                stuck=counts.messages(STUCK),
                stuck_reasons=reasons,
                stuck_messages=first,
                notes=(
                    *(f"topic {name} is left out because it is not readable" for name in closed),
                    *_notes(counts, progress, waiting_topics, since_ms=source.begin_ms),
                ),
                seconds=SYSTEM_CLOCK.monotonic() - began,
            )


def _topics_to_measure(
    source: MessageSource, topics: Sequence[str], there: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the readable topics, and those that are left out because they are not readable."""
    named = tuple(dict.fromkeys(topics))
    demand_present(named, there, f"{source} has no topic", next_step="leave out --topic to read all topics")
    users = named or tuple(name for name in there if name not in SYSTEM_TOPICS)
    readable = source.readable(users)
    closed = [name for name in users if name not in readable]
    if closed and named:
        raise closed_topic(closed[0])
    return tuple(name for name in users if name in readable), closed


def _moment_of(source: MessageSource, clock: Clock) -> int:
    """Return the time of the report. If the source is files, this is the newest message's store time."""
    if source.end_ms is not None:
        return source.end_ms
    if source.archive is not None:
        return max((file.max_store_ms for file in source.open_archive().files()), default=0)
    if source.store is not None:
        return newest_store_time(source.open_store()) or 0
    return clock.now_ms()


def _seen_ms(source: MessageSource, there: Sequence[str], at_ms: int) -> Column:
    """Return the time up to which a topic's messages are known, or null if the topic does not exist."""
    if source.archive is None:
        return f.when(f.col("topic").isin(list(there)), f.lit(at_ms).cast("bigint"))
    newest: dict[str, int] = {}
    for file in source.open_archive().files():
        newest[file.topic] = min(max(newest.get(file.topic, 0), file.max_store_ms), at_ms)
    return looked_up(newest, f.col("topic"))


def _state(source: MessageSource, at_ms: int, grace_ms: int) -> Column:
    """Return the column that contains a message's state: delivered, waiting, stuck or unknown."""
    # A topic that does not exist was deleted from brokers and stores, or was not archived.
    unseen = f.lit(None).cast("bigint") if source.archive is not None else f.lit(at_ms)
    until = f.when(f.col("topic") == "", f.lit(at_ms)).otherwise(f.coalesce("seenMs", unseen))
    overdue = f.col("dueMs") < at_ms - grace_ms
    known = f.col("dueMs") < until - grace_ms
    if source.begin_ms is not None:
        known &= f.col("dueMs") >= source.begin_ms
    return (
        f.when(f.col("deliveredMs").isNotNull(), DELIVERED)
        .when(overdue & known, STUCK)
        .when(overdue | f.col("dueMs").isNull(), UNKNOWN)
        .otherwise(WAITING)
    )


def _timer_counts(progress: Sequence[BrokerProgress], named: Sequence[str], top: int) -> tuple[TimerCount, ...]:
    found = [
        TimerCount(of.broker, topic, counted.count, counted.first_due_time, counted.last_due_time)
        for of in progress
        for topic, counted in of.timer_counts.items()
        if topic in named and counted.count
    ]
    return tuple(sorted(found, key=lambda count: (-count.messages, count.broker, count.topic))[:top])


def _notes(
    counts: Counts, progress: Sequence[BrokerProgress], waiting_topics: Sequence[str], since_ms: int | None
) -> Iterator[str]:
    if by_born := counts.by_born(DELIVERED):
        yield (
            f"{by_born:,} delivered messages of delay levels have no waiting record any more: they are measured "
            "by their born time, set by the producer's clock"
        )
    if unmeasured := counts.unmeasured(DELIVERED):
        yield f"{unmeasured:,} delivered messages cannot be measured: their due time is unknown"
    if unknown := counts.messages(UNKNOWN):
        why = "they were due before the requested time" if since_ms is not None else "their topics end before"
        held = f"of {quantity(unknown, 'message')} it is unknown whether they were delivered"
        yield f"{held}: {why}, or their due time is unknown"
    if SCHEDULE_TOPIC not in waiting_topics:
        yield f"{SCHEDULE_TOPIC} does not exist here, so messages that wait for a delay level are unknown"
    if any(of.timer_counts for of in progress) and TIMER_TOPIC not in waiting_topics:
        yield (
            f"these brokers do not allow reading {TIMER_TOPIC}: only the counts of waiting messages with any "
            "delay are known; their stores have more details (--store)"
        )
        return
    for of in progress:
        counted = sum(count.count for count in of.timer_counts.values())
        if (beyond := counted - counts.any_delay_of(of.broker)) > 0:
            yield (
                f"{beyond:,} more messages with any delay wait at {of.broker}, but are no longer in its log: "
                "cometmq delay list lists them, and its store has their due times (--store)"
            )


DELIVERED, WAITING, STUCK, UNKNOWN = "delivered", "waiting", "stuck", "unknown"
"""States of a message. ``unknown`` means that the message may or may not have been delivered."""
DAY_MS: Final = 24 * HOUR_MS
_HOURS: Final = 24
"""Number of hours from now that the report lists one by one; later hours are grouped by day."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of messages by broker, state, and delay level or arbitrary delay."""

    _rows: Sequence[Any]

    def messages(self, state: str) -> int:
        """Return the number of messages in one state."""
        return sum(row["messages"] for row in self._rows if row["state"] == state)

    def by_born(self, state: str) -> int:
        """Return the number of messages whose due time was computed from their born time."""
        return sum(row["byBorn"] for row in self._rows if row["state"] == state)

    def unmeasured(self, state: str) -> int:
        """Return the number of messages without a due time."""
        return sum(row["unmeasured"] for row in self._rows if row["state"] == state)

    def due_between(self, state: str) -> tuple[int, int] | None:
        """Return the earliest and the latest due time of the messages in one state; None if no due time is known."""
        rows = [row for row in self._rows if row["state"] == state and row["firstMs"] is not None]
        return (min(row["firstMs"] for row in rows), max(row["lastMs"] for row in rows)) if rows else None

    def any_delay_of(self, broker: str) -> int:
        """Return the number of undelivered messages with arbitrary delays on a broker."""
        return sum(
            row["messages"]
            for row in self._rows
            if row["broker"] == broker and row["anyDelay"] and row["state"] != DELIVERED
        )


def count_states(states: DataFrame) -> Counts:
    """Count messages by state."""
    found = states.groupBy("broker", "anyDelay", "state").agg(
        f.count("*").alias("messages"),
        f.count_if(f.col("byBorn") & f.col("dueMs").isNotNull()).alias("byBorn"),
        f.count_if(f.col("dueMs").isNull()).alias("unmeasured"),
        f.min("dueMs").alias("firstMs"),
        f.max("dueMs").alias("lastMs"),
    )
    return Counts(found.collect())


# Delivered ------------------------------------------------------------------------------------------


def _measures() -> list[Column]:
    return [
        f.count("*").alias("messages"),
        f.count_if(f.col("lateMs") < 0).alias("early"),
        percentiles("lateMs", (0.5, 0.9, 0.99)).alias("ranks"),
        f.max("lateMs").alias("longest"),
    ]


@dataclass(frozen=True, slots=True)
class LatenessBy:
    """Lateness of delivered messages, grouped in several ways."""

    topics: tuple[Lateness, ...] = ()
    levels: tuple[Lateness, ...] = ()
    hours: tuple[Lateness, ...] = ()
    slowest: tuple[LateMessage, ...] = ()


def lateness(delivered: DataFrame, due_between: tuple[int, int] | None, top: int) -> LatenessBy:
    """Measure lateness by topic, level and time.

    :param due_between: earliest and latest due time; None if no due time is known.
    """
    if due_between is None:
        return LatenessBy()
    late = delivered.where("dueMs IS NOT NULL").selectExpr("*", "deliveredMs - dueMs AS lateMs")
    level = f.when(f.col("anyDelay"), "any").otherwise(f.col("level").cast("string"))
    return LatenessBy(
        topics=lateness_by_name(late, f.col("topic"), top),
        levels=lateness_by_name(late, level, top),
        hours=lateness_by_time(late, *due_between),
        slowest=latest(late, top),
    )


def lateness_by_name(late: DataFrame, by: Column, top: int) -> tuple[Lateness, ...]:
    """Measure lateness grouped by a column, starting with the row that has the most messages."""
    found = late.groupBy(by.alias("name")).agg(*_measures()).orderBy(f.desc("messages"), "name").limit(top)
    return tuple(_lateness(row["name"], row) for row in found.collect())


def lateness_by_time(late: DataFrame, first_ms: int, last_ms: int) -> tuple[Lateness, ...]:
    """Measure lateness by the hour in which messages were due, or by several hours to limit the number of rows."""
    begin = begin_of("dueMs", interval_of(first_ms, last_ms))
    found = late.groupBy(begin).agg(*_measures()).orderBy("begin").collect()
    return tuple(_lateness(moment(row["begin"]), row) for row in found)


def _lateness(name: str, row: Any) -> Lateness:
    p50, p90, p99 = row["ranks"]
    return Lateness(name, row["messages"], row["early"], p50, p90, p99, row["longest"])


def latest(late: DataFrame, top: int) -> tuple[LateMessage, ...]:
    """Return the messages that were delivered latest after their due times, if any were late."""
    found = late.where("lateMs > 0").orderBy(f.desc("lateMs"), "dueMs", "deliveredId").limit(top)
    names = ("topic", "level", "uniqKey", "deliveredId", "dueMs", "lateMs")
    return tuple(LateMessage(*row) for row in found.select(*names).collect())


# Waiting --------------------------------------------------------------------------------------------


def waiting_by_topic(waits: DataFrame, top: int) -> tuple[WaitingTopic, ...]:
    """Return the waiting messages by topic, starting with the topic that has the most messages."""
    found = waits.groupBy("topic").agg(f.count("*").alias("messages"), f.min("dueMs"), f.max("dueMs"))
    return tuple(WaitingTopic(*row) for row in found.orderBy(f.desc("messages"), "topic").limit(top).collect())


def due_by_topic(waits: DataFrame, topics: Sequence[str], at_ms: int, days: int) -> tuple[DueInterval, ...]:
    """Return waiting messages by due time: by hour for the next day, then by day. They are counted by topic for the
    topics in ``topics``, and together for all other topics.
    """
    first_ms = at_ms - at_ms % HOUR_MS
    hour = f.floor((f.col("dueMs") - first_ms) / HOUR_MS)
    day = f.floor((f.col("dueMs") - first_ms) / DAY_MS)
    interval = (
        f.when(f.col("dueMs") <= at_ms, -1)
        .when(hour < _HOURS, hour)
        .when(day < days, _HOURS - 1 + day)
        .otherwise(_HOURS - 1 + days)
    )
    topic = f.when(f.col("topic").isin(list(topics)), f.col("topic")).otherwise("")
    found = waits.groupBy(interval.alias("interval"), topic.alias("topic")).count().collect()
    order = {name: place for place, name in enumerate(topics)}
    found.sort(key=lambda row: (row["interval"], order.get(row["topic"], len(order))))
    return tuple(DueInterval(row["topic"], *_ends(row["interval"], first_ms, days), row["count"]) for row in found)


def _ends(interval: int, first_ms: int, days: int) -> tuple[int | None, int | None]:
    if interval < 0:
        return None, None
    if interval < _HOURS:
        return first_ms + interval * HOUR_MS, first_ms + (interval + 1) * HOUR_MS
    begin_ms = first_ms + (interval - _HOURS + 1) * DAY_MS
    return begin_ms, begin_ms + DAY_MS if interval < _HOURS - 1 + days else None


# Stuck ----------------------------------------------------------------------------------------------


def stuck_messages(stuck: DataFrame, top: int) -> tuple[tuple[StuckReason, ...], tuple[StuckMessage, ...]]:
    """Return the counts of stuck messages, and those with the earliest due times."""
    return stuck_by_reason(stuck, top), first_stuck(stuck, top)


def stuck_by_reason(stuck: DataFrame, top: int) -> tuple[StuckReason, ...]:
    """Count stuck messages by reason, broker and topic, largest count first."""
    found = stuck.groupBy("reason", "broker", "topic").agg(f.count("*").alias("messages"))
    rows = found.orderBy(f.desc("messages"), "reason", "broker", "topic").limit(top).collect()
    return tuple(StuckReason(Reason(row["reason"]), row["broker"], row["topic"], row["messages"]) for row in rows)


def first_stuck(stuck: DataFrame, top: int) -> tuple[StuckMessage, ...]:
    """Return the stuck messages with the earliest due times."""
    rows = stuck.orderBy("dueMs", "waitingId").limit(top).collect()
    return tuple(
        StuckMessage(
            broker=row["broker"],
            topic=row["topic"],
            level=row["level"],
            unique_key=row["uniqKey"],
            msg_id=row["waitingId"],
            due_ms=row["dueMs"],
            reason=Reason(row["reason"]),
        )
        for row in rows
    )


def with_reasons(stuck: DataFrame, progress: Sequence[BrokerProgress]) -> DataFrame:
    """Add the column ``reason`` to the stuck rows from :func:`.rows.delayed_rows`.

    :param stuck: the stuck rows, with an additional column ``seenMs``, which is null if the topic does not exist.
    """
    reached = {f"{of.broker}/{level}": offset for of in progress for level, offset in of.reached.items()}
    until = {of.broker: of.timer_until_ms for of in progress if of.timer_until_ms is not None}
    without = [of.broker for of in progress if of.has_timer is False]
    next_offset = looked_up(reached, f.concat_ws("/", "broker", "level"))
    timer_until_ms = looked_up(until, f.col("broker"))
    any_delay = f.col("anyDelay")
    ahead = f.when(any_delay, f.col("dueMs") > timer_until_ms).otherwise(f.col("waitingOffset") >= next_offset)
    reason = (
        f.when((f.col("topic") == "") | (f.col("queueId") < 0), Reason.NOWHERE)
        .when(any_delay & f.col("broker").isin(without), Reason.NO_TIMER)
        .when(ahead, Reason.NOT_REACHED)
        .when(f.isnull("seenMs"), Reason.NO_TOPIC)
        .when(ahead.isNotNull(), Reason.PASSED)
        .otherwise(Reason.UNKNOWN)
    )
    return stuck.withColumn("reason", reason)


def looked_up(table: Mapping[str, int], key: Column) -> Column:
    """Return the number for a key in a table, or null if the key is missing. The expression is flat, whatever the
    table's length.
    """
    if not table:
        return f.lit(None).cast("bigint")
    entries = [f.lit(part) for name, value in table.items() for part in (name, value)]
    return f.try_element_at(f.create_map(*entries), key).cast("bigint")
