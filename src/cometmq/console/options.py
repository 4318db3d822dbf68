"""The options of a console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.console.origins import Origin
from cometmq.message.hosts import parsed_ip
from cometmq.paths import take_local_paths
from cometmq.remoting.security import PLAIN, Security

DEFAULT_CONSOLE_PORT: Final = 8080
_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


@dataclass(frozen=True)
class ConsoleOptions:
    """Options of a console: its address, its cluster, and the permissions of its visitors."""

    namesrv: str
    """The cluster's nameservers as ``host:port;host:port``."""
    data: Path
    """Directory with the console's users and its audit log."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_CONSOLE_PORT
    """Port of the console; 0 picks a free port."""
    allow_changes: bool = False
    """Let visitors without an account change things."""
    security: Security = PLAIN
    """The console's own account in the cluster, and TLS."""
    names: tuple[str, ...] = ()
    """Other host names of the console."""
    urls: tuple[Origin, ...] = ()
    """The public addresses of the console behind a proxy."""
    certificate: Path | None = None
    """PEM file with the certificate; if it is set, the console serves HTTPS."""
    key: Path | None = None
    reports: Path | None = None
    """Directory with the JSON reports of Spark jobs."""
    audit_logs: tuple[Path, ...] = ()
    """Audit logs of brokers: files, stores, or directories with stores."""

    def __post_init__(self) -> None:
        """Convert all paths to local ones.

        :raises PathError: a path has an unsupported scheme.
        """
        take_local_paths(self)

    @property
    def users_file(self) -> Path:
        """The file with the console's own users."""
        return self.data / "users.json"

    @property
    def audit_file(self) -> Path:
        """The console's own audit log."""
        return self.data / "audit.log"

    @property
    def ledgers(self) -> Path:
        """The directory of the ledgers of resent dead letters, one for each group."""
        return self.data / "resent"

    @property
    def is_local(self) -> bool:
        """Return whether only programs on this machine can reach the console."""
        if self.host in _NAMES:
            return True
        ip = parsed_ip(self.host)
        return ip is not None and ip.is_loopback
