"""Runs a load of one kind on a topic, and finally counts the stored messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from cometmq.bench.consume import consume
from cometmq.bench.plan import BenchError, Look, Plan, Progress
from cometmq.bench.produce import produce
from cometmq.bench.roundtrip import round_trip
from cometmq.bench.topic import bench_topic, stored
from cometmq.client.admin import Admin
from cometmq.clock import SYSTEM_CLOCK

LOOK_SECONDS: Final = 0.25
FILL_COUNT: Final = 200_000
"""Default number of messages in a topic that is created for reading."""
FILL_BATCH: Final = 32


class Kind(StrEnum):
    """Kinds of loads."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ROUND_TRIP = "roundtrip"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a load, and any errors."""

    result: dict[str, Any]
    progress: Progress
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The topic of a load."""

    named: str | None
    queues: int = 8
    into_existing: bool = False


async def run(kind: Kind, plan: Plan, target: Target, namesrv: str, look: Look) -> Outcome:
    """Run a load, and call ``look`` at intervals.

    :raises BenchError: the load cannot run.
    :raises CometMQError: the cluster does not respond, or rejects a request.
    """
    async with Admin(namesrv) as admin:
        if kind is Kind.CONSUME and target.named is not None:
            return await _consumed(replace(plan, topic=target.named), namesrv, look)
        made = bench_topic(admin, target.named, queues=target.queues, into_existing=target.into_existing)
        async with made as topic:
            plan = replace(plan, topic=topic)
            if kind is Kind.PRODUCE:
                return await _produced(admin, plan, target, namesrv, look)
            if kind is Kind.CONSUME:
                await _fill(plan, namesrv)
                return await _consumed(plan, namesrv, look)
            return await _went_round(plan, target, namesrv, look)


async def _produced(admin: Admin, plan: Plan, target: Target, namesrv: str, look: Look) -> Outcome:
    before = await stored(admin, plan.topic)
    progress = Progress()
    async with _looking(progress, look):
        await produce(plan, namesrv, progress)
    there = await stored(admin, plan.topic) - before
    wrong = list(_failures(progress))
    if there < progress.sent:
        wrong.append(f"{progress.sent:,} messages were acknowledged, and {there:,} are stored")
    elif there > progress.sent + progress.failed and not target.into_existing:
        wrong.append(f"{progress.sent:,} messages were acknowledged, and {there:,} are stored: some were sent twice")
    return Outcome({"topic": plan.topic, **progress.result(progress.sent), "stored": there}, progress, tuple(wrong))


async def _consumed(plan: Plan, namesrv: str, look: Look) -> Outcome:
    progress = Progress()
    async with _looking(progress, look):
        wanted = await consume(plan, namesrv, progress)
    wrong: tuple[str, ...] = ()
    if progress.received < wanted and plan.seconds is None:
        wrong = (f"{wanted:,} messages are there, and {progress.received:,} were read",)
    return Outcome({"topic": plan.topic, **progress.result(progress.received)}, progress, wrong)


async def _went_round(plan: Plan, target: Target, namesrv: str, look: Look) -> Outcome:
    progress = Progress()
    async with _looking(progress, look):
        counts = await round_trip(plan, namesrv, progress)
    wrong = list(_failures(progress))
    if counts["lost"]:
        wrong.append(f"{counts['lost']:,} of {progress.sent:,} acknowledged messages did not arrive")
    if counts["foreign"] and not target.into_existing:
        wrong.append(f"{counts['foreign']:,} messages of others came")
    return Outcome({"topic": plan.topic, **progress.result(progress.received), **counts}, progress, tuple(wrong))


async def _fill(plan: Plan, namesrv: str) -> None:
    """Fill a topic that is created for reading.

    :raises BenchError: a message could not be sent.
    """
    filling = replace(plan, count=plan.count or FILL_COUNT, seconds=None, rate=None, batch=FILL_BATCH, in_flight=8)
    progress = Progress()
    await produce(filling, namesrv, progress)
    if progress.failed:
        raise BenchError(f"the topic could not be filled: {progress.first_failure}")


def _failures(progress: Progress) -> list[str]:
    if not progress.failed:
        return []
    return [f"{progress.failed:,} messages were not sent, the first because {progress.first_failure}"]


@asynccontextmanager
async def _looking(progress: Progress, look: Look) -> AsyncIterator[None]:
    """Call ``look`` at intervals while the block runs."""

    async def again() -> None:
        while True:
            await SYSTEM_CLOCK.sleep(LOOK_SECONDS)
            look(progress)

    task = asyncio.create_task(again())
    try:
        yield
    finally:
        task.cancel()
