"""One Spark task of the sink: rows in, messages out, and a commit message once every one is acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from cometmq.spark.sink.identity import TaskIdentity
from cometmq.spark.sink.options import Guarantee, SinkOptions
from cometmq.spark.sink.routes import Routes, WriteRoute

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.sink.guards import Guard


@dataclass(frozen=True)
class SinkCommit(WriterCommitMessage):
    """What one task delivered; every message was acknowledged."""

    messages: int
    bytes: int
    """Of bodies and properties."""
    requests: int
    repeated: int
    """Requests that were sent again."""
    passed_over: int = 0
    """Messages that an earlier attempt had stored."""


@dataclass(frozen=True)
class SinkPlan:
    """What the driver hands to every task of a write."""

    options: SinkOptions
    producer: str | None
    """Names the write of a batch; a stream's tasks find the id of their query themselves."""
    streaming: bool = False
    routes: dict[str, WriteRoute] = field(default_factory=dict)
    """Routes that were looked up when the write was planned."""


def write_rows(
    plan: SinkPlan, identity: TaskIdentity, batches: Iterable[pa.RecordBatch], *, attempt: int = 0
) -> SinkCommit:
    """Send the rows of one task; return when all are acknowledged.

    :param attempt: number of this attempt, from 0.
    :raises SinkError: a row cannot be sent, or a broker refuses or does not acknowledge messages.
    """
    from cometmq.spark.sink.delivery import Delivery
    from cometmq.spark.sink.encoding import encode_rows, parts_of
    from cometmq.spark.sink.placing import Placing

    guard = _guard(plan.options, identity, attempt)
    routes = Routes(plan.options, plan.routes, guard.settle)
    placing = Placing(plan.options, routes, identity.partition)
    delivery = Delivery(plan.options, routes, guard)
    row = 0
    try:
        for batch in batches:
            for part in parts_of(batch):
                for chunk in placing.chunks(encode_rows(part, row, identity, plan.options)):
                    delivery.submit(chunk)
                row += part.num_rows
        done = delivery.finish()
        guard.finish()
    except Exception:
        delivery.settle()
        raise
    finally:
        delivery.close()
    return SinkCommit(done.messages, done.bytes, done.requests, done.repeated, done.passed_over)


def _guard(options: SinkOptions, identity: TaskIdentity, attempt: int) -> Guard:
    from cometmq.spark.sink.effectively_once import EffectivelyOnce
    from cometmq.spark.sink.exactly_once import ExactlyOnce
    from cometmq.spark.sink.guards import AtLeastOnce

    if options.guarantee is Guarantee.EXACTLY_ONCE:
        return ExactlyOnce(options, identity)
    if options.guarantee is Guarantee.EFFECTIVELY_ONCE:
        return EffectivelyOnce(options, identity, attempt)
    return AtLeastOnce()


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """What the tasks of a write did, in one line."""
    commits = [message for message in messages if isinstance(message, SinkCommit)]
    repeated = sum(commit.repeated for commit in commits)
    passed_over = sum(commit.passed_over for commit in commits)
    return (
        f"{sum(commit.messages for commit in commits)} messages, {sum(commit.bytes for commit in commits)} bytes "
        f"in {sum(commit.requests for commit in commits)} requests of {len(commits)} tasks"
        + (f", {repeated} requests sent again" if repeated else "")
        + (f", {passed_over} messages were stored already" if passed_over else "")
    )
