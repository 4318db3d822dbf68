"""Measures the broker beside Apache RocketMQ 4.9.7, in turn, on this machine, with `mqload`.

    python benchmarks/broker.py load   [--rounds 5] [--seconds 6]   the cases of docs/performance.md, both systems
    python benchmarks/broker.py slaves [--rounds 5] [--seconds 6]   the same with a slave
    python benchmarks/broker.py tls    [--rounds 5] [--seconds 6]   plain text and TLS on one port
    python benchmarks/broker.py acl    [--rounds 5] [--seconds 6]   with ACL 1.0 and 200 accounts, and without
    python benchmarks/broker.py metrics [--rounds 5] [--seconds 6]  with metrics, and without; CometMQ alone
    python benchmarks/broker.py memory [--messages 5000000]         anonymous memory after so many messages
    python benchmarks/broker.py start  [--messages 10000000]        time to be ready: empty, after a stop, after SIGKILL
    python benchmarks/broker.py floor  [--rounds 5] [--seconds 6]   CometMQ beside `floor.c`, a server that only answers

Each system runs alone, fresh, on its own store; the JVM (1 GB heap, its default compilers) is warmed for 20 s.
Prints one JSON line a figure while it runs and a Markdown table at the end, with a sentence on how quiet the machine
was. On a busy one ratios rise, since Apache needs two cores and CometMQ one: processor time per message holds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import machine  # noqa: E402
from benchmarks.machine import Beside, CpuTimes  # noqa: E402
from benchmarks.process_cost import cpu_seconds  # noqa: E402
from tests.helpers.waiting import wait_for  # noqa: E402
from tests.interop import systems  # noqa: E402
from tests.interop.systems import Server, System  # noqa: E402

from cometmq.client import BrokerError, Message  # noqa: E402
from cometmq.client.sync import SyncAdmin, SyncProducer  # noqa: E402

JAVA_WARM_SECONDS = 20.0
JAVA_MEASURED_OPTIONS = ("-Xms1g", "-Xmx1g")
FOLLOWS_SECONDS = 60.0
SETTLE_SECONDS = 0.5
"""After a case: queues, index and flushes of its messages belong to its processor time."""
NO_SLAVE = ""


@dataclass(frozen=True)
class Case:
    """One row of the table: what the generator is told, and what we ask for."""

    name: str
    options: tuple[str, ...]
    figure: str = "per_s"
    flush: str = "ASYNC_FLUSH"
    pull: bool = False
    role: str = NO_SLAVE
    """brokerRole of a master with one slave of its own system."""
    tls: bool = False
    """Over TLS, with the certificate that a broker without one makes."""
    signs: bool = False
    """The generator signs its sends for an account."""
    accounts: bool = False
    """The broker asks for the signature of one of 200 accounts."""
    metrics: bool = False
    """The broker serves metrics (CometMQ's)."""


CASES = (
    Case("send, 64 connections, 128 B", ("-c", "64", "-t", "A")),
    Case("send, 512 connections, 128 B", ("-c", "512", "-t", "B")),
    Case("send, 1 connection", ("-c", "1", "-t", "C")),
    Case("send, 16 connections x 32 in flight", ("-c", "16", "-w", "32", "-t", "D")),
    Case(
        "send, 64 connections, 1 KB, 2 keys, 4 properties, 3 topics",
        ("-c", "64", "-b", "1024", "-k", "2", "-P", "4", "-T", "3", "-t", "E"),
    ),
    Case(
        "send, 64 connections, 200 to 1,800 B, 2 keys, 4 properties, 3 topics",
        ("-c", "64", "-b", "200:1800", "-k", "2", "-P", "4", "-T", "3", "-t", "F"),
    ),
    Case("drain by pulls of 32", ("-t", "D", "-s", "120"), pull=True),
    Case("SYNC_FLUSH, 64 connections", ("-c", "64", "-t", "S"), flush="SYNC_FLUSH"),
    Case("SYNC_FLUSH, 1 connection", ("-c", "1", "-t", "S"), flush="SYNC_FLUSH"),
)
SLAVE_CASES = (
    Case("ASYNC_MASTER with a slave, 64 connections", ("-c", "64", "-t", "R"), role="ASYNC_MASTER"),
    Case("SYNC_MASTER with a slave, 64 connections", ("-c", "64", "-t", "R"), role="SYNC_MASTER"),
)
TLS_CASES = (
    Case("plain text, 64 connections", ("-c", "64", "-t", "A")),
    Case("TLS, 64 connections", ("-c", "64", "-t", "A"), tls=True),
    Case("TLS, 16 connections x 32 in flight", ("-c", "16", "-w", "32", "-t", "D"), tls=True),
    Case("TLS, drain by pulls of 32", ("-t", "D", "-s", "120"), pull=True, tls=True),
)
ACL_CASES = (
    Case("64 connections", ("-c", "64", "-t", "A")),
    Case("16 connections x 32 in flight", ("-c", "16", "-w", "32", "-t", "D")),
    Case("signed, 64 connections", ("-c", "64", "-t", "A"), signs=True),
    Case("signed, 16 connections x 32 in flight", ("-c", "16", "-w", "32", "-t", "D"), signs=True),
    Case("accounts, 64 connections", ("-c", "64", "-t", "A"), signs=True, accounts=True),
    Case("accounts, 16 connections x 32 in flight", ("-c", "16", "-w", "32", "-t", "D"), signs=True, accounts=True),
)
METRICS_CASES = (
    Case("64 connections", ("-c", "64", "-t", "A")),
    Case("16 connections x 32 in flight", ("-c", "16", "-w", "32", "-t", "D")),
    Case("metrics, 64 connections", ("-c", "64", "-t", "A"), metrics=True),
    Case("metrics, 16 connections x 32 in flight", ("-c", "16", "-w", "32", "-t", "D"), metrics=True),
)
ACCOUNTS = 200
LOAD_ACCOUNT = ("account-100", "secret-of-account-100")


@dataclass(frozen=True)
class Measured:
    """One case of one system in one round; times in microseconds, processor time of the broker's process alone."""

    per_s: float
    p50_us: float
    p99_us: float
    user_us: float
    """User time a message."""
    system_us: float
    """System time a message."""
    generator: float
    """Share of its one processor that the generator used: near 1.0 the case measures the generator."""
    beside: Beside

    @property
    def cpu_us(self) -> float:
        """User and system time a message."""
        return self.user_us + self.system_us


def compiled(name: str, *options: str, mark: str = "") -> Path:
    """A program of this folder in C, compiled now if it is older than its source.

    :param mark: tells programs of one source with different options from each other.
    """
    source = Path(__file__).with_name(f"{name}.c")
    target = Path(tempfile.gettempdir()) / f"cometmq-{name}{mark}-{os.getuid()}"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-o", str(target), str(source), *options], check=True)
    return target


def generator(*, tls: bool = False, signs: bool = False) -> Path:
    """The load generator."""
    if tls:
        return compiled("mqload", "-DTLS", "-lm", "-lssl", "-lcrypto", mark="-tls")
    if signs:
        return compiled("mqload", "-DSIGN", "-lm", "-lcrypto", mark="-sign")
    return compiled("mqload", "-lm")


def mqload(mode: str, port: int, *options: str, tls: bool = False, signs: bool = False) -> dict[str, Any]:
    """Run the generator once; a failed send is an error.

    :param signs: sign sends for one of the accounts.
    """
    command = [str(generator(tls=tls, signs=signs)), mode, "-p", str(port), *options]
    if signs:
        command += ["-A", ":".join(LOAD_ACCOUNT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"mqload {mode} {options}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    if result["failures"] and mode == "send":
        raise RuntimeError(f"mqload {mode} {options}: {done.stdout}")
    return result


@contextmanager
def running(
    system: System, flush: str, directory: Path, role: str = NO_SLAVE, more: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A nameserver and a broker of one system, on a fresh store; with a role also a slave that follows.

    :param more: keys of the broker's configuration.
    """

    def started(name: str, keys: dict[str, str]) -> Server:
        return systems.start_broker(system, directory / name, names.address, keys, java_options=JAVA_MEASURED_OPTIONS)

    with ExitStack() as servers:
        names = servers.enter_context(systems.start_namesrv(system, directory / "namesrv"))
        broker = servers.enter_context(
            started("broker", {"flushDiskType": flush, "brokerRole": role or "ASYNC_MASTER", **(more or {})})
        )
        if role:
            slave = servers.enter_context(started("slave", {"brokerRole": "SLAVE", "brokerId": "1"}))
            until_it_follows(names.address, broker.address, slave.address)
        yield broker


def until_it_follows(namesrv: str, master: str, slave: str) -> None:
    """Wait until a slave has a message of its master."""
    with SyncProducer("benchmark", namesrv) as producer, SyncAdmin(namesrv) as admin:
        producer.send(Message("First", b"message"))

        def follows() -> bool:
            try:
                ends = {admin.runtime_info(address)["commitLogMaxOffset"] for address in (master, slave)}
            except BrokerError:  # Apache's cannot tell before it has a log
                return False
            return len(ends) == 1

        wait_for(follows, "the slave follows", FOLLOWS_SECONDS)


def measured(case: Case, pid: int, port: int, seconds: float) -> Measured:
    """Run one case and read what it cost a server."""
    options = case.options if case.pull else (*case.options, "-s", str(seconds))
    clocks, before, generated = CpuTimes.now(), cpu_seconds(pid), _generator_seconds()
    result = mqload("pull" if case.pull else "send", port, *options, tls=case.tls, signs=case.signs)
    time.sleep(SETTLE_SECONDS)
    user, system = (after - begin for after, begin in zip(cpu_seconds(pid), before, strict=True))
    # What the kernel does for the broker's sockets and files counts as the broker's, not as that of others.
    generated = _generator_seconds() - generated
    beside = Beside.between(clocks, CpuTimes.now(), user + system + generated)
    messages, rate, p50, p99 = (result[name] for name in ("messages", "per_s", "p50_us", "p99_us"))
    busy = generated / result["seconds"]
    return Measured(rate, p50, p99, user / messages * 1e6, system / messages * 1e6, busy, beside)


def _generator_seconds() -> float:
    """Processor seconds of the children that have ended: the generator's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_round(chosen: Sequence[Case], system: System, seconds: float) -> Iterator[tuple[Case, Measured]]:
    """Some cases of one system, those of one kind of broker on one broker."""
    for kind in dict.fromkeys(map(_broker_of, chosen)):
        cases = [case for case in chosen if _broker_of(case) == kind]
        flush, role, accounts, metrics = kind
        directory = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
        more = {**(_accounts(directory) if accounts else {}), **(METRICS_KEYS if metrics else {})}
        try:
            with running(system, flush, directory, role, more) as broker:
                if system is System.APACHE:
                    for tls in sorted({case.tls for case in cases}):
                        warm = ("-c", "64", "-t", "Warm", "-s", str(JAVA_WARM_SECONDS))
                        mqload("send", broker.port, *warm, tls=tls, signs=accounts)
                for case in cases:
                    if case.pull and cases[0].pull:
                        mqload("send", broker.port, "-c", "16", "-w", "32", "-t", "D", "-s", str(seconds))
                    yield case, measured(case, broker.pid, broker.port, seconds)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _broker_of(case: Case) -> tuple[str, str, bool, bool]:
    return case.flush, case.role, case.accounts, case.metrics


METRICS_KEYS: Final = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


def _accounts(directory: Path) -> dict[str, str]:
    """The keys of a broker with 200 accounts, which may send to every topic."""
    conf = directory / "broker" / "home" / "conf"
    conf.mkdir(parents=True)
    rows = [
        f"- accessKey: account-{number}\n  secretKey: secret-of-account-{number}\n  defaultTopicPerm: PUB|SUB\n"
        for number in range(ACCOUNTS)
    ]
    (conf / "plain_acl.yml").write_text("accounts:\n" + "".join(rows))
    return {"aclEnable": "true", "aclPath": str(conf)}


def load(cases: Sequence[Case], rounds: int, seconds: float) -> None:
    """Both systems in turn, then the table of medians."""
    generator()
    load_before, before = os.getloadavg()[0], machine.look_before()
    figures: dict[tuple[str, System], list[Measured]] = {}
    for number in range(rounds):
        order = (System.APACHE, System.COMETMQ) if number % 2 else (System.COMETMQ, System.APACHE)
        for system in order:
            for case, result in measure_round(cases, system, seconds):
                figures.setdefault((case.name, system), []).append(result)
                print(json.dumps(_line(number + 1, system, case, result)), flush=True)
    print(f"\n{rounds} rounds of {seconds:g} s. ", end="")
    results = [one for found in figures.values() for one in found]
    print(machine.verdict(load_before, before, [one.beside for one in results]), end=" ")
    print(f"The generator was busy for at most {max(one.generator for one in results):.0%} of a case.")
    print(
        "\n| case | Apache | CometMQ | ratio | p99 Apache | p99 CometMQ | CPU a message, Apache / CometMQ |"
        "\n|---|---|---|---|---|---|---|"
    )
    for case in cases:
        print(_row(case.name, *(figures[case.name, system] for system in (System.APACHE, System.COMETMQ))))


def _line(number: int, system: System, case: Case, result: Measured) -> dict[str, Any]:
    """One measurement for programs."""
    kept = {name: round(getattr(result, name), 2) for name in ("per_s", "p50_us", "p99_us", "user_us", "system_us")}
    beside = {"others": result.beside.others, "steal": result.beside.steal}
    shares = {name: round(share, 3) for name, share in {"generator": result.generator, **beside}.items()}
    return {"round": number, "system": system.value, "case": case.name, **kept, **shares}


def _row(name: str, apache: list[Measured], ours: list[Measured]) -> str:
    """The medians of one case."""

    def median(found: list[Measured], of: str) -> float:
        return float(statistics.median(getattr(one, of) for one in found))

    rate, theirs = median(ours, "per_s"), median(apache, "per_s")
    return (
        f"| {name} | {theirs:,.0f}/s | {rate:,.0f}/s | {rate / theirs:.2f} × "
        f"| {median(apache, 'p99_us'):,.0f} µs | {median(ours, 'p99_us'):,.0f} µs "
        f"| {median(apache, 'cpu_us'):.1f} / {median(ours, 'cpu_us'):.1f} µs |"
    )


def anonymous_mb(pid: int) -> float:
    """Anonymous memory of a process in MB: what it cannot give back to the page cache."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(row.split()[1] for row in rows if row.startswith("Anonymous:"))) / 1024


def fill(port: int, messages: int) -> int:
    """Send about so many messages of 128 bytes."""
    sent = 0
    while sent < messages:
        sent += int(mqload("send", port, "-c", "16", "-w", "32", "-s", "5", "-t", "Fill")["messages"])
    return sent


def memory(messages: int) -> None:
    """Anonymous memory of our broker after many messages."""
    directory = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
    try:
        with running(System.COMETMQ, "ASYNC_FLUSH", directory) as broker:
            before = anonymous_mb(broker.pid)
            sent = fill(broker.port, messages)
            line = {"messages": sent, "anonymous_mb_before": before, "anonymous_mb_after": anonymous_mb(broker.pid)}
            print(json.dumps(line))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def start(messages: int) -> None:
    """Seconds until the broker answers: `cometmq serve` on nothing, and on a large store after a stop and a kill."""
    directory = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
    try:
        for number in range(5):
            print(json.dumps({"ready": "serve, empty", "seconds": _serve_seconds(directory / f"serve{number}")}))
        names = systems.start_namesrv(System.COMETMQ, directory / "namesrv")
        broker = systems.start_broker(System.COMETMQ, directory / "broker", names.address, {})
        sent = fill(broker.port, messages)
        for ending in ("stop", "SIGKILL", "stop", "SIGKILL", "stop", "SIGKILL"):
            mqload("send", broker.port, "-s", "1")
            broker.kill() if ending == "SIGKILL" else broker.stop()
            begun = time.monotonic()
            broker = systems.start_broker(System.COMETMQ, directory / "broker", names.address, {}, broker.port)
            seconds = round(time.monotonic() - begun, 3)
            print(json.dumps({"ready": f"after {ending}", "messages": sent, "seconds": seconds}), flush=True)
        broker.close()
        names.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def floor(rounds: int, seconds: float) -> None:
    """Sends to a server that only answers, and to CometMQ, in turn: what is left is what a broker does."""
    cases = [case for case in CASES if case.name.startswith("send") and "properties" not in case.name]
    figures: dict[str, list[tuple[Measured, Measured]]] = {}
    for _ in range(rounds):
        with subprocess.Popen([compiled("floor")], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            least = [measured(case, server.pid, port, seconds) for case in cases]
            server.kill()
        for one, (case, ours) in zip(least, measure_round(cases, System.COMETMQ, seconds), strict=True):
            figures.setdefault(case.name, []).append((one, ours))
    print("| case | server that only answers | CometMQ | CPU a message | of it in the kernel |\n|---|---|---|---|---|")
    for name, found in figures.items():
        cells = [
            [statistics.median(getattr(pair[at], of) for pair in found) for at in range(2)]
            for of in ("per_s", "cpu_us", "system_us")
        ]
        rates, costs, kernel = cells
        print(
            f"| {name} | {rates[0]:,.0f}/s | {rates[1]:,.0f}/s "
            f"| {costs[0]:.1f} / {costs[1]:.1f} µs | {kernel[0]:.1f} / {kernel[1]:.1f} µs |"
        )


def _serve_seconds(data: Path) -> float:
    begun = time.monotonic()
    command = [sys.executable, "-m", "cometmq", "serve", "--data", str(data), "--port", "0", "--namesrv-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = time.monotonic() - begun
        process.terminate()
    return round(seconds, 3)


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["load", "slaves", "tls", "acl", "metrics", "memory", "start", "floor"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--messages", type=int)
    options = parser.parse_args()
    tables = {"load": CASES, "slaves": SLAVE_CASES, "tls": TLS_CASES, "acl": ACL_CASES, "metrics": METRICS_CASES}
    if (cases := tables.get(options.what)) is not None:
        load([case for case in cases if options.only in case.name], options.rounds, options.seconds)
    elif options.what == "memory":
        memory(options.messages or 5_000_000)
    elif options.what == "floor":
        floor(options.rounds, options.seconds)
    else:
        start(options.messages or 10_000_000)


if __name__ == "__main__":
    main()
