"""Apache RocketMQ with accounts and TLS: what its plain_acl.yml and its certificates say, and how to reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from tests.interop import systems
from tests.interop.access import verdicts
from tests.interop.systems import SMALL_JAVA, Deployment, System

from cometmq.client import Credentials, Tls

OPERATORS = Credentials("operators", "secret-of-operators")
BILLING = Credentials("billing-account", "secret-of-billing")
"""May send to and consume from Orders as group billing, may read ReadOnly, and nothing else."""

SEED = 20
"""Of the generated accounts and requests."""

PLAIN_ACL = """
globalWhiteRemoteAddresses: []
accounts:
- accessKey: operators
  secretKey: secret-of-operators
  admin: true
- accessKey: billing-account
  secretKey: secret-of-billing
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - Orders=PUB|SUB
  - ReadOnly=SUB
  groupPerms:
  - billing=SUB
  - cometmq_spark=SUB
  - cometmq_replay=SUB
"""


@dataclass(frozen=True)
class Secured:
    """A running nameserver and broker with accounts; both take plain text and TLS."""

    deployment: Deployment
    trust_cert_path: str
    cert_path: str
    key_path: str

    @property
    def address(self) -> str:
        return self.deployment.address

    @property
    def tls(self) -> Tls:
        """The TLS settings of these servers, which ask for a certificate."""
        return Tls(self.trust_cert_path, self.cert_path, self.key_path)


def deploy(system: System, directory: Path) -> Secured:
    """Start both; their certificates are of a new authority, and so is the clients'."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    for name in ("127.0.0.1", "client.example"):
        issued = authority.issue_cert(name)
        (directory / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        (directory / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    conf = directory / "broker" / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(PLAIN_ACL)
    (conf / "acl").mkdir()
    (conf / "acl" / "verdicts.yml").write_bytes(verdicts.accounts_file(SEED))
    paths = {"keyPath": "127.0.0.1.key", "certPath": "127.0.0.1.pem", "trustCertPath": "ca.pem"}
    keys: Mapping[str, str] = {
        "tls.test.mode.enable": "false",
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        **{f"tls.server.{key}": str(directory / file) for key, file in paths.items()},
    }
    file = directory / "tls.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    options = (*SMALL_JAVA, f"-Dtls.config.file={file}", "-Dtls.server.mode=permissive")
    deployment = systems.deploy(system, directory, java_options=options, aclEnable="true")
    ends = (str(directory / name) for name in ("ca.pem", "client.example.pem", "client.example.key"))
    return Secured(deployment, *ends)
