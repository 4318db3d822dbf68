"""What an audit brings to the driver of its frames: a row for each queue, curves of some hundred points, lateness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.spark.audit_frames import QUEUE, took
from cometmq.spark.audit_report import Lateness, Span
from cometmq.spark.queues import Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPANS: Final = 240
"""Points of the curves that come to the driver."""
_MINUTE_S: Final = 60


def counted(minutes: DataFrame, topic: str) -> dict[Queue, Any]:
    """What was found of each queue, in both parties."""
    from pyspark.sql import functions as f

    rows = minutes.groupBy(*QUEUE).agg(
        f.sum("stored").alias("stored"),
        f.sum("archived").alias("archived"),
        f.min("storedFirst").alias("storedFirst"),
        f.max("storedLast").alias("storedLast"),
        f.min("archivedFirst").alias("archivedFirst"),
        f.max("archivedLast").alias("archivedLast"),
    )
    return {Queue(topic, row["brokerName"], row["queueId"]): row for row in rows.collect()}


def spans(minutes: DataFrame) -> tuple[Span, ...]:
    """Counts over time, by when messages were stored."""
    from pyspark.sql import functions as f

    at = f.unix_timestamp("minute")
    edges = minutes.agg(f.min(at).alias("first"), f.max(at).alias("last")).collect()[0]
    if edges["first"] is None:
        return ()
    width = -(-(edges["last"] - edges["first"] + _MINUTE_S) // (SPANS * _MINUTE_S)) * _MINUTE_S
    sums = [f.sum(name) for name in ("stored", "archived", "consumed")]
    rows = minutes.groupBy(f.floor((at - edges["first"]) / width)).agg(*sums).collect()
    found = {number: counts for number, *counts in rows}
    return tuple(
        Span((edges["first"] + number * width) * 1000, *found.get(number, (0, 0, 0)))
        for number in range(max(found) + 1)
    )


def lateness(stored: DataFrame, archived: DataFrame | None) -> tuple[Lateness, ...]:
    """How long messages took to be stored, and to be archived."""
    ways = [("born → stored", stored, "bornTimestamp", "storeTimestamp")]
    if archived is not None:
        ways.append(("stored → archived", archived, "storeTimestamp", "archivedTimestamp"))
    found = []
    for way, frame, begin, end in ways:
        late = took(begin, end)
        row = frame.selectExpr(f"percentile_approx({late}, array(0.5, 0.99)) AS q", f"max({late}) AS m").first()
        assert row is not None
        if row["m"] is not None:
            found.append(Lateness(way, int(row["q"][0]), int(row["q"][1]), int(row["m"])))
    return tuple(found)
