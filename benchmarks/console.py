"""Measures sends to `cometmq serve` while ten people use its console, and while nobody does, in turn.

    python -m benchmarks.console [--rounds 4] [--seconds 6] [--people 10] [--pause 1]

One client sends 500 messages of 1 KB a second; each has its time from the call to the answer. Each person opens one of
ten pages, reads it for `pause` seconds on average, and opens the next; people are threads of another process. Prints a
JSON line for each run, and the medians: 50th and 99th percentile, and the broker's share of one processor.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.machine import cpu_seconds
from benchmarks.rounds import Figures, columns, percentiles, say

from cometmq.client import Message, Producer

PER_SECOND: Final = 500
WARM: Final = 200
TOPIC: Final = "orders"
PAGES: Final = (
    "/",
    "/topics",
    f"/topics/{TOPIC}",
    "/groups",
    f"/messages?topic={TOPIC}",
    "/brokers/broker-0/0",
    "/configuration",
    "/dead-letters",
    "/producers",
    f"/messages/{TOPIC}/broker-0/0/0",
)


def use_pages(address: str, people: int, pause: float) -> None:
    """Let people open pages until stdin ends, then print how many were opened, and how many of them in vain."""
    end = threading.Event()
    statuses: list[int] = []

    def person(seed: int) -> None:
        chance = random.Random(seed)
        connection = http.client.HTTPConnection(address, timeout=30)
        while not end.wait(chance.uniform(0, 2 * pause)):
            connection.request("GET", chance.choice(PAGES))
            with connection.getresponse() as answer:
                answer.read()
                statuses.append(answer.status)

    everybody = [threading.Thread(target=person, args=(seed,)) for seed in range(people)]
    for one in everybody:
        one.start()
    sys.stdin.read()
    end.set()
    for one in everybody:
        one.join()
    print(json.dumps({"pages": len(statuses), "refused": sum(status != 200 for status in statuses)}))


async def send(namesrv: str, seconds: float) -> list[float]:
    """Send at the rate; the milliseconds that each send took."""
    took: list[float] = []

    async def one(producer: Producer) -> None:
        began = time.perf_counter()
        await producer.send(Message(TOPIC, bytes(1_000)))
        took.append((time.perf_counter() - began) * 1000)

    async with Producer("senders", namesrv) as producer, asyncio.TaskGroup() as sends:
        for _ in range(WARM):
            await producer.send(Message(TOPIC, b"warm"))
        began = time.perf_counter()
        for number in range(int(seconds * PER_SECOND)):
            await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
            sends.create_task(one(producer))
    return took


@contextmanager
def serving() -> Iterator[tuple[int, str, str]]:
    """`cometmq serve`: its process id, its nameserver and the address of its console."""
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as data:
        command = [sys.executable, "-m", "cometmq", "serve", "--data", data, "--port", "0", "--namesrv-port", "0"]
        command += ["--console-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            try:
                assert server.stdout is not None
                text = ""
                while "Console at" not in text or "nameserver" not in text:
                    text += server.stdout.readline()
                threading.Thread(target=server.stdout.read, daemon=True).start()
                found = [
                    re.findall(words, text)[0] for words in (r"nameserver ([0-9.]+:\d+)", r"Console at http://(\S+)")
                ]
                yield server.pid, *found
            finally:
                server.terminate()


def measure(rounds: int, seconds: float, people: int) -> None:
    """Run everything, and print it."""
    found: dict[str, list[Figures]] = {}
    with serving() as (pid, namesrv, console):
        for number in range(2 * rounds):
            using = people if number % 4 in (1, 2) else 0
            command = (
                [sys.executable, "-m", "benchmarks.console", "--use", console, *sys.argv[1:]] if using else ["cat"]
            )
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as users:
                before, began = sum(cpu_seconds(pid)), time.monotonic()
                took_ms = asyncio.run(send(namesrv, seconds))
                busy = (sum(cpu_seconds(pid)) - before) / (time.monotonic() - began)
                opened = json.loads(users.communicate()[0] or "{}")
            figures = {**percentiles(took_ms), "broker's share of a processor, %": busy * 100}
            found.setdefault(f"{using} people", []).append(figures)
            say(people=using, **figures, **opened)
    print(f"\n{columns(found)}")


def main() -> None:
    """Measure, or be the people."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--people", type=int, default=10)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two pages of a person, on average")
    parser.add_argument("--use", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.use:
        use_pages(options.use, options.people, options.pause)
    else:
        measure(options.rounds, options.seconds, options.people)


if __name__ == "__main__":
    main()
