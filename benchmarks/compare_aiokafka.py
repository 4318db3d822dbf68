"""Measures our client beside aiokafka 0.14, in turn: ours against CometMQ, aiokafka against Apache Kafka 3.9.1.

    python benchmarks/compare_aiokafka.py [--rounds 5] [--seconds 3] [--fill 300000]

Both clients are one Python process with uvloop; topics have eight queues, bodies 128 bytes. Each message is
acknowledged once the only broker has it (`acks="all"`; CometMQ with ASYNC_FLUSH), as neither flushes before. The
cases, and where they differ:

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
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import machine  # noqa: E402
from benchmarks.kafka.broker import KafkaBroker  # noqa: E402
from tests.interop import builds, systems  # noqa: E402
from tests.interop.systems import System  # noqa: E402

HERE: Final = Path(__file__).parent
CASES: Final = ("send-64", "send-batch", "send-list", "loop-single", "poll")
OURS, THEIRS = "CometMQ", "aiokafka"
RUN_TIMEOUT_S: Final = 300.0


def aiokafka_python() -> Path:
    """The Python of an environment that has aiokafka."""
    requirements = HERE / "kafka" / "requirements.txt"

    def make(target: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
        install = [str(target / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
        subprocess.run(install, check=True)

    return builds.built(builds.Build("aiokafka", (requirements, Path(sys.executable)), make)) / "bin" / "python"


def run(command: Sequence[str]) -> dict[str, Any]:
    """The figures that a benchmark program printed of its case."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"case"')]
    if not lines:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def main() -> None:
    """Both clients in turn, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each sending case")
    parser.add_argument("--fill", type=int, default=300_000, help="messages that the consuming cases drain")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    cases = options.cases or CASES
    load_before, before = os.getloadavg()[0], machine.look_before()
    figures: dict[tuple[str, str], list[dict[str, Any]]] = {}
    directory = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
    try:
        with ExitStack() as servers:
            names = servers.enter_context(systems.start_namesrv(System.COMETMQ, directory / "namesrv"))
            servers.enter_context(systems.start_broker(System.COMETMQ, directory / "broker", names.address, {}))
            kafka = KafkaBroker(directory / "kafka")
            servers.callback(kafka.stop)
            programs = {
                OURS: [sys.executable, str(HERE / "client.py"), "--namesrv", names.address],
                THEIRS: [str(aiokafka_python()), str(HERE / "kafka" / "client.py"), "--address", kafka.address],
            }
            more = ["--seconds", str(options.seconds), "--fill", str(options.fill)]
            for number in range(options.rounds):
                for case in cases:
                    for client in (OURS, THEIRS) if number % 2 else (THEIRS, OURS):
                        result = run([*programs[client], *more, case])
                        figures.setdefault((client, case), []).append(result)
                        print(json.dumps({"round": number + 1, "client": client} | result), flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"\n{options.rounds} rounds of {options.seconds:g} s; before them load {load_before:.2f}, {before}.")
    print("\n| case | aiokafka | CometMQ's client | ratio | CPU a message, aiokafka / CometMQ |\n|---|---|---|---|---|")
    for case in cases:
        rate, cpu = (
            {client: statistics.median(result[key] for result in figures[client, case]) for client in (OURS, THEIRS)}
            for key in ("per_second", "processor_us_per_message")
        )
        print(
            f"| {case} | {rate[THEIRS]:,.0f}/s | {rate[OURS]:,.0f}/s | {rate[OURS] / rate[THEIRS]:.2f} × "
            f"| {cpu[THEIRS]:.1f} / {cpu[OURS]:.1f} µs |"
        )


if __name__ == "__main__":
    main()
