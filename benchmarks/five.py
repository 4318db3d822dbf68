"""Measures the gRPC endpoint beside that of Apache RocketMQ 5.5.0, in turn, on this machine, with Apache's Java client.

    python benchmarks/five.py [--rounds 3] [--messages 30000]

Phases: sends with 64 in flight; eight SimpleConsumers that receive 32 and acknowledge each; the time from a send to
the listener of a PushConsumer at 500 messages a second. Each system runs alone, fresh, broker and endpoint in one
process (Apache: LOCAL mode, a heap of 1 GB), and each phase has a warm series before. Prints messages a second,
processor time of that process for a message, and times. At the end the memory of CometMQ's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.machine import Beside, CpuTimes  # noqa: E402
from benchmarks.process_cost import cpu_seconds  # noqa: E402
from tests.helpers.waiting import wait_for  # noqa: E402
from tests.interop import builds, probe, systems  # noqa: E402
from tests.interop.five.apache_endpoint import start_apache  # noqa: E402
from tests.interop.five.tables import make_group, make_topic  # noqa: E402
from tests.interop.systems import Server, System  # noqa: E402

from cometmq.remoting.client import RemotingClient  # noqa: E402
from cometmq.testing import free_port  # noqa: E402

HERE: Final = Path(__file__).with_name("five")
HEAP: Final = ("-Xms1g", "-Xmx1g")
PHASES: Final = ("send", "receive", "latency")
KEYS: Final = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "true"}


def _load_classes() -> tuple[Path, Path]:
    """The compiled load, and the client that it runs on."""
    client = builds.java_client_five("5.2.0")

    def make(target: Path) -> None:
        command = [builds.tool("javac"), "-cp", f"{client / 'lib'}/*", "-d", str(target), str(HERE / "Load.java")]
        subprocess.run(command, check=True)

    return builds.built(builds.Build("java-load-five", (HERE / "Load.java",), make)), client


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
                server, address = start_apache(directory / "broker", namesrv.address, KEYS, HEAP)
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


def _memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


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
                "rate": count / (now - began),
                "cpu_us": (cpu - before) / count * 1e6,
                "p50_ms": told["p50_us"] / 1000,
                "p99_ms": told["p99_us"] / 1000,
                "steal": Beside.between(machine, CpuTimes.now()).steal,
            }
        if load.wait() != 0 or set(found) != set(PHASES):
            raise RuntimeError(f"the load failed\n{server.logs()}")
        found["end"] = {"rss_mb": _memory_mb(server.pid)}
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=30_000, help="of a series")
    options = parser.parse_args()
    rounds: dict[System, list[dict[str, dict[str, float]]]] = {System.APACHE55: [], System.COMETMQ: []}
    for number in range(options.rounds):
        for system, done in rounds.items():
            done.append(one_round(system, options.messages))
            print(json.dumps({"round": number + 1, "system": system.value, **done[-1]}), flush=True)

    def median(system: System, phase: str, figure: str) -> float:
        return statistics.median(one[phase][figure] for one in rounds[system])

    for phase in PHASES:
        for figure in ("rate", "cpu_us", "p50_ms", "p99_ms"):
            apache, ours = (median(system, phase, figure) for system in rounds)
            print(f"{phase} {figure}: Apache {apache:,.1f}, CometMQ {ours:,.1f}: {ours / apache:.2f} ×")
    print(f"memory at the end: CometMQ {median(System.COMETMQ, 'end', 'rss_mb'):,.0f} MB")


if __name__ == "__main__":
    main()
