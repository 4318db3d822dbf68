"""The systems that are compared: each is started fresh, makes topics, counts what it has, and is stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.clients.kafka_broker import KafkaBroker
from benchmarks.peers import wire
from benchmarks.servers import running
from tests.helpers.waiting import wait_for
from tests.interop import builds, probe
from tests.interop.systems import System

import cometmq
from cometmq.client.sync import SyncAdmin
from cometmq.testing import free_port

QUEUES: Final = 4
"""Queues, partitions or keys of a topic."""
NATS_VERSION: Final = "2.14.5"
KAFKA_VERSION: Final = "3.9.1"
START_S: Final = 60.0
RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin")
"""Where Debian's package puts the scripts that do not change the user."""
ASYNC_FLUSH: Final = {"flushDiskType": "ASYNC_FLUSH"}


@dataclass(frozen=True)
class Started:
    """One server that runs, with nothing stored."""

    pid: int
    port: int
    make: Callable[[str], None]
    """Makes a topic, if the load does not."""
    group: Callable[[str], None]
    """Makes the group that reads a topic, if the server needs it."""
    counts: Callable[[Sequence[str]], list[int]]
    """The number of messages that each topic has."""


@dataclass(frozen=True)
class Peer:
    """One system of the comparison."""

    key: str
    name: str
    version: Callable[[], str]
    """:raises ToolMissingError: it cannot be had here."""
    settings: str
    """What it promises at an acknowledgement, and what differs from its defaults."""
    start: Any
    """A context with a :class:`Started`."""
    java: bool = False
    """It is warmed first."""
    batches: bool = False
    """A producer can send several messages in one request."""
    joins: bool = False
    """Its producers do so by themselves when several messages wait."""
    pulls: int = 32
    """Most messages that a client of RocketMQ's protocol pulls at a time, by default."""
    remoting: bool = False
    """Its load is `mqload`, not `peerload`."""


def _nothing(_topic: str) -> None:
    """There is nothing to make."""


def _one_line(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return (done.stdout or done.stderr).splitlines()[0]


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cometmq-peers-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def _process(
    command: Sequence[str | Path], directory: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Start a server that is ready when its port answers; all its processes end with this context."""
    output = directory / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    def ready() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended: {output.read_text(errors='replace')[-2000:]}")
        return probe.port_open(f"127.0.0.1:{port}")

    try:
        wait_for(ready, f"{command[0]} is ready", START_S)
        yield process.pid
    finally:
        with suppress(ProcessLookupError):  # nothing of it is needed any more
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _rocketmq(system: System) -> Iterator[Started]:
    with running(system, ASYNC_FLUSH) as deployment, SyncAdmin(deployment.address) as admin:

        def counts(topics: Sequence[str]) -> list[int]:
            tables = [admin.topic_stats(f"{topic}0").offset_table for topic in topics]
            return [sum(queue.max_offset - queue.min_offset for queue in table.values()) for table in tables]

        yield Started(deployment.broker.pid, deployment.broker.port, _nothing, _nothing, counts)


@cache
def _nats_server() -> Path:
    go = builds.tool("go")

    def make(target: Path) -> None:
        environment = {**os.environ, "GOBIN": str(target), "GOFLAGS": "-mod=mod"}
        command = [go, "install", f"github.com/nats-io/nats-server/v2@v{NATS_VERSION}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=target)
        if done.returncode:
            raise builds.ToolMissingError(f"go does not bring nats-server {NATS_VERSION}: {done.stderr[-500:]}")

    return builds.built(builds.Build(f"nats-server-{NATS_VERSION}", (), make)) / "nats-server"


@contextmanager
def _nats() -> Iterator[Started]:
    port = free_port()
    with _directory() as directory:
        settings = directory / "nats.conf"
        settings.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}/store" }}\n')

        def make(topic: str) -> None:
            stream = {"name": topic, "subjects": [topic], "storage": "file", "num_replicas": 1, "discard": "old"}
            wire.nats(port, f"STREAM.CREATE.{topic}", stream | {"retention": "limits", "max_msgs": -1, "max_bytes": -1})

        def group(topic: str) -> None:
            config = {"durable_name": wire.GROUP, "ack_policy": "all", "max_ack_pending": -1, "deliver_policy": "all"}
            call = f"CONSUMER.DURABLE.CREATE.{topic}.{wire.GROUP}"
            wire.nats(port, call, {"stream_name": topic, "config": config})

        def counts(topics: Sequence[str]) -> list[int]:
            return [int(wire.nats(port, f"STREAM.INFO.{topic}")["state"]["messages"]) for topic in topics]

        with _process([_nats_server(), "-c", settings], directory, port) as pid:
            yield Started(pid, port, make, group, counts)


@contextmanager
def _redis() -> Iterator[Started]:
    port = free_port()
    with _directory() as directory:
        keys = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", "")

        def group(topic: str) -> None:
            for number in range(QUEUES):
                wire.redis(port, "XGROUP", "CREATE", f"{topic}{number}", wire.GROUP, "0")

        def counts(topics: Sequence[str]) -> list[int]:
            return [sum(int(wire.redis(port, "XLEN", f"{topic}{n}")) for n in range(QUEUES)) for topic in topics]

        command = [builds.redis_server(), *keys, "--appendonly", "yes", "--appendfsync", "everysec"]
        with _process(command, directory, port) as pid:
            yield Started(pid, port, _nothing, group, counts)


def _rabbitmq_version() -> str:
    found = sorted(RABBITMQ.parent.glob("lib/rabbitmq_server-*"))
    if not found:
        raise builds.ToolMissingError("rabbitmq-server is not installed")
    return found[-1].name.partition("-")[2]


@contextmanager
def _rabbitmq() -> Iterator[Started]:
    port, names = free_port(), free_port()
    with _directory() as directory:
        settings = directory / "rabbitmq.conf"
        settings.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
        plugins = directory / "plugins"
        plugins.write_text("[].\n")
        environment = {
            "HOME": str(directory),
            "RABBITMQ_NODENAME": f"peers{port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

        def counts(topics: Sequence[str]) -> list[int]:
            command = [str(RABBITMQ / "rabbitmqctl"), "--silent", "list_queues", "name", "messages"]
            merged = {**os.environ, **environment}
            done = subprocess.run(command, env=merged, capture_output=True, text=True, check=True)
            rows = dict(line.split("\t") for line in done.stdout.splitlines())
            return [sum(int(rows[f"{topic}{number}"]) for number in range(QUEUES)) for topic in topics]

        own = directory / "names"
        own.mkdir()
        epmd = [builds.tool("epmd"), "-address", "127.0.0.1", "-port", str(names)]
        # Erlang's name service: the server would start one that outlives it.
        with _process(epmd, own, names), _process([RABBITMQ / "rabbitmq-server"], directory, port, environment) as pid:
            yield Started(pid, port, _nothing, _nothing, counts)


@contextmanager
def _kafka() -> Iterator[Started]:
    with _directory() as directory:
        broker = KafkaBroker(directory / "kafka")
        port = int(broker.address.rpartition(":")[2])

        def make(topic: str) -> None:
            wire.kafka_create(port, topic, QUEUES)
            wait_for(lambda: wire.kafka_ends(port, topic, QUEUES) is not None, f"{topic} has leaders", START_S)

        def counts(topics: Sequence[str]) -> list[int]:
            return [sum(wire.kafka_ends(port, topic, QUEUES) or ()) for topic in topics]

        try:
            yield Started(broker.pid, port, make, _nothing, counts)
        finally:
            broker.stop()


def _redis_version() -> str:
    found = re.search(r"v=([\d.]+)", _one_line([builds.redis_server(), "--version"]))
    return found[1] if found else "of unknown version"


def _with_java(version: str) -> Callable[[], str]:
    def found() -> str:
        builds.java()
        return version

    return found


def _nats_version() -> str:
    return _one_line([_nats_server(), "--version"]).rpartition(" v")[2]


_ROCKETMQ: Final = "`ASYNC_FLUSH`, heap of 1 GB; pulls of 32, its client's default"
_OURS: Final = "`ASYNC_FLUSH`, compiled core; pulls of 1,024, its client's default"
_KAFKA: Final = "`acks=1`, KRaft, heap of 1 GB; reads of 1 MB; **messages in flight are joined into batches**"
_NATS: Final = "file store, `sync_interval` of 2 min; reads of 1,000, AckAll"
_REDIS: Final = "`appendfsync everysec`: **flushed each second**; keeps all in memory; reads of 256"
_RABBITMQ: Final = "durable queues, persistent messages, confirms: **flushed before they are acknowledged**"
PEERS: Final = (
    Peer(
        "cometmq",
        "CometMQ",
        lambda: cometmq.__version__,
        _OURS,
        lambda: _rocketmq(System.COMETMQ),
        pulls=1024,
        batches=True,
        remoting=True,
    ),
    Peer(
        "rocketmq4",
        "RocketMQ",
        _with_java("4.9.7"),
        _ROCKETMQ,
        lambda: _rocketmq(System.APACHE),
        java=True,
        batches=True,
        remoting=True,
    ),
    Peer(
        "rocketmq5",
        "RocketMQ",
        _with_java("5.5.0"),
        _ROCKETMQ,
        lambda: _rocketmq(System.APACHE55),
        java=True,
        batches=True,
        remoting=True,
    ),
    Peer("kafka", "Kafka", _with_java(KAFKA_VERSION), _KAFKA, _kafka, java=True, batches=True, joins=True),
    Peer("nats", "NATS JetStream", _nats_version, _NATS, _nats),
    Peer("redis", "Redis Streams", _redis_version, _REDIS, _redis),
    Peer("rabbitmq", "RabbitMQ", _rabbitmq_version, _RABBITMQ, _rabbitmq),
)
