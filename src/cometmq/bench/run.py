"""Runs one kind of load on a topic, then counts the stored messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from cometmq.bench.consume import consume
from cometmq.bench.plan import BenchError, Plan, Progress, ShowProgress
from cometmq.bench.produce import produce
from cometmq.bench.roundtrip import round_trip
from cometmq.bench.topic import bench_topic, stored
from cometmq.client.admin import Admin
from cometmq.clock import SYSTEM_CLOCK

SHOW_SECONDS: Final = 0.25
FILL_COUNT: Final = 200_000
"""Default number of messages written to a topic that is created for reading."""
FILL_BATCH: Final = 32


class Kind(StrEnum):
    """The kinds of loads."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ROUND_TRIP = "roundtrip"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A load's result and any errors."""

    result: dict[str, Any]
    progress: Progress
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The topic on which a load runs."""

    topic: str | None
    queues: int = 8
    into_existing: bool = False


async def run(kind: Kind, plan: Plan, target: Target, namesrv: str, show: ShowProgress) -> Outcome:
    """Run a load, calling ``show`` at intervals.

    :raises BenchError: the load cannot run.
    :raises CometMQError: the cluster does not respond, or rejects a request.
    """
    async with Admin(namesrv) as admin:
        if kind is Kind.CONSUME and target.topic is not None:
            return await _run_consume(replace(plan, topic=target.topic), namesrv, show)
        temporary = bench_topic(admin, target.topic, queues=target.queues, into_existing=target.into_existing)
        async with temporary as topic:
            plan = replace(plan, topic=topic)
            if kind is Kind.PRODUCE:
                return await _run_produce(admin, plan, target, namesrv, show)
            if kind is Kind.CONSUME:
                await _fill(plan, namesrv)
                return await _run_consume(plan, namesrv, show)
            return await _run_round_trip(plan, target, namesrv, show)


async def _run_produce(admin: Admin, plan: Plan, target: Target, namesrv: str, show: ShowProgress) -> Outcome:
    before = await stored(admin, plan.topic)
    progress = Progress()
    async with _show_progress(progress, show):
        await produce(plan, namesrv, progress)
    stored_count = await stored(admin, plan.topic) - before
    errors = list(_failures(progress))
    if stored_count < progress.sent:
        errors.append(f"{progress.sent:,} messages were acknowledged, but {stored_count:,} are stored")
    elif stored_count > progress.sent + progress.failed and not target.into_existing:
        errors.append(
            f"{progress.sent:,} messages were acknowledged, but {stored_count:,} are stored: some were sent twice"
        )
    return Outcome(
        {"topic": plan.topic, **progress.result(progress.sent), "stored": stored_count}, progress, tuple(errors)
    )


async def _run_consume(plan: Plan, namesrv: str, show: ShowProgress) -> Outcome:
    progress = Progress()
    async with _show_progress(progress, show):
        wanted = await consume(plan, namesrv, progress)
    errors: tuple[str, ...] = ()
    if progress.received < wanted and plan.seconds is None:
        errors = (f"{wanted:,} messages are stored, but {progress.received:,} were read",)
    return Outcome({"topic": plan.topic, **progress.result(progress.received)}, progress, errors)


async def _run_round_trip(plan: Plan, target: Target, namesrv: str, show: ShowProgress) -> Outcome:
    progress = Progress()
    async with _show_progress(progress, show):
        counts = await round_trip(plan, namesrv, progress)
    errors = list(_failures(progress))
    if counts["lost"]:
        errors.append(f"{counts['lost']:,} of {progress.sent:,} acknowledged messages did not arrive")
    if counts["foreign"] and not target.into_existing:
        errors.append(f"{counts['foreign']:,} messages from other clients arrived")
    return Outcome({"topic": plan.topic, **progress.result(progress.received), **counts}, progress, tuple(errors))


async def _fill(plan: Plan, namesrv: str) -> None:
    """Fill a topic that was created for reading.

    :raises BenchError: a message could not be sent.
    """
    filling = replace(plan, count=plan.count or FILL_COUNT, seconds=None, rate=None, batch=FILL_BATCH, in_flight=8)
    progress = Progress()
    await produce(filling, namesrv, progress)
    if progress.failed:
        raise BenchError(f"cannot fill the topic: {progress.first_failure}")


def _failures(progress: Progress) -> list[str]:
    if not progress.failed:
        return []
    return [f"{progress.failed:,} messages were not sent; the first error is: {progress.first_failure}"]


@asynccontextmanager
async def _show_progress(progress: Progress, show: ShowProgress) -> AsyncIterator[None]:
    """Call ``show`` at intervals while the ``with`` block runs."""

    async def repeat() -> None:
        while True:
            await SYSTEM_CLOCK.sleep(SHOW_SECONDS)
            show(progress)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
