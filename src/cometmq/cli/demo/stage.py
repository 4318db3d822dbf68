"""Runs the demo: starts the cluster and the workers, kills the broker, archives, collects the ledgers."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from cometmq.cli.demo import consumer, producer
from cometmq.cli.demo.ledger import Rows, load, read_archive
from cometmq.cli.demo.orders import GROUP, TOPIC
from cometmq.cli.demo.worker import Told
from cometmq.client.admin import Admin
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.spark.archive_log import ArchiveLog
from cometmq.testing.processes import ProcessCluster

T = TypeVar("T")

QUEUES: Final = 8
DOWN_SECONDS: Final = 1.0
"""How long the broker stays away after it was killed."""
KILL_AT: Final = 0.45
"""Share of the stream after which it is killed."""
ARCHIVE_COMMITS: Final = 3
"""Commits of the archive, so that its progress shows."""
CATCH_UP_SECONDS: Final = 60.0
WATCH_SECONDS: Final = 0.5
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
    retries: int = 0


@dataclass
class Observed:
    """What came out."""

    acked: Rows
    consumed: Rows
    archived: Rows
    stored: dict[int, int]
    began_ms: int
    killed_ms: int
    back_ms: int
    recovery_seconds: float
    retries: int
    consumed_by: list[int]
    archive: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)


class Worker:
    """One producer or consumer process."""

    def __init__(self, name: str, module: str, task: msgspec.Struct, ledger: Path) -> None:
        self.name = name
        self.ledger = ledger
        self.told = Told(0)
        self._module = module
        self._task = task
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._errors = ledger.with_suffix(".log")

    async def start(self) -> None:
        """Start the process and listen to what it tells."""
        with self._errors.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                msgspec.json.encode(self._task).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        self._reader = asyncio.create_task(self._read(self._process))

    async def finished(self) -> None:
        """Wait until it has ended.

        :raises CometMQError: it ended with an error, or without its ledger.
        """
        assert self._process is not None
        assert self._reader is not None
        await self._reader
        if await self._process.wait() != 0 or not self.ledger.exists():
            raise self._failure()

    def demand_alive(self) -> None:
        """Demand that it has not failed.

        :raises CometMQError: it has.
        """
        if self._process is not None and self._process.returncode not in (None, 0):
            raise self._failure()

    def _failure(self) -> CometMQError:
        said = self._errors.read_text(errors="replace").strip().splitlines()
        words = said[-1].removeprefix("cometmq: ") if said else "it said nothing"
        return CometMQError(f"{self.name} failed: {words}", next_step=f"{self._errors} has all it said")

    def stop(self) -> None:
        """Ask it to stop."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def gone(self) -> None:
        """Wait until a killed process is gone and everything about it is closed."""
        if self._process is not None:
            await self._process.wait()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self.told = msgspec.json.decode(line, type=Told)


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

    async def run(self) -> Observed:
        """Run all acts; processes that are left over at a failure are killed."""
        for left_over in (self._work, self._archive_to):
            shutil.rmtree(left_over, ignore_errors=True)
        self._work.mkdir(parents=True)
        cluster = ProcessCluster(data=self._work, broker_keys=STORE_KEYS)
        async with AsyncExitStack() as stack:
            stack.callback(cluster.kill)
            self._act("starting nameserver and broker")
            await self._timed("start", asyncio.to_thread(cluster.start))
            admin = await stack.enter_async_context(Admin(cluster.namesrv_address))
            await admin.create_topic(TOPIC, queues=QUEUES)
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
        self._act("consumers catch up, Spark archives")
        archive, _ = await asyncio.gather(
            self._timed("archive", self._archive(cluster.namesrv_address)),
            self._timed("catch up", self._caught_up(admin)),
        )
        for worker in self._consumers:
            worker.stop()
        await self._all_finished(self._consumers)
        self._act("comparing")
        stored = (await admin.topic_stats(TOPIC)).offset_table
        await asyncio.to_thread(cluster.stop)
        acked = load([worker.ledger for worker in self._producers])
        return Observed(
            acked=acked,
            consumed=load([worker.ledger for worker in self._consumers]),
            archived=await asyncio.to_thread(read_archive, self._archive_to),
            stored={queue.queue_id: offsets.max_offset - offsets.min_offset for queue, offsets in stored.items()},
            began_ms=began_ms,
            killed_ms=killed_ms,
            back_ms=back_ms,
            recovery_seconds=self._seconds["recovery"],
            retries=self.progress.retries,
            consumed_by=[worker.told.done for worker in self._consumers],
            archive=archive,
            seconds=self._seconds,
        )

    async def _crash(self, cluster: ProcessCluster) -> tuple[int, int]:
        """Kill the broker in the middle of the stream and start it again; return both times."""
        await self._until(lambda: self.progress.acked >= KILL_AT * self.plan.messages)
        self._act("the broker is killed (SIGKILL)")
        killed_ms = SYSTEM_CLOCK.now_ms()
        await asyncio.to_thread(cluster.kill_broker, 0)
        await self._pause(DOWN_SECONDS)
        self._act("the broker starts again on its store")
        await self._timed("recovery", asyncio.to_thread(cluster.start_broker, 0))
        return killed_ms, SYSTEM_CLOCK.now_ms()

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

    async def _archive(self, namesrv: str) -> dict[str, Any]:
        """Archive the topic by the command that users have, and return its report."""
        command = (
            *("pipeline", "archive", "--namesrv", namesrv, "--topic", TOPIC, "-o", "json"),
            *("--to", str(self._archive_to), "--checkpoint", str(self._work / "checkpoint")),
            *("--max-offsets", str(self.plan.messages // ARCHIVE_COMMITS + 1_000)),
        )
        log = self._work / "archive.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cometmq", *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        watching = asyncio.create_task(self._watch_archive())
        try:
            out, _ = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        finally:
            watching.cancel()
        if process.returncode != 0:
            said = log.read_text(errors="replace").strip().splitlines()
            words = said[-1].removeprefix("cometmq: ") if said else "it said nothing"
            raise CometMQError(f"the archive job failed: {words}", next_step=f"{log} has all it said")
        report: dict[str, Any] = json.loads(out)
        self.progress.archived = report["total_rows"]
        self._changed()
        return report

    async def _watch_archive(self) -> None:
        """Show what the archive has committed."""
        log = ArchiveLog(self._archive_to)
        while True:
            self.progress.archived = sum(queue.rows for queue in log.queues())
            self._changed()
            await SYSTEM_CLOCK.sleep(WATCH_SECONDS)

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
        workers = (*self._producers, *self._consumers)
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
        self._watch(progress)
