"""The ports of the servers that ``cometmq serve`` runs, their options, and the processes that hold ports."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from cometmq.message.ports import (
    BROKER_PORT,
    CONSOLE_PORT,
    FAST_PORT_DISTANCE,
    GRPC_PORT,
    HA_PORT_DISTANCE,
    METRICS_PORT,
    NAMESRV_PORT,
)

PORTS_PER_BROKER: Final = 10
"""Distance between the ports of two brokers that `serve` runs. Each broker also uses two ports beside its own."""
MAX_PORT: Final = 65_535
_LISTENS: Final = "0A"
"""The state of a listening socket in ``/proc/net/tcp``."""
_INODE: Final = 9
"""The column with a socket's inode in ``/proc/net/tcp``."""
_OPTIONS: Final = (
    ("--port", BROKER_PORT, "Port of the first broker; 0 selects free ports."),
    ("--namesrv-port", NAMESRV_PORT, "Port of the nameserver; 0 selects a free port."),
    (
        "--metrics-port",
        METRICS_PORT - 1,
        "Nameserver's port for Prometheus and health checks; brokers use the next ports. 0 selects free ports.",
    ),
    ("--console-port", CONSOLE_PORT, "Port of the web console on this machine; 0 selects a free port."),
    ("--grpc-port", GRPC_PORT, "Port for RocketMQ 5 clients; 0 selects a free port."),
)
_WITH_BROKER: Final = frozenset({"--metrics-port", "--console-port", "--grpc-port"})
"""Options whose default is 0 with ``--port 0``."""


class Port(NamedTuple):
    """A port on which a server listens."""

    what: str
    number: int
    option: str
    """The option of the command that selects another port."""


@dataclass(frozen=True)
class ServePorts:
    """The ports of `serve`. 0 selects a free port; for None, there is no such server."""

    broker: int
    namesrv: int
    metrics: int | None
    console: int | None
    grpc: int | None

    def broker_port(self, number: int) -> int:
        """Return one broker's port. Port 0, which means a free port, remains 0."""
        return self.broker and self.broker + number * PORTS_PER_BROKER

    def metrics_port(self, number: int) -> int | None:
        """Return one server's port for metrics. Server 0 is the nameserver; brokers start at 1."""
        return self.metrics and self.metrics + number

    def listed(self) -> Iterator[Port]:
        """Yield each chosen port of a nameserver and a broker, with those that the servers derive from it."""
        derived = (
            Port("nameserver", self.namesrv, "--namesrv-port"),
            Port("broker", self.broker, "--port"),
            Port("broker for vipChannelEnabled", self.broker and self.broker - FAST_PORT_DISTANCE, "--port"),
            Port("broker for slaves", self.broker and self.broker + HA_PORT_DISTANCE, "--port"),
            Port("nameserver's metrics", self.metrics_port(0) or 0, "--metrics-port"),
            Port("broker's metrics", self.metrics_port(1) or 0, "--metrics-port"),
            Port("gRPC endpoint", self.grpc or 0, "--grpc-port"),
            Port("console", self.console or 0, "--console-port"),
        )
        return (port for port in derived if 0 < port.number <= MAX_PORT)


def port_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the port options of `serve` to a command, which gets them as its parameter ``ports``."""

    @functools.wraps(command)
    def with_ports(*args: Any, **given: Any) -> Any:
        chosen = {name: given.pop(name.removeprefix("--").replace("-", "_")) for name, _, _ in _OPTIONS}
        for name, default, _ in _OPTIONS:
            if chosen[name] is None:
                chosen[name] = default if chosen["--port"] else 0
        ports = ServePorts(
            broker=chosen["--port"],
            namesrv=chosen["--namesrv-port"],
            metrics=chosen["--metrics-port"],
            console=chosen["--console-port"],
            grpc=chosen["--grpc-port"],
        )
        return command(*args, ports=ports, **given)

    for name, default, words in reversed(_OPTIONS):
        depends = name in _WITH_BROKER
        with_ports = click.option(
            name,
            type=click.IntRange(0, MAX_PORT),
            default=None if depends else default,
            show_default=not depends,
            help=f"{words}  [default: {default}, or 0 with --port 0]" if depends else words,
        )(with_ports)
    return with_ports


def why_unusable(port: int) -> OSError | None:
    """Return the error of a server that listens on ``port``, or None if it could."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            return error
    return None


def holder_of(port: int) -> str | None:
    """Return the name and number of the process that listens on a port, or None if this user cannot see it.

    Only Linux lists sockets and their processes as files. The arguments of the process may be secret.
    """
    sockets = set(_listening_sockets(port))
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # the process of another user, or one that has just ended
            if any(_link_of(descriptor) in sockets for descriptor in (process / "fd").iterdir()):
                name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f"{name} (process {process.name})"
    return None


def _link_of(descriptor: Path) -> str:
    """Return the name of an open file or socket, or nothing once it is closed."""
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def _listening_sockets(port: int) -> Iterator[str]:
    """Yield the names of the sockets that listen on a port, as links in ``/proc`` spell them."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                row = line.split()
                if len(row) > _INODE and row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{row[_INODE]}]"
