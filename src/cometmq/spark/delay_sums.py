"""The sums of the delay job: each is one pass over rows that Spark keeps, and comes back small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.spark.delay_report import (
    DueStretch,
    LateMessage,
    Lateness,
    Reason,
    StuckMessage,
    StuckReason,
    WaitingTopic,
    moment,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELIVERED, WAITING, STUCK, UNTOLD = "delivered", "waiting", "stuck", "untold"
"""States of a message; of an untold one nothing here says whether it came."""
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
_HOURS: Final = 24
"""So many hours from now on are told one by one, then days."""
_STRETCHES: Final = 400
"""Stretches of time at most in which lateness is told; a longer history has longer ones."""
_ACCURACY: Final = 10_000
"""Of ``percentile_approx``: ranks are right to one in so many."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages by broker, state and whether they have any delay."""

    _rows: Sequence[Any]

    def messages(self, state: str) -> int:
        """In this state."""
        return sum(row["messages"] for row in self._rows if row["state"] == state)

    def by_born(self, state: str) -> int:
        """Of them with a due time reckoned from the born time."""
        return sum(row["byBorn"] for row in self._rows if row["state"] == state)

    def unmeasured(self, state: str) -> int:
        """Of them without a due time."""
        return sum(row["unmeasured"] for row in self._rows if row["state"] == state)

    def any_delay_of(self, broker: str) -> int:
        """Messages with any delay of a broker that are not delivered."""
        return sum(
            row["messages"]
            for row in self._rows
            if row["broker"] == broker and row["anyDelay"] and row["state"] != DELIVERED
        )


def counts(states: DataFrame) -> Counts:
    """Count messages by state."""
    from pyspark.sql import functions as f

    found = states.groupBy("broker", "anyDelay", "state").agg(
        f.count("*").alias("messages"),
        f.count_if(f.col("byBorn") & f.col("dueMs").isNotNull()).alias("byBorn"),
        f.count_if(f.col("dueMs").isNull()).alias("unmeasured"),
    )
    return Counts(found.collect())


# Delivered ------------------------------------------------------------------------------------------


def _measures() -> list[Column]:
    from pyspark.sql import functions as f

    return [
        f.count("*").alias("messages"),
        f.count_if(f.col("lateMs") < 0).alias("early"),
        f.percentile_approx("lateMs", [0.5, 0.9, 0.99], _ACCURACY).alias("ranks"),
        f.max("lateMs").alias("longest"),
    ]


def lateness(late: DataFrame, by: Column, top: int) -> tuple[Lateness, ...]:
    """Lateness by a column, most messages first."""
    from pyspark.sql import functions as f

    found = late.groupBy(by.alias("name")).agg(*_measures()).orderBy(f.desc("messages"), "name").limit(top)
    return tuple(_lateness(row["name"], row) for row in found.collect())


def lateness_by_time(late: DataFrame) -> tuple[Lateness, ...]:
    """Lateness by the hour in which messages were due, or where there would be too many by a multiple of it."""
    from pyspark.sql import functions as f

    [(first_ms, last_ms)] = late.agg(f.min("dueMs"), f.max("dueMs")).collect()
    if first_ms is None:
        return ()
    stretch_ms = HOUR_MS * (1 + (last_ms - first_ms) // (HOUR_MS * _STRETCHES))
    begin = (f.col("dueMs") - f.pmod("dueMs", f.lit(stretch_ms))).alias("begin")
    found = late.groupBy(begin).agg(*_measures()).orderBy("begin").collect()
    return tuple(_lateness(moment(row["begin"]), row) for row in found)


def _lateness(name: str, row: Any) -> Lateness:
    p50, p90, p99 = row["ranks"]
    return Lateness(name, row["messages"], row["early"], p50, p90, p99, row["longest"])


def slowest(late: DataFrame, top: int) -> tuple[LateMessage, ...]:
    """The messages that came latest, if any came late."""
    from pyspark.sql import functions as f

    found = late.where("lateMs > 0").orderBy(f.desc("lateMs"), "dueMs", "deliveredId").limit(top)
    names = ("topic", "level", "uniqKey", "deliveredId", "dueMs", "lateMs")
    return tuple(LateMessage(*row) for row in found.select(*names).collect())


# Waiting --------------------------------------------------------------------------------------------


def waiting_topics(waits: DataFrame, top: int) -> tuple[WaitingTopic, ...]:
    """What waits by topic, most messages first."""
    from pyspark.sql import functions as f

    found = waits.groupBy("topic").agg(f.count("*").alias("messages"), f.min("dueMs"), f.max("dueMs"))
    return tuple(WaitingTopic(*row) for row in found.orderBy(f.desc("messages"), "topic").limit(top).collect())


def due(waits: DataFrame, topics: Sequence[str], at_ms: int, days: int) -> tuple[DueStretch, ...]:
    """What is due by hour in the next day, then by day, by topic for those named and together for all others."""
    from pyspark.sql import functions as f

    first_ms = at_ms - at_ms % HOUR_MS
    hour = f.floor((f.col("dueMs") - first_ms) / HOUR_MS)
    day = f.floor((f.col("dueMs") - first_ms) / DAY_MS)
    stretch = (
        f.when(f.col("dueMs") <= at_ms, -1)
        .when(hour < _HOURS, hour)
        .when(day < days, _HOURS - 1 + day)
        .otherwise(_HOURS - 1 + days)
    )
    topic = f.when(f.col("topic").isin(list(topics)), f.col("topic")).otherwise("")
    found = waits.groupBy(stretch.alias("stretch"), topic.alias("topic")).count().collect()
    order = {name: place for place, name in enumerate(topics)}
    found.sort(key=lambda row: (row["stretch"], order.get(row["topic"], len(order))))
    return tuple(DueStretch(row["topic"], *_ends(row["stretch"], first_ms, days), row["count"]) for row in found)


def _ends(stretch: int, first_ms: int, days: int) -> tuple[int | None, int | None]:
    if stretch < 0:
        return None, None
    if stretch < _HOURS:
        return first_ms + stretch * HOUR_MS, first_ms + (stretch + 1) * HOUR_MS
    begin_ms = first_ms + (stretch - _HOURS + 1) * DAY_MS
    return begin_ms, begin_ms + DAY_MS if stretch < _HOURS - 1 + days else None


# Stuck ----------------------------------------------------------------------------------------------


def stuck_reasons(stuck: DataFrame, top: int) -> tuple[StuckReason, ...]:
    """How many are stuck by reason, broker and topic, most first."""
    from pyspark.sql import functions as f

    found = stuck.groupBy("reason", "broker", "topic").agg(f.count("*").alias("messages"))
    rows = found.orderBy(f.desc("messages"), "reason", "broker", "topic").limit(top).collect()
    return tuple(StuckReason(Reason(row["reason"]), row["broker"], row["topic"], row["messages"]) for row in rows)


def stuck_messages(stuck: DataFrame, top: int) -> tuple[StuckMessage, ...]:
    """The stuck messages that were due first."""
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
