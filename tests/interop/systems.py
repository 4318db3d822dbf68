"""Starts and stops nameservers and brokers of either system with the same arguments and the same broker.conf keys."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Self

from tests.helpers.waiting import wait_for
from tests.interop import builds, probe

from cometmq.testing import free_port

CLUSTER_NAME = "DefaultCluster"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 120.0
LOG_TAIL_BYTES = 3000

WRITE_CLASSES = "-XX:ArchiveClassesAtExit"
QUIET_CLASSES = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")

# On Java 17 the 4.9 broker refuses to open an existing store without these modules.
JAVA_OPTIONS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
# Small and quick to start, for tests; who measures gives options of its own.
# Without TLS: a server that nobody gave a certificate makes one at its start, which is two thirds of its work.
SMALL_JAVA = ("-Xms64m", "-Xmx384m", *builds.QUICK_JAVA, "-Dtls.server.mode=disabled")
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "600000",
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "cleanFileForciblyEnable": "false",
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceWarningLevelRatio": "100",
}
"""For tests: a log file of 1 GB is reserved as a whole, and brokers refuse messages on a disk that is rather full."""
FILES: dict[str, str] = {}
"""Keys that all brokers have: none in benchmarks; ``tests/conftest.py`` sets the small files of tests."""
APACHE_PATIENCE = {"osPageCacheBusyTimeOutMills": "20000", "brokerFastFailureEnable": "false"}
"""A busy test machine is slow: the real broker must not refuse requests as busy for that.

It does so with sends after 200 ms in its queue, and with pulls, tools' requests and others after 3 to 31 seconds.
"""
APACHE_5_QUIET = {
    "timerFlushIntervalMs": "3600000",
    "transactionOpBatchInterval": "86400000",
    "transactionOpMsgMaxSize": "1",
    "transactionMetricFlushInterval": "300",
}
"""Apache 5 would keep a processor busy with nothing to do.

TimerFlushService compares all 38 MB of its wheel every second; it also does so when it stops. Ends of transactions are
noted in batches of 3 seconds, and the thread of these (TransactionalOpBatchService) takes a whole processor from the
first batch on until the interval has passed that follows it. With these keys each end is noted at once, and after the
interval no test runs any more. TransactionMetricsFlushService takes a processor for its first interval of 10 seconds.
"""

LOGBACK = """<configuration><appender name="FILE" class="{package}ch.qos.logback.core.FileAppender"><file>{file}</file>
<encoder><pattern>%d %p %t %m%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="FILE"/></root></configuration>
"""


class System(Enum):
    """The maker of a nameserver or broker."""

    APACHE = "apache"
    """Apache RocketMQ 4.9, which CometMQ follows."""
    APACHE5 = "apache5"
    """Apache RocketMQ 5, for what 4.9 does not have."""
    APACHE55 = "apache55"
    """Apache RocketMQ 5.5, for what 5.1 does not have: ACL 2.0."""
    COMETMQ = "cometmq"

    @property
    def apache_version(self) -> str | None:
        """The version of Apache's servers."""
        return {System.APACHE: "4.9.7", System.APACHE5: "5.1.4", System.APACHE55: "5.5.0"}.get(self)

    @property
    def is_apache_5(self) -> bool:
        """True for each version of Apache RocketMQ 5."""
        return self in (System.APACHE5, System.APACHE55)


BOTH = (System.APACHE, System.COMETMQ)
"""The systems that everything of 4.9 is tried against."""


class Server:
    """One server process: starts when made ready by its functions below, is always stopped by `close`."""

    popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen
    """Starts the process; ``tests/conftest.py`` has those of this Python forked."""

    def __init__(self, name: str, system: System, directory: Path, port: int) -> None:
        self.name = name
        self.system = system
        self.directory = directory
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.started_with: tuple[list[str], dict[str, str]] = ([], {})
        """The command and the environment of the last start."""
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Start the process; its output is appended to a file in its directory.

        :raises RuntimeError: another program has its port, which would answer in its place.
        """
        if probe.port_open(self.address):
            raise RuntimeError(f"{self.system.value} {self.name}: another program listens at {self.address}")
        self.started_with = command, {**os.environ, **environment}
        with self._output.open("ab") as output:
            self._process = self.popen(
                command,
                cwd=self.directory,
                env=self.started_with[1],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, namesrv: str | None = None) -> None:
        """Wait until the port answers and, for a broker, until the nameservers list it (with semicolons between)."""

        def ready() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"{self.system.value} {self.name} ended while it started\n{self.logs()}")
            if not probe.port_open(self.address):
                return False
            if all(probe.broker_registered(one, self.address) for one in (namesrv or "").split(";") if one):
                return True
            if self.system.is_apache_5:
                probe.register_again(self.address)
            return False

        try:
            wait_for(ready, f"{self.system.value} {self.name} is ready", START_TIMEOUT_S)
        except TimeoutError as problem:
            self.close()
            raise TimeoutError(f"{problem}\n{self.logs()}") from None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop politely; RuntimeError with its logs if it does not end in time."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self.system.value} {self.name} did not stop\n{self.logs()}") from None
        self._process = None

    def kill(self) -> None:
        """SIGKILL to the process and its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it, if it still runs: CometMQ politely, so that a hanging shutdown shows, the real one at once."""
        if self.running and self.system is System.COMETMQ:
            self.stop()
        self.kill()

    def logs(self) -> str:
        """The ends of what it printed and logged."""
        files = [self._output, *sorted(self.directory.glob("*.log"))]
        return "\n".join(f"── {file}\n{_tail(file)}" for file in files if file.exists())

    @property
    def _output(self) -> Path:
        return self.directory / f"{self.name}.out"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def start_namesrv(
    system: System,
    directory: Path,
    port: int | None = None,
    java_options: Sequence[str] = SMALL_JAVA,
    options: Sequence[str] = (),
) -> Server:
    """Start a nameserver; its files are in `directory`, `options` more arguments of CometMQ's command."""
    directory.mkdir(parents=True, exist_ok=True)
    server = Server("namesrv", system, directory, port or free_port())
    if system.apache_version is not None:
        configuration = _write(directory / "namesrv.conf", {"listenPort": str(server.port)})
        server.launch(*_apache(system.apache_version, "namesrv", directory, ["-c", str(configuration)], java_options))
    else:
        kv_path = f"kvConfigPath={directory / 'namesrv' / 'kvConfig.json'}"
        command = [sys.executable, "-m", "cometmq", "namesrv", "-p", str(server.port), "-o", kv_path, *options]
        server.launch(command, {"HOME": str(directory)})
    server.wait_ready()
    return server


def start_controller(
    system: System, directory: Path, port: int | None = None, java_options: Sequence[str] = SMALL_JAVA
) -> Server:
    """Start Apache's controller alone, which elects the masters of brokers that know its address.

    :param system: a version of Apache RocketMQ 5.
    """
    directory.mkdir(parents=True, exist_ok=True)
    server = Server("controller", system, directory, port or free_port())
    keys = {
        "controllerDLegerGroup": "controllers",
        "controllerDLegerPeers": f"n0-{server.address}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(directory / "controller"),
    }
    arguments = ["-c", str(_write(directory / "controller.conf", keys))]
    assert system.apache_version is not None
    server.launch(*_apache(system.apache_version, "controller", directory, arguments, java_options))
    server.wait_ready()
    return server


def start_broker(
    system: System,
    directory: Path,
    namesrv: str,
    broker_conf: Mapping[str, str],
    port: int | None = None,
    java_options: Sequence[str] = SMALL_JAVA,
) -> Server:
    """Start a broker with its store in `directory/store`; `broker_conf` holds more of the file's keys."""
    directory.mkdir(parents=True, exist_ok=True)
    server = Server("broker", system, directory, port or free_port())
    keys = broker_keys(server, broker_conf)
    arguments = ["-n", namesrv, "-c", str(_write(directory / "broker.conf", keys))]
    if system.apache_version is not None:
        server.launch(*_apache(system.apache_version, "broker", directory, arguments, java_options))
    else:
        server.launch([sys.executable, "-m", "cometmq", "broker", *arguments], {"HOME": str(directory)})
    server.wait_ready(namesrv)
    return server


def broker_keys(server: Server, broker_conf: Mapping[str, str]) -> dict[str, str]:
    """The keys of a broker's file: what all need, what is quick and quiet in tests, and `broker_conf`."""
    store = server.directory / "store"
    role = {} if "failover" in broker_conf else {"brokerId": "0", "brokerRole": "ASYNC_MASTER"}  # else the set decides
    return {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(server.port),
        "haListenPort": str(server.port + 1),
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        **role,
        "flushDiskType": "ASYNC_FLUSH",
        **FILES,
        **(APACHE_PATIENCE if server.system.apache_version is not None else {}),
        **(APACHE_5_QUIET if server.system.is_apache_5 else {}),
        **broker_conf,
    }


@dataclass
class Deployment:
    """A nameserver and a broker, possibly of different systems; the broker can be stopped, killed and swapped."""

    namesrv: Server
    broker: Server
    settings: dict[str, str]
    slaves: list[Server] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The nameserver's address, which is what clients need."""
        return self.namesrv.address

    def start_again(self, system: System) -> None:
        """Start the (stopped) broker again on the same store and port, as one of this system."""
        self.broker = start_broker(system, self.broker.directory, self.namesrv.address, self.settings, self.broker.port)

    def logs(self) -> str:
        """The ends of both logs."""
        return f"{self.namesrv.logs()}\n{self.broker.logs()}"

    def close(self) -> None:
        """Stop both; the store goes."""
        self.broker.close()
        self.namesrv.close()
        shutil.rmtree(self.broker.directory / "store", ignore_errors=True)


def deploy(
    broker: System,
    directory: Path,
    namesrv: System | None = None,
    java_options: Sequence[str] = SMALL_JAVA,
    **broker_conf: str,
) -> Deployment:
    """Start a nameserver (of the same system unless told) and a broker."""
    with ExitStack() as undo:
        names = undo.enter_context(start_namesrv(namesrv or broker, directory / "namesrv", None, java_options))
        server = start_broker(broker, directory / "broker", names.address, broker_conf, None, java_options)
        undo.pop_all()
    return Deployment(names, server, broker_conf)


def _apache(
    version: str, name: str, directory: Path, arguments: list[str], java_options: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    jars = builds.apache_servers(version) / "lib"
    home = directory / "home"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    logback = home / "conf" / f"logback_{name}.xml"  # where 4.9 looks; 5 is told
    shaded = "org.apache.rocketmq.logging." if version >= "5.5" else ""
    logback.write_text(LOGBACK.format(file=directory / f"{name}.log", package=shaded))
    options = [*java_options, *JAVA_OPTIONS, f"-Duser.home={home}", f"-Drmq.logback.configurationFile={logback}"]
    if set(SMALL_JAVA) <= set(java_options) and not any(option.startswith(WRITE_CLASSES) for option in java_options):
        options += [f"-XX:SharedArchiveFile={_classes(version) / name}.jsa", *QUIET_CLASSES]
    main = f"org.apache.rocketmq.{name}.{name.capitalize()}Startup"
    return [builds.java(), *options, "-cp", f"{jars}/*", main, *arguments], {"ROCKETMQ_HOME": str(home)}


@cache
def _classes(version: str) -> Path:
    """Archives of the classes of both servers of a version (AppCDS), written by a run of each when it stops.

    With them a server works little more than half as much until it is ready. One that an archive does not suit does
    without it.
    """
    release = Path(builds.java()).resolve().parents[1] / "release"

    def make(target: Path) -> None:
        system = next(system for system in System if system.apache_version == version)
        names, broker = ((*SMALL_JAVA, f"{WRITE_CLASSES}={target / name}.jsa") for name in ("namesrv", "broker"))
        with TemporaryDirectory() as directory, start_namesrv(system, Path(directory) / "n", None, names) as namesrv:
            start_broker(system, Path(directory) / "b", namesrv.address, SMALL_FILES, None, broker).stop()
            namesrv.stop()

    jars = builds.apache_servers(version)  # the archives suit these very files
    sources = (jars / ".done", *([release] if release.exists() else ()))
    return builds.built(builds.Build(f"{jars.name}-classes", sources, make))


def _write(path: Path, keys: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return path


def _tail(file: Path) -> str:
    return file.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
