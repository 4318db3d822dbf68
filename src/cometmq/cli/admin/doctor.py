"""``cometmq doctor``: check this machine, a cluster or a store, and suggest a fix for each finding."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import click

from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.failures import DONE, FAILED, WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.output import Column, Progress, output_option, show
from cometmq.cli.servers.ports import Port, ServePorts, holder_of, port_options, why_unusable
from cometmq.cli.servers.process import data_option
from cometmq.client.admin import Admin
from cometmq.client.admin.broker_health import check_queue_entries, check_store_time
from cometmq.client.admin.finding import ADVICE, OK, PROBLEM, Finding
from cometmq.client.route import namesrv_addresses
from cometmq.clock import SYSTEM_CLOCK
from cometmq.core import CORE, NEXT_STEP, PATH
from cometmq.errors import MissingPackageError, pip_install, reason_of
from cometmq.limits import CLOCK_BEHIND_MS
from cometmq.message.ports import MCP_PORT
from cometmq.visible import visible

DISK_LOW_BYTES: Final = 2 * 1024**3
"""Minimum free disk space. If there is less, a broker soon rejects messages, because the second CommitLog segment takes
1 GiB when the first is half full.
"""
OPEN_FILES_WANTED: Final = 4096
"""Recommended number of file descriptors. It is enough for a thousand clients and a few hundred queues with three files
each.
"""
JAVA_WANTED: Final = 17
_FEW_STEPS: Final = 100
"""Maximum number of steps in a check that has no progress bar."""

_COLUMNS: Final = (
    Column("check", "Check", prose=True),
    Column("state", "State", state=True),
    Column("found", "Found", prose=True),
    Column("todo", "What to do", prose=True),
)
_DIRECTORY: Final = LocalPath(path_type=Path, readable=False)


@click.command("doctor")
@data_option
@port_options
@click.option("--cluster", is_flag=True, help="Check the running cluster given by -n instead of this machine.")
@click.option("--store", type=_DIRECTORY, help="Check this store, whose broker is stopped. Nothing is changed.")
@click.option(
    "--commit-log", type=_DIRECTORY, help="Commit log directory (storePathCommitLog), if it is not below --store."
)
@click.option("--all", "is_all", is_flag=True, help="With --store, read all log files, not only the last two.")
@namesrv_option
@output_option
def command(
    data: Path,
    ports: ServePorts,
    cluster: bool,
    store: Path | None,
    commit_log: Path | None,
    is_all: bool,
    namesrv: str,
    output: str,
) -> int:
    """Check this machine: Python, Java, disk space, ports and limits.

    With --cluster, check that nameservers and brokers answer at their advertised addresses. Also check their disks,
    clocks, versions, retention and slaves, and look for conflicting subscriptions and for topics on too few brokers.

    With --store, check a store of CometMQ or Apache RocketMQ whose broker does not start: its lock, disk, owner, log,
    queues, index and tables. Nothing is changed.

    The exit code is 1 if something prevents CometMQ from working.
    """
    if store is None and (commit_log is not None or is_all):
        raise WrongUseError("--commit-log and --all need --store", next_step="give the store's directory with --store")
    if store is not None and cluster:
        raise WrongUseError("--store and --cluster exclude each other", next_step="run one check after the other")
    if store is not None:
        from cometmq.cli.servers.store_check import StoreCheck

        check = StoreCheck(store.absolute(), commit_log, _watch, reads_all=is_all)
        return _show_findings(list(check.run()), f"Store in {visible(str(store))}", output)
    if cluster:
        from cometmq.client.admin.cluster_health import examine_cluster

        async def work(admin: Admin) -> list[Finding]:
            return [finding async for finding in examine_cluster(admin, namesrv_addresses(namesrv), _watch)]

        return _show_findings(administer(namesrv, work), f"Cluster of {namesrv}", output)
    findings = list(run_checks(data, [*ports.listed(), Port("MCP server", MCP_PORT, "--port of cometmq mcp")]))
    return _show_findings(findings, "CometMQ on this machine", output)


def _watch(title: str, steps: int) -> Progress:
    """Return the progress bar of a check. It is hidden if the check is short."""
    return Progress(title, steps if steps > _FEW_STEPS else None)


def _show_findings(findings: Sequence[Finding], title: str, output: str) -> int:
    """Show the findings, and return the exit code."""
    nothing_to_do = output == "table" and not any(finding.todo for finding in findings)
    columns = _COLUMNS[:-1] if nothing_to_do else _COLUMNS
    show([finding._asdict() for finding in findings], columns, output, title=title)
    return FAILED if any(finding.state == PROBLEM for finding in findings) else DONE


def run_checks(data: Path, ports: Sequence[Port]) -> Iterator[Finding]:
    """Run every check of this machine."""
    yield _python()
    yield _package("uvloop", "faster event loop", "pip install uvloop")
    yield _core()
    yield _package("pyspark", "Spark pipeline", pip_install("spark"))
    yield _package("matplotlib", "plots of the demo", pip_install("plot"))
    yield _java()
    yield _disk(data)
    yield from _stores(data)
    yield from map(_port, ports)
    yield _open_files()
    yield _memory()


def java_major() -> int | None:
    """Return the major version of the Java that Spark would start, or None if Java is not installed."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home and Path(home, "bin", "java").exists() else "java"
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found.group(1)) if found else None


def free_bytes(place: Path) -> int:
    """Return the number of free bytes on the disk that contains or would contain ``place``."""
    existing = place.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


# the version needs no check: pip refuses to install on a Python that is too old
def _python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    return Finding("Python", OK, found)


def _package(name: str, purpose: str, how: str) -> Finding:
    try:
        return Finding(f"{name} ({purpose})", OK, version(name))
    except PackageNotFoundError:
        return Finding(f"{name} ({purpose})", ADVICE, "not installed", how)


def _core() -> Finding:
    check = "compiled core (faster broker)"
    if CORE is None:
        return Finding(check, ADVICE, PATH, NEXT_STEP)
    return Finding(check, OK, PATH)


def _java() -> Finding:
    major = java_major()
    check = "Java (Spark pipeline)"
    if major is None:
        return Finding(check, ADVICE, "not found", "for Spark: sudo apt install openjdk-17-jre-headless")
    if major < JAVA_WANTED:
        return Finding(
            check, ADVICE, f"Java {major}", f"Spark needs {JAVA_WANTED} or newer; set JAVA_HOME to such a Java"
        )
    return Finding(check, OK, f"Java {major}")


def _disk(data: Path) -> Finding:
    try:
        free = free_bytes(data)
    except OSError as error:
        return Finding("disk space", PROBLEM, f"{data}: {error.strerror}", "choose another directory with --data")
    found = f"{free / 1024**3:.1f} GiB free for {data}"
    if free < DISK_LOW_BYTES:
        return Finding("disk space", PROBLEM, found, "free some space, or use another disk with --data")
    nearest = next(place for place in (data.absolute(), *data.absolute().parents) if place.exists())
    if not os.access(nearest, os.W_OK):
        return Finding("disk space", PROBLEM, f"{nearest} is not writable", "choose another directory with --data")
    return Finding("disk space", OK, found)


def _stores(data: Path) -> Iterator[Finding]:
    """Check the stores in ``data``."""
    try:
        yield from _store_times(data)
        yield from _entries(data)
    except MissingPackageError as error:
        if any((*data.glob("commitlog"), *data.glob("*/commitlog"))):
            yield Finding(f"stores in {data}", ADVICE, "not checked", error.next_step or "")


def _store_times(data: Path) -> Iterator[Finding]:
    """Yield a finding for each store in ``data`` whose newest message is later than the clock's time."""
    from cometmq.store.log.checkpoint import load_checkpoint

    for path in sorted((*data.glob("checkpoint"), *data.glob("*/checkpoint"))):
        try:
            checkpoint = load_checkpoint(path)
        except OSError:
            continue
        behind = checkpoint.physic_msg_timestamp - SYSTEM_CLOCK.now_ms() if checkpoint is not None else 0
        if behind > CLOCK_BEHIND_MS:
            yield check_store_time(str(path.parent), behind)


def _entries(data: Path) -> Iterator[Finding]:
    """Yield a finding for each stopped store in ``data`` whose queues contain entries without messages."""
    from cometmq.store.log.checkpoint import lock_holder
    from cometmq.store.recovery.entries_look import missing_entries, text_of

    for log in sorted((*data.glob("commitlog"), *data.glob("*/commitlog"))):
        store = log.parent
        try:
            if lock_holder(store / "lock") is not None:  # for running brokers, --cluster does this check
                continue
            missing = list(missing_entries(store))
        except OSError:
            continue
        if missing:
            yield check_queue_entries(str(store), text_of(missing))


def _port(port: Port) -> Finding:
    check = f"port of the {port.what}"
    error = why_unusable(port.number)
    if error is None:
        return Finding(check, OK, f"{port.number} is free")
    if error.errno != errno.EADDRINUSE:
        todo = f"choose a {port.option} that this user may use, such as one from 1024 on"
        return Finding(check, ADVICE, f"{port.number} cannot be used: {reason_of(error)}", todo)
    holder = holder_of(port.number)
    found = f"{port.number} is in use" + (f" by {visible(holder)}" if holder else "")
    return Finding(check, ADVICE, found, f"CometMQ may be running already; otherwise choose another {port.option}")


def _open_files() -> Finding:
    if sys.platform == "win32":
        return Finding("open files", OK, "no limit on this system")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} now, {hard} at most"
    if 0 <= hard < OPEN_FILES_WANTED:  # servers raise their soft limit themselves
        return Finding("open files", ADVICE, found, "LimitNOFILE=65536 in the unit, or ulimit -Hn 65536 as root")
    return Finding("open files", OK, found)


def _memory() -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return Finding("memory", OK, "unknown on this system")
    available = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 0)
    found = f"{available / 1024**2:.1f} GiB available"
    if available < 512 * 1024:
        return Finding("memory", ADVICE, found, "a broker wants 150 MB and Spark 1 GB")
    return Finding("memory", OK, found)
