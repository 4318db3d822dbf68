"""Measures the gRPC endpoint beside that of Apache RocketMQ 5.5.0, in turn, on this machine, with Apache's Java client.

    python -m benchmarks.five [--rounds 3] [--messages 30000]

Phases: sends with 64 in flight; eight SimpleConsumers that receive 32 and acknowledge each; the time from a send to
the listener of a PushConsumer at 500 messages a second. Each system runs alone, fresh, broker and endpoint in one
process (Apache: LOCAL mode, a heap of 1 GB), and each phase has a warm series before. Prints messages a second,
processor time of that process for a message, times, and its memory at the end of the phase.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.five.endpoints import SIDES, endpoint
from benchmarks.machine import Beside, CpuTimes, anonymous_mb, cpu_seconds
from benchmarks.rounds import in_turn, medians, say, table
from tests.interop import builds
from tests.interop.systems import System

SOURCE: Final = Path(__file__).with_name("Load.java")
PHASES: Final = ("send", "receive", "latency")


def _load_classes() -> tuple[Path, Path]:
    """The compiled load, and the client that it runs on."""
    client = builds.java_client_five("5.2.0")

    def make(target: Path) -> None:
        command = [builds.tool("javac"), "-cp", f"{client / 'lib'}/*", "-d", str(target), str(SOURCE)]
        subprocess.run(command, check=True)

    return builds.built(builds.Build("java-load-five", (SOURCE,), make)), client


def one_round(system: System, messages: int) -> dict[str, dict[str, float]]:
    """Run the load at a fresh system; the figures of each phase."""
    classes, client = _load_classes()
    found: dict[str, dict[str, float]] = {}
    with endpoint(system, ("Load", "Latency"), ("Receivers", "Listeners")) as (server, address):
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
