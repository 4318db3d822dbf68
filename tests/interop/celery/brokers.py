"""Brokers for Celery: Redis, RabbitMQ and CometMQ, each killed and started again on its own files."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.helpers.waiting import wait_for
from tests.interop import builds, probe
from tests.interop.systems import SMALL_JAVA, Deployment, System, deploy

import cometmq
from cometmq.testing import free_port

RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin")
"""Where Debian's package puts the scripts that do not change the user."""
START_S: Final = 90.0


class Program:
    """A server process that can be killed and started again with the same command."""

    def __init__(
        self,
        command: Sequence[str | Path],
        directory: Path,
        port: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._directory = directory
        self._port = port
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until its port answers."""
        output = self._directory / "output"
        with output.open("ab") as file:
            process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=self._environment,
            )
        self._process = process

        def ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{self._command[0]} ended: {output.read_text(errors='replace')[-2000:]}")
            return probe.port_open(f"127.0.0.1:{self._port}")

        wait_for(ready, f"{self._command[0]} is ready", START_S)

    def kill(self) -> None:
        """SIGKILL to the process and its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Broker(ABC):
    """One broker with its files in a directory of its own."""

    key: str
    settings: str
    """What it promises when it acknowledges a task, for tables."""
    url: str
    """For Celery."""

    @abstractmethod
    def version(self) -> str:
        """:raises ToolMissingError: it cannot be had here."""

    @abstractmethod
    def start(self) -> None:
        """Start it; the second time with the files of the first."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to it and its children."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process that has all others of the broker as children."""

    def transport_options(self, unseen_s: float | None = None) -> dict[str, Any]:
        """Celery's ``broker_transport_options``.

        :param unseen_s: how long a task of a dead worker is not delivered again, where the broker does not see that.
        """
        return {} if unseen_s is None else {"visibility_timeout": unseen_s}

    def close(self) -> None:
        """End it and what belongs to it."""
        self.kill()


class Redis(Broker):
    """Lists in Redis, with an append-only file."""

    key = "redis"
    settings = "`appendonly yes`, `appendfsync everysec`"

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        directory.mkdir(parents=True, exist_ok=True)
        keys = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(directory), "--save", "")
        more = ("--appendonly", "yes", "--appendfsync", "everysec")
        self._program = Program([builds.redis_server(), *keys, *more], directory, self.port)

    def version(self) -> str:
        """The server's."""
        done = subprocess.run([builds.redis_server(), "--version"], capture_output=True, text=True, check=True)
        found = re.search(r"v=([\d.]+)", done.stdout)
        return f"Redis {found[1] if found else 'of unknown version'}"

    def start(self) -> None:
        """Start it."""
        self._program.start()

    def kill(self) -> None:
        """SIGKILL."""
        self._program.kill()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._program.pid


class RabbitMQ(Broker):
    """A durable classic queue in RabbitMQ; messages are persistent and confirmed."""

    key = "rabbitmq"
    settings = "durable queue, persistent messages, `confirm_publish`"

    def __init__(self, directory: Path) -> None:
        self.version()
        port, names = free_port(), free_port()
        self.url = f"pyamqp://guest:guest@127.0.0.1:{port}//"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "names").mkdir()
        settings, plugins = directory / "rabbitmq.conf", directory / "plugins"
        settings.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
        plugins.write_text("[].\n")
        environment = {
            "HOME": str(directory),
            "RABBITMQ_NODENAME": f"celery{port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        # Erlang's name service: the server would start one that outlives it.
        epmd = [builds.tool("epmd"), "-address", "127.0.0.1", "-port", str(names)]
        self._names = Program(epmd, directory / "names", names)
        self._program = Program([RABBITMQ / "rabbitmq-server"], directory, port, environment)
        self._named = False

    def version(self) -> str:
        """The installed one's."""
        found = sorted(RABBITMQ.parent.glob("lib/rabbitmq_server-*"))
        if not found:
            raise builds.ToolMissingError("rabbitmq-server is not installed")
        return f"RabbitMQ {found[-1].name.partition('-')[2]}"

    def start(self) -> None:
        """Start it, with Erlang's name service before it."""
        if not self._named:
            self._names.start()
            self._named = True
        self._program.start()

    def kill(self) -> None:
        """SIGKILL to the server."""
        self._program.kill()

    def close(self) -> None:
        """End the name service too."""
        self._program.kill()
        self._names.kill()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._program.pid

    def transport_options(self, unseen_s: float | None = None) -> dict[str, Any]:
        """It sees that a worker is gone when the connection ends."""
        return {"confirm_publish": True}


class CometMQ(Broker):
    """CometMQ by its transport for Kombu."""

    key = "cometmq"
    settings = "`ASYNC_FLUSH`"
    system = System.COMETMQ

    def __init__(self, directory: Path, **keys: str) -> None:
        self._directory = directory
        self._keys = {"flushDiskType": "ASYNC_FLUSH", **keys}
        self._deployment: Deployment | None = None
        self.url = ""

    def version(self) -> str:
        """This tree's."""
        return f"CometMQ {cometmq.__version__}"

    @property
    def deployment(self) -> Deployment:
        """Its nameserver and broker, when it has been started once."""
        assert self._deployment is not None
        return self._deployment

    def start(self) -> None:
        """Start a nameserver and a broker, or the broker again."""
        if self._deployment is None:
            self._deployment = deploy(self.system, self._directory, None, SMALL_JAVA, **self._keys)
            self.url = f"cometmq://{self._deployment.address}"
        else:
            self._deployment.start_again(self.system)

    def kill(self) -> None:
        """SIGKILL to the broker; the nameserver lives."""
        if self._deployment is not None:
            self._deployment.broker.kill()

    def close(self) -> None:
        """End both."""
        if self._deployment is not None:
            self._deployment.close()

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self.deployment.broker.pid


class Apache(CometMQ):
    """Apache RocketMQ 5.5 by CometMQ's transport for Kombu."""

    key = "apache"
    system = System.APACHE55

    def version(self) -> str:
        """That of its jars."""
        return f"Apache RocketMQ {self.system.apache_version}"


BROKERS: Final[dict[str, Callable[[Path], Broker]]] = {
    "redis": Redis,
    "rabbitmq": RabbitMQ,
    "cometmq": CometMQ,
    "apache": Apache,
}


@contextmanager
def started(key: str, directory: Path) -> Iterator[Broker]:
    """A broker that runs on empty files; they are deleted at the end.

    :raises ToolMissingError: it cannot be had here.
    """
    broker = BROKERS[key](directory)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()
        shutil.rmtree(directory, ignore_errors=True)
