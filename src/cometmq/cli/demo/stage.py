"""Runs the demo: starts the cluster and the workers, kills the broker, lets Spark run, collects the ledgers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cometmq.cli.demo import consumer, lake, producer
from cometmq.cli.demo.lake import Lake
from cometmq.cli.demo.ledger import Rows, load, read_archive
from cometmq.cli.demo.orders import COPY, GROUP, TOPIC
from cometmq.cli.demo.process import Worker
from cometmq.client.admin import Admin
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.testing.processes import ProcessCluster

T = TypeVar("T")

QUEUES: Final = 8
DOWN_SECONDS: Final = 1.0
"""How long the broker stays away after it was killed."""
KILL_AT: Final = 0.45
"""Share of the stream after which it is killed."""
COMMITS: Final = 3
"""Commits of the archive and steps of the replay, so that their progress shows."""
CATCH_UP_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.1
STORE_KEYS: Final = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}


@dataclass(frozen=True)
class Plan:
    """How big the demo is."""

    messages: int
    producers: int
    consumers: int
    per_second: float
    directory: Path

    def share(self, number: int) -> int:
        """Messages of one producer."""
        return self.messages // self.producers + (number < self.messages % self.producers)


@dataclass
class Progress:
    """How far the demo is, for whoever watches."""

    act: str = "starting"
    acked: int = 0
    consumed: int = 0
    archived: int = 0
    replayed: int = 0
    retries: int = 0


@dataclass
class Observed:
    """What came out."""

    acked: Rows
    consumed: Rows
    archived: Rows
    stored: dict[int, int]
    copied: dict[int, int]
    """Records by queue of the topic that the archive was replayed to, as the broker tells it."""
    lake: Lake
    began_ms: int
    killed_ms: int
    back_ms: int
    recovery_seconds: float
    retries: int
    consumed_by: list[int]
    seconds: dict[str, float] = field(default_factory=dict)


class Stage:
    """One run of the demo; `watch` is called whenever its progress has changed."""

    def __init__(self, plan: Plan, watch: Callable[[Progress], None]) -> None:
        self.plan = plan
        self.progress = Progress()
        self._watch = watch
        self._work = plan.directory / "work"
        self._archive_to = plan.directory / "archive"
        self._seconds: dict[str, float] = {}
        self._producers: list[Worker] = []
        self._consumers: list[Worker] = []
        self._spark: Worker | None = None

    async def run(self) -> Observed:
        """Run all acts; processes that are left over at a failure are killed."""
        for left_over in (self._work, self._archive_to):
            shutil.rmtree(left_over, ignore_errors=True)
        self._work.mkdir(parents=True)
        cluster = ProcessCluster(data=self._work, broker_keys=STORE_KEYS)
        async with AsyncExitStack() as stack:
            stack.callback(cluster.kill)
            self._act("starting nameserver and broker")
            await self._timed("start", _in_thread(cluster.start))
            admin = await stack.enter_async_context(Admin(cluster.namesrv_address))
            for topic in (TOPIC, COPY):
                await admin.create_topic(topic, queues=QUEUES)
            stack.push_async_callback(self._kill_workers)
            return await self._play(cluster, admin)

    async def _play(self, cluster: ProcessCluster, admin: Admin) -> Observed:
        began_ms = SYSTEM_CLOCK.now_ms()
        await self._start_workers(cluster.namesrv_address)
        self._act("orders flow")
        stream = asyncio.create_task(self._timed("stream", self._all_finished(self._producers)))
        try:
            killed_ms, back_ms = await self._crash(cluster)
            self._act("orders flow again")
            await self._until(stream.done)
            await stream
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
        self._act("consumers catch up")
        await self._timed("catch up", self._caught_up(admin))
        for worker in self._consumers:
            worker.stop()
        await self._all_finished(self._consumers)
        await self._timed("spark", self._run_spark(cluster.namesrv_address))
        self._act("comparing")
        stored = await self._stored(admin, TOPIC)
        copied = await self._stored(admin, COPY)
        await _in_thread(cluster.stop)
        found = msgspec.json.decode((self._work / "lake.json").read_bytes(), type=Lake)
        return Observed(
            acked=load([worker.ledger for worker in self._producers]),
            consumed=load([worker.ledger for worker in self._consumers]),
            archived=await asyncio.to_thread(read_archive, self._archive_to),
            stored=stored,
            copied=copied,
            lake=found,
            began_ms=began_ms,
            killed_ms=killed_ms,
            back_ms=back_ms,
            recovery_seconds=self._seconds["recovery"],
            retries=self.progress.retries,
            consumed_by=[worker.told.done for worker in self._consumers],
            seconds=self._seconds,
        )

    @staticmethod
    async def _stored(admin: Admin, topic: str) -> dict[int, int]:
        """Records by queue, as the broker tells it."""
        table = (await admin.topic_stats(topic)).offset_table
        return {queue.queue_id: offsets.max_offset - offsets.min_offset for queue, offsets in table.items()}

    async def _crash(self, cluster: ProcessCluster) -> tuple[int, int]:
        """Kill the broker in the middle of the stream and start it again; return both times."""
        await self._until(self._is_in_the_middle)
        self._act("the broker is killed (SIGKILL)")
        killed_ms = SYSTEM_CLOCK.now_ms()
        await _in_thread(cluster.kill_broker, 0)
        await self._pause(DOWN_SECONDS)
        self._act("the broker starts again on its store")
        await self._timed("recovery", _in_thread(cluster.start_broker, 0))
        return killed_ms, SYSTEM_CLOCK.now_ms()

    def _is_in_the_middle(self) -> bool:
        """Whether much is sent, and every consumer has found the topic: of a broker that is down it would not."""
        begun = all(worker.is_at_work for worker in self._consumers)
        return begun and self.progress.acked >= KILL_AT * self.plan.messages

    async def _start_workers(self, namesrv: str) -> None:
        plan = self.plan
        for number in range(plan.consumers):
            ledger = self._work / f"consumer-{number}.npy"
            task = consumer.Task(namesrv, str(ledger))
            self._consumers.append(Worker(f"consumer {number}", consumer.__name__, task, ledger))
        for number in range(plan.producers):
            ledger = self._work / f"producer-{number}.npy"
            rate = plan.per_second / plan.producers
            share = producer.Task(namesrv, number, plan.producers, plan.share(number), rate, str(ledger))
            self._producers.append(Worker(f"producer {number}", producer.__name__, share, ledger))
        for worker in (*self._consumers, *self._producers):
            await worker.start()

    async def _run_spark(self, namesrv: str) -> None:
        """Let Spark archive, audit, replay and audit again, in a process of its own."""
        found = self._work / "lake.json"
        task = lake.Task(
            namesrv,
            archive=str(self._archive_to),
            pages=str(self.plan.directory),
            work=str(self._work),
            per_commit=self.plan.messages // COMMITS + 1_000,
            found=str(found),
        )
        spark = self._spark = Worker("Spark", lake.__name__, task, found)
        await spark.start()
        finished = asyncio.create_task(spark.finished())

        def is_over() -> bool:
            self.progress.act = spark.told.act or self.progress.act
            return finished.done()

        try:
            await self._until(is_over)
            await finished
        finally:
            finished.cancel()
            await asyncio.gather(finished, return_exceptions=True)

    async def _caught_up(self, admin: Admin) -> None:
        """Wait until the group has consumed and committed everything."""
        deadline = SYSTEM_CLOCK.monotonic() + CATCH_UP_SECONDS
        while (await admin.consume_progress(GROUP, TOPIC)).lag > 0:
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise CometMQError(f"the consumers did not catch up within {CATCH_UP_SECONDS:g} s")
            await self._pause(LOOK_SECONDS)

    async def _all_finished(self, workers: list[Worker]) -> None:
        await asyncio.gather(*(worker.finished() for worker in workers))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            self._changed()
            if condition():
                return
            for worker in (*self._producers, *self._consumers):
                worker.demand_alive()
            await SYSTEM_CLOCK.sleep(LOOK_SECONDS)

    async def _pause(self, seconds: float) -> None:
        end = SYSTEM_CLOCK.monotonic() + seconds
        await self._until(lambda: SYSTEM_CLOCK.monotonic() >= end)

    async def _timed(self, what: str, work: Awaitable[T]) -> T:
        began = SYSTEM_CLOCK.monotonic()
        try:
            return await work
        finally:
            self._seconds[what] = SYSTEM_CLOCK.monotonic() - began

    async def _kill_workers(self) -> None:
        workers = [*self._producers, *self._consumers, *filter(None, (self._spark,))]
        for worker in workers:
            worker.kill()
        await asyncio.gather(*(worker.gone() for worker in workers), return_exceptions=True)

    def _act(self, act: str) -> None:
        self.progress.act = act
        self._changed()

    def _changed(self) -> None:
        progress = self.progress
        progress.acked = sum(worker.told.done for worker in self._producers)
        progress.consumed = sum(worker.told.done for worker in self._consumers)
        progress.retries = sum(worker.told.retries for worker in self._producers)
        if self._spark is not None:
            progress.archived, progress.replayed = self._spark.told.archived, self._spark.told.replayed
        self._watch(progress)


async def _in_thread(work: Callable[..., None], *arguments: object) -> None:
    """Do what waits for processes; who is cancelled meanwhile waits too, so that none starts after all were killed."""
    under_way = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(under_way)
    finally:
        await asyncio.wait([under_way])
