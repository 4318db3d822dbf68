"""Measures our client beside another one, in turn.

    python -m benchmarks.clients aiokafka [--rounds 5] [--seconds 3] [--fill 300000]
    python -m benchmarks.clients cpp

`aiokafka` (0.14) has Apache Kafka 3.9.1 for its broker, `cpp` is RocketMQ's C++ client (`rocketmq==0.4.4`) at the
CometMQ broker that ours has. Each client is one Python process; topics have eight queues, bodies 128 bytes. A message
is acknowledged once the only broker has it (`acks="all"`; CometMQ with ASYNC_FLUSH), as neither flushes before. Where
the C++ client has no such case (many sends in flight), the ratio is to its nearest, which the table names.

* send-64: `send` in 64 tasks. aiokafka gathers what waits for a broker into one request for each partition; ours
  sends a request for each message, which has its own answer.
* send-batch: lists of 32, two in flight. aiokafka's lists are made by hand (`create_batch`, `send_batch`).
* send-list: 5,000 messages at once. aiokafka's futures are awaited together, and it makes the batches.
* loop-single: `async for message in consumer`, with commits at intervals.
* poll: lists of up to 1,024 messages (`getmany`, `poll`).

Prints one JSON line a figure, then a table of medians: rate, and processor time of the client's process. aiokafka
comes from PyPI into an environment of its own, Kafka's jars from Maven Central.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.clients.kafka_broker import KafkaBroker
from benchmarks.machine import look_before
from benchmarks.rounds import Figures, in_turn, medians, said, say, table
from benchmarks.servers import running
from tests.interop import builds
from tests.interop.systems import System

OURS: Final = "CometMQ"
AIOKAFKA: Final = {name: name for name in ("send-64", "send-batch", "send-list", "loop-single", "poll")}
CPP: Final = {
    "send-one-sync": "send-one-sync",
    "send-64": "send-one-sync",
    "send-many": "send-one-sync",
    "send-batch": "send-batch",
    "consume-single": "consume",
    "consume-batch": "consume",
}
PEERS: Final = {"aiokafka": AIOKAFKA, "cpp": CPP}
"""The case of the other client for each of ours."""
FILL: Final = {"aiokafka": 300_000, "cpp": 60_000}


def aiokafka_python() -> Path:
    """The Python of an environment that has aiokafka."""
    requirements = Path(__file__).with_name("requirements.txt")

    def make(target: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
        install = [str(target / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
        subprocess.run(install, check=True)

    return builds.built(builds.Build("aiokafka", (requirements, Path(sys.executable)), make)) / "bin" / "python"


@contextmanager
def programs(peer: str) -> Iterator[dict[str, list[str]]]:
    """The command of each client, at its running broker."""
    with running(System.COMETMQ) as deployment, tempfile.TemporaryDirectory(prefix="cometmq-bench-") as directory:
        ours = [sys.executable, "-m", "benchmarks.clients.cases", "--address", deployment.address]
        if peer == "cpp":
            python = str(builds.cpp_client() / "bin" / "python")
            yield {OURS: ours, peer: [python, "-m", "benchmarks.clients.cpp_cases", "--address", deployment.address]}
            return
        kafka = KafkaBroker(Path(directory) / "kafka")
        command = [str(aiokafka_python()), "-m", "benchmarks.clients.aiokafka_cases", "--address", kafka.address]
        try:
            yield {OURS: ours, peer: command}
        finally:
            kafka.stop()


def main() -> None:
    """Both clients in turn, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each sending case")
    parser.add_argument("--fill", type=int, help="messages that the consuming cases drain")
    options = parser.parse_args()
    peer, case_of = options.peer, PEERS[options.peer]
    more = ["--seconds", str(options.seconds), "--fill", str(options.fill or FILL[peer])]
    load_before, before = os.getloadavg()[0], look_before()
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with programs(peer) as commands, tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home}  # the C++ client keeps its log there
        for number, client in in_turn((peer, OURS), options.rounds):
            for case in dict.fromkeys(case_of if client == OURS else case_of.values()):
                found.setdefault((client, case), []).append(said([*commands[client], *more, case], **environment))
                say(round=number, client=client, **found[client, case][-1])
    print(f"\n{options.rounds} rounds of {options.seconds:g} s; before them load {load_before:.2f}, {before}.\n")
    heads = ("case", peer, f"{OURS}'s client", "ratio", f"CPU per message, {peer} / {OURS}")
    print(table(heads, *(_row(ours, theirs, peer, found) for ours, theirs in case_of.items())))


def _row(case: str, of_peer: str, peer: str, found: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    ours, theirs = (_rate_and_cpu(medians(found[key])) for key in ((OURS, case), (peer, of_peer)))
    named = "" if case == of_peer else f" ({of_peer})"
    rates = (f"{theirs[0]:,.0f}/s{named}", f"{ours[0]:,.0f}/s", f"{ours[0] / theirs[0]:.2f} ×")
    return [case, *rates, f"{theirs[1]:.1f} / {ours[1]:.1f} µs"]


def _rate_and_cpu(of: Figures) -> tuple[float, float]:
    return of["per_second"], of["processor_us_per_message"]


if __name__ == "__main__":
    main()
