"""Measures gRPC beside Apache RocketMQ 5.5.0 with `grpcload.c`, a load that needs a few percent of a processor.

    python -m benchmarks.five.grpc [--rounds 3] [--seconds 4] [--warm 20] [--only send] [--sides cometmq]
    python -m benchmarks.five.grpc --read LINES     the table of lines that earlier runs printed

Sends of 128 bytes, one message in a request or 32; receives of 32 with one AckMessage for all, and with one for each,
as the official clients do; sends that begin on time, at half of Apache's greatest rate; and idle clients, with
Telemetry, heartbeats and receives that wait. Beside them the same work over remoting on our broker, by `mqload`. Each
system runs alone, fresh, broker and endpoint in one process (Apache: proxyMode LOCAL, a heap of 1 GB, warmed first).
Processor time is that of the server's process with all threads. Prints a line of JSON for each case and a table.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.five.endpoints import SIDES, endpoint
from benchmarks.grpcload import Requests
from benchmarks.machine import Beside, CpuTimes, anonymous_mb, cpu_seconds, look_before, verdict
from benchmarks.rounds import Figures, in_turn, medians, say, table
from tests.interop.systems import Server, System

from benchmarks import grpcload, mqload

FILL: Final = ("-c", "8", "-w", "8", "-t", "Load", "-q", "8")
"""`mqload` adds the number of the topic: Load0."""
LOAD: Final = Requests("Load0", "Receivers")
IDLE: Final = Requests("Idle", "Idle-#####")
IDLE_GROUP: Final = 50
IDLE_STEPS: Final = (1000, 5000)
IDLE_S: Final = 20.0
"""A receive waits for so long, and a client sends two heartbeats."""
RECEIVE_LIMIT_S: Final = 8.0
SETTLED_S: Final = 2.0
PACE_OF: Final = "send, 8 × 8"


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    mode: str
    connections: int
    window: int
    batch: int = 1
    more: tuple[str, ...] = ()
    """Of the generator."""
    paced: bool = False
    """Calls begin on time, at half of the rate that Apache has in the case before this one."""
    remoting: bool = False
    """By `mqload`, on our broker alone."""


CASES: Final = (
    Case("send over remoting, 8 × 8", "send", 8, 8, remoting=True),
    Case("send, 8 × 8", "send", 8, 8),
    Case("send, 8 × 8, half of Apache's rate", "send", 8, 8, paced=True),
    Case("send, 1 × 1", "send", 1, 1),
    Case("send, 64 × 1", "send", 64, 1),
    Case("send, 8 × 8, 32 messages a request", "send", 8, 8, batch=32),
    Case("receive 32, one AckMessage, 8 consumers", "receive", 8, 1),
    Case("receive 32, 32 AckMessages, 8 consumers", "receive", 8, 1, more=("-k", "1")),
)


def one_round(system: System, cases: Sequence[Case], given: argparse.Namespace) -> Iterator[tuple[str, Figures]]:
    """The cases at a fresh system; ``given.pace`` is set by the first case that can tell it."""
    with endpoint(system, (LOAD.topic,), (LOAD.group,)) as (server, address):
        port = int(address.rpartition(":")[2])
        # The group begins before the first message, so that it is to receive all of them.
        grpcload.grpcload("receive", port, replace(LOAD, poll_s=5), "-c", "1", "-w", "1", "-s", "2")
        if system is not System.COMETMQ and given.warm:
            for mode, window in (("send", "8"), ("receive", "1")):
                grpcload.grpcload(mode, port, LOAD, "-c", "8", "-w", window, "-s", str(given.warm / 2))
        for case in cases:
            if (case.remoting and system is not System.COMETMQ) or (case.paced and not given.pace):
                continue
            figures = _measure(case, server, port, given)
            if case.name == PACE_OF and not given.pace:
                given.pace = figures["per_s"] / 2
            say(system=system.value, case=case.name, **figures)
            yield case.name, figures


def _measure(case: Case, server: Server, port: int, given: argparse.Namespace) -> Figures:
    options = ["-c", str(case.connections), "-w", str(case.window), *case.more]
    if case.remoting:
        cost = mqload.measured(
            "send", server.pid, server.port, [*FILL, "-s", str(given.seconds)], tls=False, signs=False
        )
    elif case.mode == "receive":
        found = mqload.mqload("send", server.port, *FILL, "-s", "3")["messages"]
        options += ["-m", str(found), "-s", str(RECEIVE_LIMIT_S)]
        cost, _ = grpcload.measured("receive", server.pid, port, LOAD, *options)
    else:
        options += ["-s", str(given.seconds), *(["-r", f"{given.pace:.0f}"] if case.paced else [])]
        cost, _ = grpcload.measured("send", server.pid, port, replace(LOAD, batch=case.batch), *options)
    shown: Figures = {"cpu_us": cost.cpu_us, "anonymous_mb": anonymous_mb(server.pid), **asdict(cost.beside)}
    return shown | {name: value for name, value in asdict(cost).items() if name != "beside"}


def idle_round(system: System, steps: Sequence[int]) -> Iterator[Figures]:
    """More and more idle clients at one fresh system: memory of each, and the share of a processor."""
    with endpoint(system, (IDLE.topic,), ()) as (server, address), ExitStack() as undo:
        nobody, there = anonymous_mb(server.pid), 0
        for clients in (0, *steps):
            if clients:
                options = ("-c", str(clients - there), "-w", "1", "-g", str(IDLE_GROUP), "-s", "3600")
                undo.enter_context(grpcload.loading("idle", int(address.rpartition(":")[2]), IDLE, *options))
                there = clients
            time.sleep(SETTLED_S)
            clocks, before, began = CpuTimes.now(), sum(cpu_seconds(server.pid)), time.monotonic()
            time.sleep(IDLE_S)
            took, used = time.monotonic() - began, sum(cpu_seconds(server.pid)) - before
            memory = anonymous_mb(server.pid)
            figures = {
                "clients": clients,
                "memory_mb": memory,
                "kb_each": (memory - nobody) * 1024 / max(clients, 1),
                "processor": used / took,
                **asdict(Beside.between(clocks, CpuTimes.now(), used)),
            }
            say(system=system.value, **figures)
            yield figures


Found = dict[tuple[str, str], list[Figures]]
"""The figures of each case, or number of clients, and each system."""


def report(found: Found, sides: Sequence[System] = SIDES) -> str:
    """The tables: of calls, then of idle clients."""
    middle = {key: medians(rounds) for key, rounds in found.items()}
    remoting = middle.get((CASES[0].name, System.COMETMQ.value), {}).get("cpu_us")
    rows = []
    for case in CASES:
        both = [middle.get((case.name, side.value), {}) for side in sides]
        if any(both):
            rows.append([case.name, *_cells(both, remoting)])
    heads = ("case", *(f"{side.value}" for side in sides), "ratio", "CPU a message", "of remoting", "p50", "p99")
    tables = [table(heads, *rows)] if rows else []
    idle = sorted((int(case), side) for case, side in middle if case.isdigit())
    if idle:
        cells = []
        for clients, side in idle:
            one = middle[str(clients), side]
            cell = (f"{one['memory_mb']:,.1f}", f"{one['kb_each']:,.1f}", f"{one['processor']:.1%}")
            cells.append([f"{clients:,}", side, *cell])
        tables.append(table(("idle clients", "system", "memory, MB", "kB each", "of a processor"), *cells))
    return "\n\n".join(tables)


def _cells(sides: Sequence[Figures], remoting: float | None) -> list[str]:
    apache, ours = sides[0], sides[-1]

    def both(name: str, scale: float = 1.0) -> str:
        return " / ".join(f"{one[name] / scale:,.1f}" if one else "—" for one in sides)

    return [
        *(f"{one['per_s']:,.0f}/s" if one else "—" for one in sides),
        f"{ours['per_s'] / apache['per_s']:.2f} ×" if apache and ours else "—",
        f"{both('cpu_us')} µs",
        f"{ours['cpu_us'] / remoting:.1f} ×" if ours and remoting else "—",
        *(f"{both(name, 1000)} ms" for name in ("p50_us", "p99_us")),
    ]


def read(lines: Iterable[str]) -> Found:
    """The figures in lines that runs printed before."""
    found: Found = {}
    for line in lines:
        if line.startswith("{"):
            one = json.loads(line)
            found.setdefault((str(one.get("case", one.get("clients"))), one["system"]), []).append(one)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each case")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds that warm the JVM")
    parser.add_argument("--only", default="", help="cases whose name contains this; `idle` for idle clients alone")
    parser.add_argument("--sides", nargs="+", default=[side.value for side in SIDES], help="systems")
    parser.add_argument("--clients", type=int, nargs="*", default=list(IDLE_STEPS), help="idle ones, in steps")
    parser.add_argument("--pace", type=float, default=0.0, help="sends a second of the case that begins them on time")
    parser.add_argument("--read", type=Path, help="a file of lines: print its table, and measure nothing")
    given = parser.parse_args()
    if given.read:
        print(report(read(given.read.read_text().splitlines())))
        return
    sides = [System(name) for name in given.sides]
    cases = [case for case in CASES if given.only in case.name]
    load_before, before = os.getloadavg()[0], look_before()
    found: Found = {}
    for _, system in in_turn(sides, given.rounds):
        for name, figures in one_round(system, cases, given) if cases else ():
            found.setdefault((name, system.value), []).append(figures)
        for figures in idle_round(system, given.clients) if given.only in ("", "idle") and given.clients else ():
            found.setdefault((str(figures["clients"]), system.value), []).append(figures)
    during = [Beside(one["others"], one["steal"]) for rounds in found.values() for one in rounds]
    print(f"\n{given.rounds} rounds of {given.seconds:g} s. {verdict(load_before, before, during)}\n\n{report(found)}")


if __name__ == "__main__":
    main()
