"""``cometmq tls``: create TLS certificates for testing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import click

from cometmq.cli.local_path import LocalPath
from cometmq.message.hosts import own_ip
from cometmq.remoting.tls.contexts import TlsError
from cometmq.remoting.tls.own_authority import Authority, Issued


@click.group("tls")
def command() -> None:
    """Create TLS certificates for testing."""


@command.command("make-certificates")
@click.argument("directory", type=LocalPath(path_type=Path, file_okay=False))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME|IP",
    help="Host name or address of the servers. May be repeated.  [default: this machine's]",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    default=365,
    show_default=True,
    help="Number of days for which the certificates are valid.",
)
@click.option("--replace", is_flag=True, help="Replace the server and client certificates, but keep the authority.")
def make_certificates(directory: Path, hosts: tuple[str, ...], days: int, replace: bool) -> None:
    """Write certificates and tls.properties to DIRECTORY.

    Creates a certificate authority, one certificate for all servers and one for clients. If DIRECTORY already contains
    an authority, it issues the new certificates. Only the current user can read the keys. In production, use
    certificates from your own authority.
    """
    directory = directory.absolute()
    taken = [name for name in ("server.pem", "client.pem") if (directory / name).exists()]
    if taken and not replace:
        raise TlsError(f"{directory} already contains {' and '.join(taken)}", next_step="add --replace to replace them")
    authority = _authority(directory, days)
    named = hosts or tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), own_ip())))
    _write_pair(directory, "server", authority.issue("CometMQ server", named, days))
    _write_pair(directory, "client", authority.issue("CometMQ client", (), days))
    _write(directory / "tls.properties", _properties(directory).encode(), mode=0o644)
    click.echo(f"{directory}/ca.pem          the authority, for clients to trust")
    click.echo(f"{directory}/server.pem .key for nameservers and brokers at {', '.join(named)}")
    click.echo(f"{directory}/client.pem .key for clients, where servers ask for a certificate")
    click.echo(f"{directory}/tls.properties  start servers with -o tls.config.file={directory}/tls.properties")


def _authority(directory: Path, days: int) -> Authority:
    cert, key = directory / "ca.pem", directory / "ca.key"
    if cert.exists() and key.exists():
        return Authority.of(Issued(cert.read_bytes(), key.read_bytes()))
    authority = Authority.new("CometMQ authority", days)
    directory.mkdir(parents=True, exist_ok=True)
    _write_pair(directory, "ca", authority.issued)
    return authority


def _properties(directory: Path) -> str:
    return "".join(
        f"{key}={value}\n"
        for key, value in {
            "tls.test.mode.enable": "false",
            "tls.server.mode": "enforcing",
            "tls.server.certPath": directory / "server.pem",
            "tls.server.keyPath": directory / "server.key",
            "tls.enable": "true",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": directory / "ca.pem",
            "tls.client.certPath": directory / "client.pem",
            "tls.client.keyPath": directory / "client.key",
        }.items()
    )


def _write_pair(directory: Path, name: str, issued: Issued) -> None:
    _write(directory / f"{name}.key", issued.key, mode=0o600)
    _write(directory / f"{name}.pem", issued.certificate, mode=0o644)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Replace a file atomically, since servers may read it at the same time."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    beside.replace(path)
