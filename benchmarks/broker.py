"""Measures the broker beside Apache RocketMQ 4.9.7, in turn, on this machine, with `mqload`.

    python -m benchmarks.broker load    [--rounds 5] [--seconds 6]  the cases of docs/performance.md, both systems
    python -m benchmarks.broker slaves                              the same with a slave, and with two
    python -m benchmarks.broker tls                                 plain text and TLS on one port
    python -m benchmarks.broker acl                                 with ACL 1.0 and 200 accounts, and without
    python -m benchmarks.broker metrics                             with metrics, and without
    python -m benchmarks.broker transactions                        a half message that is answered, then its commit
    python -m benchmarks.broker filter                              SQL92 pulls: messages examined, 10 % of which match
    python -m benchmarks.broker memory  [--messages 5000000]        anonymous memory after so many messages
    python -m benchmarks.broker start   [--messages 10000000]       time to be ready: empty, after a stop, after SIGKILL
    python -m benchmarks.broker floor                               CometMQ beside `floor.c`, a server that only answers
    python -m benchmarks.broker load --half                         with half of the processors, as on a slow machine

Each system runs alone, fresh, on its own store; the JVM (1 GB heap, its default compilers) is warmed for 20 s.
Prints one JSON line a figure while it runs and a Markdown table at the end, with a sentence on how quiet the machine
was. On a busy one ratios rise, since Apache needs two cores and CometMQ one: processor time per message holds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.half import half_of_processors
from benchmarks.machine import anonymous_mb, look_before, verdict
from benchmarks.mqload import Measured, compiled, measured, mqload
from benchmarks.rounds import in_turn, say, table
from benchmarks.servers import running
from tests.interop.systems import System

JAVA_WARM_S: Final = 20.0
SIDES: Final = (System.COMETMQ, System.APACHE)
Keys = tuple[tuple[str, str], ...]
SYNC: Final = (("flushDiskType", "SYNC_FLUSH"),)
METRICS: Final = (("metricsExporterType", "PROM"), ("metricsPromExporterPort", "0"))
SELECTORS: Final = (("enablePropertyFilter", "true"),)
TEXTS: Final = "region = 'r3' AND amount >= 0 AND kind IN ('buy', 'sell', 'hold', 'x{}')"
NUMBERS: Final = "amount >= 500 AND amount < 600 AND region <> 'x{}'"
FILLED: Final = 300_000


@dataclass(frozen=True)
class Case:
    """One row of the table: the load, and the broker that it needs."""

    name: str
    options: tuple[str, ...]
    """Of the generator; ``{}`` stands for a number that is new each time."""
    mode: str = "send"
    keys: Keys = (("flushDiskType", "ASYNC_FLUSH"),)
    """Of the broker's configuration."""
    role: str = "ASYNC_MASTER"
    slaves: int = 0
    """Number of slaves of the broker's own system."""
    tls: bool = False
    """Over TLS, with the certificate that a broker without one makes."""
    signs: bool = False
    """The generator signs its sends for an account."""
    accounts: bool = False
    """The broker asks for the signature of one of 200 accounts."""
    fill: tuple[str, ...] = ()
    """Options of a load that fills the topic first."""
    warm: int = 0
    """So often it runs before it is measured."""

    @property
    def broker(self) -> tuple[Keys, str, int, bool]:
        """Cases with the same need the same broker."""
        return self.keys, self.role, self.slaves, self.accounts


ONE, MANY, PIPED = ("-c", "1", "-t", "C"), ("-c", "64", "-t", "A"), ("-c", "16", "-w", "32", "-t", "D")
DRAIN: Final = ("-t", "D", "-s", "120")
LARGE: Final = ("-k", "2", "-P", "4", "-T", "3", "-c", "64")


def _pairs(prefix: str, **what: Any) -> tuple[Case, Case]:
    """The two loads that show what something costs."""
    return (
        Case(f"{prefix}64 connections", MANY, **what),
        Case(f"{prefix}16 connections x 32 in flight", PIPED, **what),
    )


def _filtered(name: str, topic: str, queues: int, expression: str, readers: int = 1) -> Case:
    """Pulls of 32 of messages of 1 KB with seven properties, by an expression that no broker has seen before."""
    fill = ("-c", "16", "-w", "16", "-b", "1024", "-t", topic, "-q", str(queues), "-f")
    options = ("-t", topic, "-q", str(queues), "-R", str(readers), "-x", expression, "-s", "120")
    return Case(name, options, "pull", SELECTORS, fill=fill, warm=4)


CASES: Final = {
    "load": (
        Case("send, 64 connections, 128 B", MANY),
        Case("send, 512 connections, 128 B", ("-c", "512", "-t", "B")),
        Case("send, 1 connection", ONE),
        Case("send, 16 connections x 32 in flight", PIPED),
        Case("send, 64 connections, 1 KB, 2 keys, 4 properties, 3 topics", (*LARGE, "-b", "1024", "-t", "E")),
        Case(
            "send, 64 connections, 200 to 1,800 B, 2 keys, 4 properties, 3 topics",
            (*LARGE, "-b", "200:1800", "-t", "F"),
        ),
        Case("drain by pulls of 32", DRAIN, "pull", fill=PIPED),
        Case("SYNC_FLUSH, 64 connections", ("-c", "64", "-t", "S"), keys=SYNC),
        Case("SYNC_FLUSH, 1 connection", ("-c", "1", "-t", "S"), keys=SYNC),
    ),
    "slaves": (
        Case("ASYNC_MASTER with a slave, 64 connections", MANY, slaves=1),
        Case("SYNC_MASTER with a slave, 64 connections", MANY, role="SYNC_MASTER", slaves=1),
        Case("SYNC_MASTER with two slaves, 64 connections", MANY, role="SYNC_MASTER", slaves=2),
    ),
    "tls": (
        Case("plain text, 64 connections", MANY),
        Case("TLS, 64 connections", MANY, tls=True),
        Case("TLS, 16 connections x 32 in flight", PIPED, tls=True),
        Case("TLS, drain by pulls of 32", DRAIN, "pull", tls=True, fill=PIPED),
    ),
    "acl": (*_pairs(""), *_pairs("signed, ", signs=True), *_pairs("accounts, ", signs=True, accounts=True)),
    "metrics": (*_pairs(""), *_pairs("metrics, ", keys=METRICS)),
    "transactions": (
        Case("32 producers, 128 B", ("-c", "32", "-t", "Tx"), "transact"),
        Case("1 producer, 128 B", ("-c", "1", "-t", "Tx"), "transact"),
        Case("32 producers x 8 in flight, 1 KB", ("-c", "32", "-w", "8", "-b", "1024", "-t", "Tx"), "transact"),
    ),
    "filter": (
        _filtered("one connection, text first", "One", 1, TEXTS),
        _filtered("one connection, numbers first", "One", 1, NUMBERS),
        _filtered("4 connections, 4 queues, text first", "Four", 4, TEXTS),
        _filtered("4 connections, 4 queues, numbers first", "Four", 4, NUMBERS),
        _filtered("8 connections, 4 queues, two consumers alike", "Four", 4, TEXTS, readers=2),
    ),
}
FLOOR: Final = CASES["load"][:4]


def measure_round(
    cases: Sequence[Case], system: System, seconds: float, messages: int = FILLED
) -> Iterator[tuple[Case, Measured]]:
    """Some cases of one system, those that need the same broker on one broker."""
    for (keys, role, slaves, accounts), group in itertools.groupby(cases, lambda case: case.broker):
        with running(system, dict(keys), role=role, slaves=slaves, accounts=accounts) as deployment:
            broker, numbers, some = deployment.broker, itertools.count(), list(group)
            filled = {case.options for case in some}  # a case may fill the topic of another one
            if system is System.APACHE:
                for mode, tls in sorted({(case.mode.replace("pull", "send"), case.tls) for case in some}):
                    warm = ("-c", "64" if mode == "send" else "32", "-t", "Warm", "-s", str(JAVA_WARM_S))
                    mqload(mode, broker.port, *warm, tls=tls, signs=accounts)
            for case in some:
                if case.fill and case.fill not in filled:
                    fill(broker.port, messages, *case.fill)
                    filled.add(case.fill)
                for turn in range(case.warm + 1):
                    options = [option.format(next(numbers)) for option in case.options]
                    options += [] if "-s" in options else ["-s", str(seconds)]
                    result = measured(case.mode, broker.pid, broker.port, options, tls=case.tls, signs=case.signs)
                    if turn == case.warm:
                        yield case, result


def compare(cases: Sequence[Case], rounds: int, seconds: float, messages: int) -> None:
    """Both systems in turn, then the table of medians."""
    compiled("mqload", "-lm")
    load_before, before = os.getloadavg()[0], look_before()
    figures: dict[tuple[str, System], list[Measured]] = {}
    for number, system in in_turn(SIDES, rounds):
        for case, result in measure_round(cases, system, seconds, messages):
            figures.setdefault((case.name, system), []).append(result)
            shown = asdict(result)
            say(round=number, system=system.value, case=case.name, **shown | shown.pop("beside"))
    results = [one for found in figures.values() for one in found]
    print(f"\n{rounds} rounds of {seconds:g} s. {verdict(load_before, before, [r.beside for r in results])} ")
    print(f"The generator was busy for at most {max(one.generator for one in results):.0%} of a case.\n")
    heads = ("case", "Apache", "CometMQ", "ratio", "p99 Apache", "p99 CometMQ", "CPU per message, Apache / CometMQ")
    rows = [_row(case.name, figures[case.name, System.APACHE], figures[case.name, System.COMETMQ]) for case in cases]
    print(table(heads, *rows))


def _median(found: Sequence[Measured], of: str) -> float:
    return float(statistics.median(getattr(one, of) for one in found))


def _row(name: str, apache: Sequence[Measured], ours: Sequence[Measured]) -> list[str]:
    rate, theirs = _median(ours, "per_s"), _median(apache, "per_s")
    return [
        name,
        *(f"{theirs:,.0f}/s", f"{rate:,.0f}/s", f"{rate / theirs:.2f} ×"),
        *(f"{_median(found, 'p99_us'):,.0f} µs" for found in (apache, ours)),
        f"{_median(apache, 'cpu_us'):.1f} / {_median(ours, 'cpu_us'):.1f} µs",
    ]


def fill(port: int, messages: int, *options: str) -> int:
    """Send about so many messages; how many there were."""
    sent = 0
    while sent < messages:
        sent += int(mqload("send", port, *(options or ("-c", "16", "-w", "32", "-t", "Fill")), "-s", "3")["messages"])
    return sent


def memory(messages: int) -> None:
    """Anonymous memory of our broker after many messages."""
    with running(System.COMETMQ) as deployment:
        broker = deployment.broker
        before = anonymous_mb(broker.pid)
        say(messages=fill(broker.port, messages), before_mb=before, after_mb=anonymous_mb(broker.pid))


def start(messages: int) -> None:
    """Seconds until the broker answers: `cometmq serve` on nothing, and on a large store after a stop and a kill."""
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as directory:
        for number in range(5):
            say(ready="serve, empty", seconds=_serve_seconds(Path(directory) / str(number)))
    with running(System.COMETMQ) as deployment:
        sent = fill(deployment.broker.port, messages)
        for ending in ("stop", "SIGKILL") * 3:
            mqload("send", deployment.broker.port, "-s", "1")
            deployment.broker.kill() if ending == "SIGKILL" else deployment.broker.stop()
            begun = time.monotonic()
            deployment.start_again(System.COMETMQ)
            say(ready=f"after {ending}", messages=sent, seconds=time.monotonic() - begun)


def _serve_seconds(data: Path) -> float:
    begun = time.monotonic()
    command = [sys.executable, "-m", "cometmq", "serve", "--data", str(data), "--port", "0", "--namesrv-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = time.monotonic() - begun
        process.terminate()
    return seconds


def floor(cases: Sequence[Case], rounds: int, seconds: float) -> None:
    """Sends to a server that only answers, and to CometMQ, in turn: what is left is what a broker does."""
    figures: dict[str, tuple[list[Measured], list[Measured]]] = {case.name: ([], []) for case in cases}
    for _ in range(rounds):
        with subprocess.Popen([compiled("floor")], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for case in cases:
                options = [*case.options, "-s", str(seconds)]
                figures[case.name][0].append(measured("send", server.pid, port, options, tls=False, signs=False))
            server.kill()
        for case, ours in measure_round(cases, System.COMETMQ, seconds):
            figures[case.name][1].append(ours)
    rows = []
    for name, found in figures.items():
        rates, costs, kernel = ([_median(one, of) for one in found] for of in ("per_s", "cpu_us", "system_us"))
        cells = [f"{cost[0]:.1f} / {cost[1]:.1f} µs" for cost in (costs, kernel)]
        rows.append([name, *(f"{rate:,.0f}/s" for rate in rates), f"{rates[1] / rates[0]:.2f} ×", *cells])
    heads = ("case", "server that only answers", "CometMQ", "ratio", "CPU per message", "CPU in the kernel")
    print(table(heads, *rows))


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*CASES, "memory", "start", "floor"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--messages", type=int, help="in the store; that a pull finds at least")
    parser.add_argument("--half", action="store_true", help="hold servers and generators to half of the processors")
    options = parser.parse_args()
    if options.half:
        with half_of_processors() as how:
            run(options)
            print(f"\n{how}")
    else:
        run(options)


def run(options: argparse.Namespace) -> None:
    """Run the measurement that the options name."""
    if cases := CASES.get(options.what):
        chosen = [case for case in cases if options.only in case.name]
        compare(chosen, options.rounds, options.seconds, options.messages or FILLED)
    elif options.what == "memory":
        memory(options.messages or 5_000_000)
    elif options.what == "start":
        start(options.messages or 10_000_000)
    else:
        floor([case for case in FLOOR if options.only in case.name], options.rounds, options.seconds)


if __name__ == "__main__":
    main()
