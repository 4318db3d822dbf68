"""Run the demo: start cluster and workers, kill the broker, let Spark work, and collect the results."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from examples.demo import consumer, lake, producer
from examples.demo.lake import Lake
from examples.demo.orders import COPY, GROUP, TOPIC
from examples.demo.process import Process, Sent, Server, Worker

from cometmq.cli.servers.ports import why_unusable
from cometmq.client.admin import Admin
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.message.ports import FAST_PORT_DISTANCE, HA_PORT_DISTANCE

T = TypeVar("T")

HOST: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections."""
BESIDE: Final = (-FAST_PORT_DISTANCE, 0, HA_PORT_DISTANCE)
"""A broker uses two more ports, for clients with vipChannelEnabled and for slaves."""
QUEUES: Final = 8
DOWN_SECONDS: Final = 1.0
"""The killed broker is down for this long."""
KILL_AT: Final = 0.45
"""The broker is killed after this share of the stream."""
COMMITS: Final = 3
"""Commits of the archive and steps of the replay, so that their progress shows."""
CATCH_UP_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.1
STORE_KEYS: Final = {
    "brokerName": "broker-0",
    "brokerIP1": HOST,
    "bindAddress": HOST,
    "cleanFileForciblyEnable": "false",
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}


@dataclass(frozen=True)
class Plan:
    """The size of the demo."""

    messages: int
    producers: int
    consumers: int
    per_second: float
    directory: Path

    def share(self, number: int) -> int:
        """Return the messages of one producer."""
        return self.messages // self.producers + (number < self.messages % self.producers)


@dataclass
class Progress:
    """The progress of all processes."""

    act: str = "starting"
    acked: int = 0
    consumed: int = 0
    archived: int = 0
    replayed: int = 0
    retries: int = 0


class Sample(NamedTuple):
    """The counts at one moment, for the rates over time."""

    at_ms: int
    acked: int
    consumed: int


@dataclass
class Observed:
    """The results of all processes."""

    acked: dict[int, Sent]
    """Events acknowledged to the producers, by queue id."""
    consumed_by: list[int]
    """Deliveries to each consumer."""
    lake: Lake
    samples: list[Sample]
    killed_ms: int
    back_ms: int
    retries: int
    seconds: dict[str, float] = field(default_factory=dict)


class Stage:
    """One run of the demo; ``watch`` is called whenever its progress may have changed."""

    def __init__(self, plan: Plan, watch: Callable[[Progress], None]) -> None:
        self.plan = plan
        self.progress = Progress()
        self._watch = watch
        self._work = plan.directory / "work"
        self._archive_to = plan.directory / "archive"
        self._seconds: dict[str, float] = {}
        self._samples: list[Sample] = []
        self._servers: list[Server] = []
        self._producers: list[Worker] = []
        self._consumers: list[Worker] = []
        self._spark: Worker | None = None

    async def run(self) -> Observed:
        """Run all acts; a failure kills the processes that are left over."""
        for left_over in (self._work, self._archive_to):
            shutil.rmtree(left_over, ignore_errors=True)
        self._work.mkdir(parents=True)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._kill_all)
            self._act("starting nameserver and broker")
            namesrv, broker = await self._timed("start", self._start_servers())
            admin = await stack.enter_async_context(Admin(namesrv))
            for topic in (TOPIC, COPY):
                await admin.create_topic(topic, queues=QUEUES)
            return await self._play(namesrv, broker, admin)

    async def _play(self, namesrv: str, broker: Server, admin: Admin) -> Observed:
        await self._start_workers(namesrv)
        self._act("orders flow")
        stream = asyncio.create_task(self._timed("stream", self._all_finished(self._producers)))
        try:
            killed_ms, back_ms = await self._crash(broker)
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
        samples = self._samples[:]
        found = await self._timed("spark", self._run_spark(namesrv))
        for server in reversed(self._servers):
            server.stop()
            await server.finished()
        return Observed(
            acked=_added(worker.progress.queues for worker in self._producers),
            consumed_by=[worker.progress.done for worker in self._consumers],
            lake=found,
            samples=samples,
            killed_ms=killed_ms,
            back_ms=back_ms,
            retries=self.progress.retries,
            seconds=self._seconds,
        )

    async def _start_servers(self) -> tuple[str, Server]:
        """Start nameserver and broker; return the nameserver's address and the broker."""
        port, broker_port = _free_port(), _free_port()
        namesrv = f"{HOST}:{port}"
        kv_config = f"kvConfigPath={self._work / 'kvConfig.json'}"
        keys = {
            **STORE_KEYS,
            "namesrvAddr": namesrv,
            "listenPort": str(broker_port),
            "storePathRootDir": str(self._work / "broker-0"),
        }
        options = [text for key, value in keys.items() for text in ("-o", f"{key}={value}")]
        broker = Server("the broker", ("broker", *options), self._work / "broker.log")
        nameserver = ("namesrv", "-p", str(port), "--host", HOST, "-o", kv_config)
        self._servers = [Server("the nameserver", nameserver, self._work / "namesrv.log"), broker]
        for server in self._servers:
            await server.start()
        return namesrv, broker

    async def _crash(self, broker: Server) -> tuple[int, int]:
        """Kill the broker in the middle of the stream and start it again; return both times."""
        await self._until(self._is_in_the_middle)
        self._act("the broker is killed (SIGKILL)")
        killed_ms = SYSTEM_CLOCK.now_ms()
        await broker.kill()
        await self._pause(DOWN_SECONDS)
        self._act("the broker starts again on its store")
        await self._watched(self._timed("recovery", broker.start()))
        return killed_ms, SYSTEM_CLOCK.now_ms()

    def _is_in_the_middle(self) -> bool:
        """Return True when enough is sent and every consumer has found the topic, which needs the broker."""
        begun = all(worker.has_reported for worker in self._consumers)
        return begun and self.progress.acked >= KILL_AT * self.plan.messages

    async def _start_workers(self, namesrv: str) -> None:
        plan = self.plan
        for number in range(plan.consumers):
            log = self._work / f"consumer-{number}.log"
            self._consumers.append(Worker(f"consumer {number}", consumer.__name__, consumer.Task(namesrv), log))
        for number in range(plan.producers):
            log = self._work / f"producer-{number}.log"
            rate = plan.per_second / plan.producers
            share = producer.Task(namesrv, number, plan.producers, plan.share(number), rate)
            self._producers.append(Worker(f"producer {number}", producer.__name__, share, log))
        for worker in (*self._consumers, *self._producers):
            await worker.start()

    async def _run_spark(self, namesrv: str) -> Lake:
        """Let Spark archive, audit, replay and audit again, in a process of its own."""
        result = self._work / "lake.json"
        task = lake.Task(
            namesrv,
            archive=str(self._archive_to),
            pages=str(self.plan.directory),
            work=str(self._work),
            per_commit=self.plan.messages // COMMITS + 1_000,
            result=str(result),
        )
        self._spark = Worker("Spark", lake.__name__, task, self._work / "lake.log")
        await self._spark.start()
        await self._watched(self._spark.finished())
        return msgspec.json.decode(result.read_bytes(), type=Lake)

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
                worker.check()
            await SYSTEM_CLOCK.sleep(LOOK_SECONDS)

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work while the progress is watched."""
        task = asyncio.create_task(work)
        try:
            await self._until(task.done)
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _pause(self, seconds: float) -> None:
        end = SYSTEM_CLOCK.monotonic() + seconds
        await self._until(lambda: SYSTEM_CLOCK.monotonic() >= end)

    async def _timed(self, what: str, work: Awaitable[T]) -> T:
        began = SYSTEM_CLOCK.monotonic()
        try:
            return await work
        finally:
            self._seconds[what] = SYSTEM_CLOCK.monotonic() - began

    async def _kill_all(self) -> None:
        processes: list[Process] = [*self._producers, *self._consumers, *self._servers]
        if self._spark is not None:
            processes.append(self._spark)
        await asyncio.gather(*(process.kill() for process in processes), return_exceptions=True)

    def _act(self, act: str) -> None:
        self.progress.act = act
        self._changed()

    def _changed(self) -> None:
        progress = self.progress
        progress.acked = sum(worker.progress.done for worker in self._producers)
        progress.consumed = sum(worker.progress.done for worker in self._consumers)
        progress.retries = sum(worker.progress.retries for worker in self._producers)
        if self._spark is not None:
            spark = self._spark.progress
            progress.act = spark.act or progress.act
            progress.archived, progress.replayed = spark.archived, spark.replayed
        elif self._producers:
            self._samples.append(Sample(SYSTEM_CLOCK.now_ms(), progress.acked, progress.consumed))
        self._watch(progress)


def _free_port() -> int:
    """Return a port that is free, as are those that a broker uses beside it."""
    return next(
        port
        for port in random.sample(PORTS, len(PORTS))
        if not any(why_unusable(port + distance) for distance in BESIDE)
    )


def _added(parts: Iterable[dict[int, Sent]]) -> dict[int, Sent]:
    """Add the counts of several producers."""
    total: defaultdict[int, Sent] = defaultdict(Sent)
    for part in parts:
        for queue, sent in part.items():
            total[queue].events += sent.events
            total[queue].number_sum += sent.number_sum
    return dict(total)
