"""Measures the gRPC endpoint beside that of Apache RocketMQ 5.5.0, in turn, on this machine, with Apache's Java client.

    python -m benchmarks.five [--rounds 3] [--messages 30000]

Phases: sends with 64 in flight; eight SimpleConsumers that receive 32 and acknowledge each; the time from a send to
the listener of a PushConsumer at 500 messages a second. Each system runs alone, fresh, broker and endpoint in one
process (Apache: LOCAL mode, a heap of 1 GB), and each phase has a warm series before. Prints messages a second,
processor time of that process for a message, times, and its memory at the end of the phase.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import Beside, CpuTimes, anonymous_mb, cpu_seconds
from benchmarks.rounds import in_turn, medians, say, table
from benchmarks.servers import JAVA
from tests.helpers.waiting import wait_for
from tests.interop import builds, probe, systems
from tests.interop.five.apache_endpoint import start_apache
from tests.interop.five.tables import make_group, make_topic
from tests.interop.systems import Server, System

from cometmq.remoting.client import RemotingClient
from cometmq.testing import free_port

SOURCE: Final = Path(__file__).with_name("Load.java")
PHASES: Final = ("send", "receive", "latency")
SIDES: Final = (System.APACHE55, System.COMETMQ)
KEYS: Final = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "true"}


def _load_classes() -> tuple[Path, Path]:
    """The compiled load, and the client that it runs on."""
    client = builds.java_client_five("5.2.0")

    def make(target: Path) -> None:
        command = [builds.tool("javac"), "-cp", f"{client / 'lib'}/*", "-d", str(target), str(SOURCE)]
        subprocess.run(command, check=True)

    return builds.built(builds.Build("java-load-five", (SOURCE,), make)), client


@contextmanager
def _endpoint(system: System) -> Iterator[tuple[Server, str]]:
    """A fresh nameserver and broker with an endpoint; the broker's process and the endpoint's address."""
    with tempfile.TemporaryDirectory(prefix="bench-five-") as name:
        directory = Path(name)
        with systems.start_namesrv(system, directory / "namesrv") as namesrv:
            if system is System.COMETMQ:
                address = f"127.0.0.1:{free_port()}"
                keys = {**KEYS, "grpcServerPort": address.rpartition(":")[2]}
                server = systems.start_broker(system, directory / "broker", namesrv.address, keys)
            else:
                server, address = start_apache(directory / "broker", namesrv.address, KEYS, JAVA)
            with server:
                wait_for(lambda: probe.port_open(address), "the endpoint answers", 60)
                asyncio.run(_prepare(server.address))
                yield server, address


async def _prepare(broker: str) -> None:
    """Make topics and groups: Apache's endpoint makes none."""
    async with RemotingClient() as client:
        for topic in ("Load", "Latency"):
            await make_topic(client, broker, topic, "NORMAL", queues=8)
        for group in ("Receivers", "Listeners"):
            await make_group(client, broker, group)


def one_round(system: System, messages: int) -> dict[str, dict[str, float]]:
    """Run the load at a fresh system; the figures of each phase."""
    classes, client = _load_classes()
    found: dict[str, dict[str, float]] = {}
    with _endpoint(system) as (server, address):
        command = [builds.java(), "-Xmx256m", "-cp", f"{classes}:{client / 'lib'}/*", "Load", address, str(messages)]
        load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=server.directory)
        assert load.stdout is not None
        began, before, machine = 0.0, 0.0, CpuTimes.now()
        for line in load.stdout:
            if not line.startswith("{"):
                continue
            told: dict[str, Any] = json.loads(line)
            now = time.monotonic()
            cpu = sum(cpu_seconds(server.pid))
            if "messages" not in told:
                began, before, machine = now, cpu, CpuTimes.now()
                continue
            count = told["messages"]
            found[told["phase"]] = {
                "messages/s": count / (now - began),
                "CPU per message, µs": (cpu - before) / count * 1e6,
                "p50, ms": told["p50_us"] / 1000,
                "p99, ms": told["p99_us"] / 1000,
                "stolen": Beside.between(machine, CpuTimes.now()).steal,
                "anonymous memory, MB": anonymous_mb(server.pid),
            }
        if load.wait() != 0 or set(found) != set(PHASES):
            raise RuntimeError(f"the load failed\n{server.logs()}")
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=30_000, help="of a series")
    options = parser.parse_args()
    found: dict[tuple[str, System], list[dict[str, float]]] = {}
    for number, system in in_turn(SIDES, options.rounds):
        for phase, figures in one_round(system, options.messages).items():
            found.setdefault((phase, system), []).append(figures)
            say(round=number, system=system.value, phase=phase, **figures)
    rows = []
    for phase in PHASES:
        apache, ours = (medians(found[phase, system]) for system in SIDES)
        rows += [[f"{phase}: {name}", f"{apache[name]:,.1f}", f"{ours[name]:,.1f}"] for name in ours]
    print("\n" + table(("", "Apache 5.5.0", "CometMQ"), *rows))


if __name__ == "__main__":
    main()
