"""Measures one consumer of thousands of queues: its start, memory, processor time while idle, and latency.

    python -m benchmarks.many_queues [--queues 10000] [--system COMETMQ APACHE5] [--consumer simple celery]

The consumer and the servers are processes of their own. Messages go to random queues, one each 20 ms; the latency is
the time from the send until the consumer, or a task of a Celery worker, has the message.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, TextIO

from benchmarks.machine import cpu_seconds
from benchmarks.rounds import percentiles, say
from benchmarks.servers import running
from celery import Celery
from kombu import Queue
from tests.interop.systems import System

import cometmq.integrations.kombu  # noqa: F401
from cometmq.client import Admin, ClientInstance, Message, Producer, SimpleConsumer

AT_ONCE: Final = 32
PAUSE_S: Final = 0.02
START_S: Final = 900.0

NAMESRV: Final = os.environ.get("QUEUES_NAMESRV", "")
COUNT: Final = int(os.environ.get("QUEUES_COUNT", "0"))
DIARY: Final = os.environ.get("QUEUES_DIARY", "")


def names(count: int) -> list[str]:
    """The names of the queues, which are also their topics."""
    return [f"q{number}" for number in range(count)]


app = Celery("many_queues", broker=f"cometmq://{NAMESRV}" if NAMESRV else None)
app.conf.update(
    task_queues=[Queue(name, routing_key=name) for name in names(COUNT)],
    task_create_missing_queues=False,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=4,
)


@app.task(name="note")  # type: ignore[untyped-decorator]
def note(sent: float) -> None:
    """Write how long the task was on its way."""
    with Path(DIARY).open("a", encoding="ascii") as diary:
        diary.write(f"{time.time() - sent}\n")


async def consume(diary: TextIO) -> None:
    """Receive messages as a simple consumer, and write how long they were on their way."""
    async with SimpleConsumer("celery", dict.fromkeys(names(COUNT), "*"), NAMESRV) as consumer:
        print("ready.", flush=True)
        async for message in consumer:
            diary.write(f"{time.time() - float(message.body)}\n")
            await consumer.ack(message)


async def create(namesrv: str, count: int) -> None:
    """Create the topics of the queues, as Celery's are."""
    async with Admin(namesrv) as admin:
        todo = iter(names(count))

        async def some() -> None:
            for name in todo:
                await admin.create_topic(name, queues=10, message_type="PRIORITY", wait_s=0)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def send(namesrv: str, count: int, messages: int, kind: str) -> None:
    """Send messages to random queues."""
    if kind == "celery":
        for _ in range(messages):
            note.apply_async((time.time(),), queue=f"q{random.randrange(count)}")
            await asyncio.sleep(PAUSE_S)
        return
    instance = ClientInstance(namesrv)
    async with Producer("senders", instance=instance) as producer:
        for _ in range(messages):
            topic = f"q{random.randrange(count)}"
            await instance.routes.get(topic)
            await producer.send(Message(topic, str(time.time()).encode()))
            await asyncio.sleep(PAUSE_S)


def resident_mb(pid: int) -> float:
    """The resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def memory(deployment: Any) -> dict[str, float]:
    """The resident memory of the servers."""
    pids = {"broker": deployment.broker.pid, "namesrv": deployment.namesrv.pid}
    return {f"{name}_mb": resident_mb(pid) for name, pid in pids.items()}


def measure(system: System, kind: str, given: argparse.Namespace) -> None:
    """One consumer at fresh servers."""
    with running(system) as deployment, tempfile.TemporaryDirectory() as directory:
        namesrv, line = deployment.namesrv.address, {"system": system.name, "consumer": kind, "queues": given.queues}
        diary, log = Path(directory, "diary"), Path(directory, "log")
        diary.touch()
        say(**line, **memory(deployment))
        began = time.monotonic()
        asyncio.run(create(namesrv, given.queues))
        say(**line, created_s=time.monotonic() - began, **memory(deployment))
        environment = {"QUEUES_NAMESRV": namesrv, "QUEUES_COUNT": str(given.queues), "QUEUES_DIARY": str(diary)}
        os.environ.update(environment)
        command = [sys.executable, "-m", "benchmarks.many_queues", "--consume"]
        if kind == "celery":
            options = ("worker", "-P", "threads", "-c", "4", "-l", "info")
            command = [sys.executable, "-m", "celery", "-A", "benchmarks.many_queues", *options]
        began = time.monotonic()
        with log.open("wb") as output:
            worker = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            while "ready." not in log.read_text() and time.monotonic() < began + START_S:
                if worker.poll() is not None:
                    raise RuntimeError(log.read_text()[-3000:])
                time.sleep(0.05)
            started_s = time.monotonic() - began
            say(**line, started_s=started_s, started_cpu_s=sum(cpu_seconds(worker.pid)))
            time.sleep(given.settle)
            pids = {"worker": worker.pid, "broker": deployment.broker.pid, "namesrv": deployment.namesrv.pid}
            before = {name: sum(cpu_seconds(pid)) for name, pid in pids.items()}
            time.sleep(given.idle)
            shares = {f"{name}_idle": (sum(cpu_seconds(pid)) - before[name]) / given.idle for name, pid in pids.items()}
            say(**line, **shares, worker_mb=resident_mb(worker.pid), **memory(deployment))
            send_command = [sys.executable, "-m", "benchmarks.many_queues", "--send", kind, str(given.messages)]
            subprocess.run(send_command, check=True)
            time.sleep(2)
            latencies = [1000 * float(text) for text in diary.read_text(encoding="ascii").split()]
            say(**line, messages=len(latencies), **percentiles(latencies))
            if given.log:
                print(log.read_text()[-given.log :])
        finally:
            worker.terminate()
            worker.wait(60)


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--system", nargs="+", default=["COMETMQ"], choices=[system.name for system in System])
    parser.add_argument("--consumer", nargs="+", default=["simple", "celery"], choices=["simple", "celery"])
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--settle", type=float, default=40.0, help="seconds after the start")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds for the processor time while idle")
    parser.add_argument("--log", type=int, default=0, help="number of characters of the worker's log to print")
    parser.add_argument("--consume", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--send", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.consume:
        with Path(DIARY).open("a", encoding="ascii", buffering=1) as diary:
            asyncio.run(consume(diary))
    elif given.send:
        kind, messages = given.send
        asyncio.run(send(NAMESRV, COUNT, int(messages), kind))
    else:
        for name in given.system:
            for kind in given.consumer:
                measure(System[name], kind, given)


if __name__ == "__main__":
    main()
