"""Sets up TLS and accounts for a test cluster: files, server keys and client credentials."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cometmq.auth.yaml_file import dump_yaml
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.remoting.tls.contexts import Tls
from cometmq.remoting.tls.own_authority import Authority

OPERATOR: Final = "cometmq-testing"
"""The account that the cluster's servers and clients use."""
_DAYS: Final = 3_650
"""Number of days for which the certificates are valid; TLS uses the real clock, which tests do not move."""


@dataclass(frozen=True)
class ClusterSecurity:
    """The keys for every server, and the credentials for a client with all permissions."""

    keys: Mapping[str, str]
    security: Security


def secure_cluster(
    directory: Path, hosts: Sequence[str], *, tls: bool, accounts: Sequence[Mapping[str, Any]] | None
) -> ClusterSecurity:
    """Write a cluster's security files. ``accounts`` are entries of ``plain_acl.yml``, or None to disable account
    checks.
    """
    keys: dict[str, str] = {}
    credentials: Credentials | None = None
    trusted: Tls | None = None
    directory = directory.absolute() / "security"
    if tls or accounts is not None:
        directory.mkdir(parents=True, exist_ok=True)
    if tls:
        authority = Authority.new("CometMQ test authority", _DAYS)
        server = authority.issue("CometMQ test server", hosts, _DAYS)
        ca, pair = str(directory / "ca.pem"), str(directory / "server.pem")
        Path(ca).write_bytes(authority.issued.certificate)
        _write_private(Path(pair), server.certificate + server.key)
        keys |= {"tls.server.mode": "enforcing", "tls.server.certPath": pair, "tls.test.mode.enable": "false"}
        keys |= {"tls.enable": "true", "tls.client.trustCertPath": ca}
        trusted = Tls(trust_cert_path=ca)
    if accounts is not None:
        credentials = Credentials(OPERATOR, secrets.token_hex(16))
        operator = {"accessKey": OPERATOR, "secretKey": credentials.secret_key}
        _write_private(
            directory / "plain_acl.yml", dump_yaml({"accounts": [operator | {"admin": True}, *map(dict, accounts)]})
        )
        _write_private(directory / "tools.yml", dump_yaml(operator))
        keys |= {"aclEnable": "true", "aclPath": str(directory)}
    return ClusterSecurity(keys, Security(credentials, trusted))


def _write_private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
