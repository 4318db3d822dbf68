"""Runs a nameserver and brokers as processes that a test can kill at any moment."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, Self

from cometmq.errors import CometMQError
from cometmq.testing.cluster_keys import HOST, SMALL_STORE, keys_of_broker
from cometmq.testing.ports import free_port
from cometmq.testing.secured import secure_cluster

READY_MARK: Final = b" ready: "
"""Text in the line that a server prints when it is ready."""
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0
"""Time limits in seconds, generous because a machine under full load is slow."""
_SERVER: Final = """
import os, runpy, signal, threading

def end_with_the_starter():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=end_with_the_starter, daemon=True).start()
runpy.run_module("cometmq", run_name="__main__", alter_sys=True)
"""
"""``python -m cometmq`` with a thread that kills the server when its parent process ends.

That process holds the other end of the server's standard input, which is closed when the process ends for any reason.
"""


class ProcessFailedError(CometMQError):
    """A server did not start or stop; the error ends with the server's last output."""


class ServerProcess:
    """One ``python -m cometmq …`` server, which can be started, stopped and killed repeatedly."""

    popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen
    """The thread that starts the process."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = (sys.executable, "-c", _SERVER, *arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if the server is not running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start the server and wait until it is ready.

        :raises ProcessFailedError: the server ends first, or is not ready in time.
        """
        self._wait_ready(self.begin())

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the server, which may not be ready for a long time, such as one that waits for its peers."""
        assert self.pid is None, f"{self.name} is running"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = self.popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        return self._process

    def stop(self) -> None:
        """Stop the server cleanly.

        :raises ProcessFailedError: the server ended with an error, or did not end in time and was killed.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailedError(f"{self.name} did not stop in {STOP_SECONDS:g} s: {self.last_output()}") from None
        self._forget(process)
        if code != 0:
            raise ProcessFailedError(f"{self.name} stopped with exit code {code}: {self.last_output()}")

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._forget(process)

    def last_output(self) -> str:
        """Return the last lines that the server wrote to stderr."""
        return self.log.read_text(errors="replace")[-2000:].strip() if self.log.exists() else ""

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while READY_MARK not in said:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    raise ProcessFailedError(
                        f"{self.name} was not ready within {START_SECONDS:g} s: {self.last_output()}"
                    )
                chunk = os.read(process.stdout.fileno(), 4096)
                if not chunk:
                    code = process.wait()
                    self._forget(process)
                    raise ProcessFailedError(f"{self.name} ended with exit code {code}: {self.last_output()}")
                said += chunk

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None


class ProcessCluster:
    """A nameserver and brokers as processes on free loopback ports; they end when this process ends.

    Use it as ``with ProcessCluster() as cluster:``; a coroutine calls its methods with ``asyncio.to_thread``, so that
    the event loop keeps running.

    :param brokers: number of brokers, each with its own store.
    :param slaves: number of slaves for each broker.
    :param data: directory for stores and logs, which is not deleted; by default a temporary directory.
    :param broker_keys: keys of ``broker.conf`` for every broker.
    :param tls: all servers accept only TLS.
    :param accounts: all servers check accounts; see :class:`~cometmq.testing.cluster.Cluster`.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        slaves: int = 0,
        data: Path | None = None,
        broker_keys: Mapping[str, str] | None = None,
        tls: bool = False,
        accounts: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._temporary = TemporaryDirectory(prefix="cometmq-") if data is None else None
        self.data = Path(self._temporary.name) if self._temporary is not None else data or Path()
        self._namesrv_port = free_port(HOST)
        self._ports = [free_port(HOST) for _ in range(brokers)]
        self._roots = [self.data / f"broker-{index}" for index in range(brokers)]
        self._slave_ports = {
            (index, number): free_port(HOST) for index in range(brokers) for number in range(1, slaves + 1)
        }
        self._slave_roots = {
            (index, number): self.data / f"broker-{index}-slave-{number}" for index, number in self._slave_ports
        }
        made = secure_cluster(self.data, (HOST,), tls=tls, accounts=accounts)
        self.security: Final = made.security
        """Credentials and TLS for a client with all permissions."""
        self._keys = {**SMALL_STORE, **made.keys, **(broker_keys or {})}
        further = [word for key, value in made.keys.items() for word in ("-o", f"{key}={value}")]
        kv_path = self.data / "namesrv" / "kvConfig.json"
        self.namesrv: Final = ServerProcess(
            "nameserver",
            ("namesrv", "-p", str(self._namesrv_port), "--host", HOST, "-o", f"kvConfigPath={kv_path}", *further),
            self.data / "namesrv.log",
        )
        self.brokers: Final = [self._broker(index) for index in range(brokers)]
        self.slaves: Final = {place: self._slave(*place) for place in self._slave_ports}
        """Slaves by broker index and slave number, which starts at 1."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            self._clean_up()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self.kill()
            self._clean_up()

    @property
    def namesrv_address(self) -> str:
        """``host:port`` for clients."""
        return f"{HOST}:{self._namesrv_port}"

    @property
    def broker_addresses(self) -> list[str]:
        """``host:port`` of each broker."""
        return [f"{HOST}:{port}" for port in self._ports]

    def store_root(self, index: int) -> Path:
        """The directory of a broker's store."""
        return self._roots[index]

    def start(self) -> None:
        """Start the nameserver, then all brokers and their slaves. They are registered when the call returns."""
        self.namesrv.start()
        for broker in (*self.brokers, *self.slaves.values()):
            broker.start()

    def stop(self) -> None:
        """Stop all processes cleanly."""
        for server in (*self.slaves.values(), *self.brokers, self.namesrv):
            server.stop()

    def kill(self) -> None:
        """Kill all processes."""
        for server in (*self.slaves.values(), *self.brokers, self.namesrv):
            server.kill()

    def kill_broker(self, index: int) -> None:
        """Kill one broker with SIGKILL."""
        self.brokers[index].kill()

    def start_broker(self, index: int) -> None:
        """Start a stopped or killed broker with its existing store and port, and wait until it is ready."""
        self.brokers[index].start()

    def restart_broker(self, index: int) -> None:
        """Stop a broker cleanly and start it again."""
        self.brokers[index].stop()
        self.brokers[index].start()

    def kill_slave(self, index: int = 0, number: int = 1) -> None:
        """Kill one slave with SIGKILL."""
        self.slaves[index, number].kill()

    def start_slave(self, index: int = 0, number: int = 1) -> None:
        """Start a stopped or killed slave with its existing store and port, and wait until it is ready."""
        self.slaves[index, number].start()

    def empty_slave(self, index: int = 0, number: int = 1) -> None:
        """Remove a stopped slave's store, so that the slave copies everything from its master when it starts."""
        assert self.slaves[index, number].pid is None, (
            f"slave {number} of broker {index} is still running; stop it first"
        )
        shutil.rmtree(self._slave_roots[index, number], ignore_errors=True)

    def promote_slave(self, index: int = 0, number: int = 1) -> None:
        """Promote a slave to replace a stopped or killed master.

        :meth:`start_slave` can then start the old master as the slave, on its store and port.
        """
        assert self.brokers[index].pid is None, f"broker {index} is still running; stop it first"
        place = index, number
        self.slaves[place].stop()
        self._ports[index], self._slave_ports[place] = self._slave_ports[place], self._ports[index]
        self._roots[index], self._slave_roots[place] = self._slave_roots[place], self._roots[index]
        self.brokers[index], self.slaves[place] = self._broker(index), self._slave(*place)
        self.brokers[index].start()

    def _clean_up(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def _broker(self, index: int) -> ServerProcess:
        return self._server(f"broker-{index}", index, self._ports[index], self._roots[index], {})

    def _slave(self, index: int, number: int) -> ServerProcess:
        role = {"brokerRole": "SLAVE", "brokerId": str(number)}
        port, root = self._slave_ports[index, number], self._slave_roots[index, number]
        return self._server(f"broker-{index}-slave-{number}", index, port, root, role)

    def _server(self, name: str, index: int, port: int, root: Path, role: Mapping[str, str]) -> ServerProcess:
        keys = {**keys_of_broker(index, port, root, self.namesrv_address), **self._keys, **role}
        options = [text for key, value in keys.items() for text in ("-o", f"{key}={value}")]
        return ServerProcess(name, ["broker", *options], self.data / f"{name}.log")
