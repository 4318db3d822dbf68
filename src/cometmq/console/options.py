"""The options for a console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.console.origins import Origin
from cometmq.message.hosts import parsed_ip
from cometmq.message.ports import CONSOLE_PORT
from cometmq.paths import take_local_paths
from cometmq.remoting.security import PLAIN, Security

_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


@dataclass(frozen=True)
class ConsoleOptions:
    """A console's options: its address, its cluster, and its visitors' permissions."""

    namesrv: str
    """Nameservers of the cluster, as ``host:port;host:port``."""
    data: Path
    """Directory with the console's users and its audit log."""
    host: str = "127.0.0.1"
    port: int = CONSOLE_PORT
    """Port of the console; 0 picks a free port."""
    allow_changes: bool = False
    """True to let visitors without an account make changes."""
    security: Security = PLAIN
    """The console's own account in the cluster, and the TLS settings."""
    names: tuple[str, ...] = ()
    """Additional host names of the console."""
    urls: tuple[Origin, ...] = ()
    """Public addresses of the console if it is behind a proxy."""
    certificate: Path | None = None
    """PEM file with the certificate. If it is set, the console serves HTTPS."""
    key: Path | None = None
    reports: Path | None = None
    """Directory that contains the JSON reports of Spark jobs."""
    audit_logs: tuple[Path, ...] = ()
    """Brokers' audit logs: files, stores, or directories that contain stores."""

    def __post_init__(self) -> None:
        """Convert all paths to local ones.

        :raises PathError: a path has an unsupported scheme.
        """
        take_local_paths(self)

    @property
    def users_file(self) -> Path:
        """Return the path of the file with the console's own users."""
        return self.data / "users.json"

    @property
    def audit_file(self) -> Path:
        """Return the path of the console's own audit log."""
        return self.data / "audit.log"

    @property
    def ledgers(self) -> Path:
        """Return the directory with the ledgers for resent dead letters, one per group."""
        return self.data / "resent"

    @property
    def is_local(self) -> bool:
        """Return True if only programs on this machine can reach the console."""
        if self.host in _NAMES:
            return True
        ip = parsed_ip(self.host)
        return ip is not None and ip.is_loopback
