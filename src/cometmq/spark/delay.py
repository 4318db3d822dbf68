"""The delay job: how exact delayed messages were, what waits until when, and what is stuck.

:mod:`~.delay_rows` joins what waits or waited with what was delivered; the rows lie on the executors' disks between
the passes. The driver gets sums (:mod:`~.delay_sums`), and as many messages as are to be named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.names import SCHEDULE_TOPIC, SYSTEM_TOPICS, TIMER_TOPIC
from cometmq.quantity import quantity
from cometmq.spark import delay_sums as sums
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.delay_progress import BrokerProgress, progress_of
from cometmq.spark.delay_report import DelayReport, TimerBehind, TimerCount
from cometmq.spark.delay_rows import delayed_rows
from cometmq.spark.delay_stuck import looked_up, with_reasons
from cometmq.spark.delay_sums import DELIVERED, STUCK, UNTOLD, WAITING
from cometmq.spark.errors import OptionError
from cometmq.spark.job_source import MessageSource, job_session, kept
from cometmq.spark.missing_topics import demand_present
from cometmq.spark.store_files import newest_store_time

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

TOP: Final = 20
GRACE_MS: Final = 60_000
DAYS: Final = 7
MAX_DAYS: Final = 366


def delay(
    source: MessageSource,
    topics: Sequence[str] = (),
    *,
    delay_levels: str | None = None,
    grace_ms: int = GRACE_MS,
    days: int = DAYS,
    top: int = TOP,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[str], object] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> DelayReport:
    """Measure delayed messages, of delay levels and of any delay, retries among them.

    :param source: brokers, an archive that holds the topics where messages wait too, or a store. With ``begin_ms``
        only what was delivered or due since counts; ``end_ms`` is the moment that is spoken of.
    :param topics: all but system topics by default.
    :param delay_levels: ``messageDelayLevel`` where no broker says it; the usual one by default.
    :param grace_ms: what is due so long ago and not delivered is stuck.
    :param days: how far the histogram of what is due goes.
    :param top: how many topics, slow and stuck messages to name.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: told what the job begins to do.
    :param clock: what tells a source of brokers the time.
    :raises OptionError: an argument is wrong, or a topic is not there.
    :raises CometMQError: brokers do not answer, or the messages cannot be read.
    """
    if not 1 <= days <= MAX_DAYS or grace_ms < 0:
        raise OptionError(f"days must be from 1 to {MAX_DAYS}, and grace_ms not below 0")
    began = SYSTEM_CLOCK.monotonic()
    there = source.topics("")
    at_ms = _moment_of(source, clock)
    progress = progress_of(source, delay_levels)
    named = tuple(dict.fromkeys(topics)) or tuple(name for name in there if name not in SYSTEM_TOPICS)
    demand_present(named, there, f"{source} has no topic", next_step="without --topic it reads all that there are")
    waiting_topics = [name for name in (SCHEDULE_TOPIC, TIMER_TOPIC) if name in there]
    with job_session(spark, master, "cometmq delay") as session:
        from pyspark.sql import functions as f

        on_step(f"reading {quantity(len(named), 'topic')} and what waits")
        # What waits for a topic that is not there belongs to the picture, what waits for one that is not read does not.
        unread = [name for name in there if name not in named]
        chosen = f.col("topic").isin(list(named)) if topics else ~f.col("topic").isin(unread)
        rows = delayed_rows(session, source, named, waiting_topics, progress).where(chosen)
        seen = rows.withColumn("seenMs", _seen_ms(source, there, at_ms))
        with kept(seen.withColumn("state", _state(source, at_ms, grace_ms))) as states:
            counts = sums.counts(states)
            on_step(f"measuring {counts.messages(DELIVERED):,} delivered messages")
            late = states.where(f.col("state") == DELIVERED).selectExpr("*", "deliveredMs - dueMs AS lateMs")
            late = late.where("lateMs IS NOT NULL")
            on_step(f"counting {counts.messages(WAITING):,} that wait and {counts.messages(STUCK):,} that are stuck")
            waits = states.where(f.col("state") == WAITING)
            waiting = sums.waiting_topics(waits, top)
            stuck = with_reasons(states.where(f.col("state") == STUCK), progress)
            return DelayReport(
                source=str(source),
                at_ms=at_ms,
                grace_ms=grace_ms,
                delivered=counts.messages(DELIVERED),
                by_born=counts.by_born(DELIVERED),
                topics=sums.lateness(late, f.col("topic"), top),
                levels=sums.lateness(
                    late, f.when(f.col("anyDelay"), "any").otherwise(f.col("level").cast("string")), top
                ),
                hours=sums.lateness_by_time(late),
                slowest=sums.slowest(late, top),
                waiting=counts.messages(WAITING),
                waiting_topics=waiting,
                due=sums.due(waits, [of.topic for of in waiting], at_ms, days),
                timer_counts=_timer_counts(progress, named, top),
                timers_behind=tuple(
                    TimerBehind(of.broker, of.timer_behind_s) for of in progress if of.timer_behind_s * 1000 > grace_ms
                ),
                stuck=counts.messages(STUCK),
                stuck_reasons=sums.stuck_reasons(stuck, top),
                stuck_messages=sums.stuck_messages(stuck, top),
                notes=tuple(_notes(counts, progress, waiting_topics, since_ms=source.begin_ms)),
                seconds=SYSTEM_CLOCK.monotonic() - began,
            )


def _moment_of(source: MessageSource, clock: Clock) -> int:
    """The moment to speak of: for files the last at which anything is known to have been stored."""
    if source.end_ms is not None:
        return source.end_ms
    if source.archive is not None:
        return max((file.max_store_ms for file in ArchiveLog(source.archive).files()), default=0)
    if source.store is not None:
        return newest_store_time(source.store) or 0
    return clock.now_ms()


def _seen_ms(source: MessageSource, there: Sequence[str], at_ms: int) -> Column:
    """Until when the messages of a topic are known; null for one that is not there."""
    from pyspark.sql import functions as f

    if source.archive is None:
        return f.when(f.col("topic").isin(list(there)), f.lit(at_ms).cast("bigint"))
    newest: dict[str, int] = {}
    for file in ArchiveLog(source.archive).files():
        newest[file.topic] = min(max(newest.get(file.topic, 0), file.max_store_ms), at_ms)
    return looked_up(newest, f.col("topic"))


def _state(source: MessageSource, at_ms: int, grace_ms: int) -> Column:
    """Of a message: delivered, waiting, stuck, or untold where nothing here can tell."""
    from pyspark.sql import functions as f

    # A topic that is not there: brokers and stores have deleted it, an archive was never told to keep it.
    unseen = f.lit(None).cast("bigint") if source.archive is not None else f.lit(at_ms)
    until = f.when(f.col("topic") == "", f.lit(at_ms)).otherwise(f.coalesce("seenMs", unseen))
    overdue = f.col("dueMs") < at_ms - grace_ms
    told = f.col("dueMs") < until - grace_ms
    if source.begin_ms is not None:
        told &= f.col("dueMs") >= source.begin_ms
    return (
        f.when(f.col("deliveredMs").isNotNull(), DELIVERED)
        .when(overdue & told, STUCK)
        .when(overdue | f.col("dueMs").isNull(), UNTOLD)
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
    counts: sums.Counts, progress: Sequence[BrokerProgress], waiting_topics: Sequence[str], since_ms: int | None
) -> Iterator[str]:
    if by_born := counts.by_born(DELIVERED):
        yield (
            f"{by_born:,} delivered messages of delay levels have no waiting record any more: they are measured by "
            "their born time, which is their producer's clock"
        )
    if unmeasured := counts.unmeasured(DELIVERED):
        yield f"{unmeasured:,} delivered messages cannot be measured: nothing tells when they were due"
    if untold := counts.messages(UNTOLD):
        why = "they were due before the time asked for" if since_ms is not None else "their topics end before"
        told = f"of {quantity(untold, 'message')} nothing tells whether they came"
        yield f"{told}: {why}, or it is not known when they were due"
    if SCHEDULE_TOPIC not in waiting_topics:
        yield f"there is no {SCHEDULE_TOPIC} here, so that nothing is known of messages that wait for a level"
    if any(of.timer_counts for of in progress) and TIMER_TOPIC not in waiting_topics:
        yield (
            f"these brokers let nobody read {TIMER_TOPIC}: of messages with any delay that wait only their counts are "
            "known; their stores tell more (--store)"
        )
        return
    for of in progress:
        counted = sum(count.count for count in of.timer_counts.values())
        if (beyond := counted - counts.any_delay_of(of.broker)) > 0:
            yield (
                f"{beyond:,} more messages with any delay wait at {of.broker}, whose log has them no more: cometmq "
                "delay list names them, and its store says when they are due (--store)"
            )
