"""Members with a real etcd: a certificate that has expired, and a gateway that is off, on either side of a start.

A master that serves goes on while its in-sync set reports. A member that starts says what is wrong, and waits.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trustme
from tests.broker.member.sets import MemberSet, bodies, send, until
from tests.failover.etcd_servers import EtcdCluster, etcd
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable

from cometmq.broker.failover.states import State
from cometmq.broker.member.lives import LifeOptions
from cometmq.broker.member.set_member import SetMember
from cometmq.clock import SYSTEM_CLOCK
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing.cluster_keys import HOST

GATEWAY_IS_OFF = "--enable-grpc-gateway=false"


class EtcdSet(MemberSet):
    """A set whose engine is a real etcd."""

    async def start_with(
        self, name: str, options: LifeOptions, *, bootstraps: bool = False, **further: str
    ) -> SetMember:
        member = SetMember(self.config(name, **further), bootstraps=bootstraps, options=options)
        await member.start()
        self.members[name] = member
        return member

    @property
    def in_sync(self) -> set[str]:
        document = None if self.master is None else self.master.machine.view.document
        return set() if document is None else {member.name for member in document.in_sync}

    @property
    def troubles(self) -> list[str]:
        return [member.machine.view.trouble for member in self.members.values()]


@contextmanager
def running_etcd(directory: Path, flags: Sequence[str] = (), scheme: str = "http") -> Iterator[EtcdCluster]:
    try:
        with etcd(directory, 1, flags, scheme=scheme) as cluster:
            yield cluster
    except ToolMissingError as problem:
        unavailable(problem)


@asynccontextmanager
async def etcd_set(root: Path, cluster: EtcdCluster, **keys: str) -> AsyncIterator[EtcdSet]:
    """A pair in sync that has a message."""
    config = NamesrvConfig(listen_port=0, bind_address=HOST, kv_config_path=str(root / "kv.json"))
    namesrv = NameServer(config, clock=SYSTEM_CLOCK)
    await namesrv.start()
    members = EtcdSet(root, namesrv.address, {"etcdEndpoints": str(cluster.endpoints[0]), **keys})
    try:
        for name in ("a", "b"):
            await members.start(name)
        await until(lambda: members.in_sync == {"a", "b"}, 60)
        await send(members, b"before")
        yield members
    finally:
        for name in list(members.members):
            await members.stop(name)
        await namesrv.stop()


def restart(cluster: EtcdCluster, *, without: str = "", flag: str = "") -> None:
    """Start etcd again with another flag."""
    (member,) = cluster.members
    member.kill()
    command = [one for one in member._command if one != without]
    member._command = [*command, flag] if flag else command
    member.start()


def logged(caplog: pytest.LogCaptureFixture, *words: str) -> bool:
    return any(all(word in record.getMessage() for word in words) for record in caplog.records)


class Certificates:
    """The certificates of etcd and its clients, which a test lets expire and renews."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(self.file("ca.pem"))

    def file(self, name: str) -> str:
        return str(self._directory / name)

    def issue(self, name: str, *, days: int = 30) -> None:
        """Write a certificate that is valid for some more days; with a negative number it has expired."""
        now = datetime.datetime.now(datetime.UTC)
        issued = self._authority.issue_cert(
            HOST, not_before=now - datetime.timedelta(60), not_after=now + datetime.timedelta(days)
        )
        issued.private_key_pem.write_to_path(self.file(f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(self.file(f"{name}.pem"))

    @property
    def flags(self) -> tuple[str, ...]:
        served = ("--cert-file", self.file("server.pem"), "--key-file", self.file("server.key"))
        return (*served, "--client-cert-auth", "--trusted-ca-file", self.file("ca.pem"))

    @property
    def keys(self) -> dict[str, str]:
        return {
            "etcdCaFile": self.file("ca.pem"),
            "etcdCertFile": self.file("client.pem"),
            "etcdKeyFile": self.file("client.key"),
        }


@pytest.mark.parametrize(
    ("expires", "words"),
    [
        ("client", ("does not accept the certificate of this member", "renew the files of etcdCertFile")),
        ("server", ("the certificate of https://127.0.0.1", "expired", "renew the certificate of the engine's server")),
    ],
)
async def test_a_certificate_that_expires_stops_no_master_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, expires: str, words: tuple[str, ...]
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "tls").mkdir()
    certificates = Certificates(tmp_path / "tls")
    certificates.issue("server")
    certificates.issue("client")
    with running_etcd(tmp_path, certificates.flags, "https") as cluster:
        async with etcd_set(tmp_path, cluster, **certificates.keys) as members:
            master = members.master
            assert master is not None
            certificates.issue(expires, days=-1)
            restart(cluster)  # a new connection is needed
            await until(lambda: all(all(word in one for word in words) for one in members.troubles), 30)
            assert logged(caplog, "will retry, and change nothing until then", *words)
            await send(members, b"meanwhile")
            late = await members.start("c")
            await until(lambda: all(word in late.machine.view.trouble for word in words), 30)
            assert late.machine.state is State.STARTING
            assert master.machine.state is State.MASTER
            certificates.issue(expires)
            await until(lambda: members.in_sync == {"a", "b", "c"}, 60)
            await send(members, b"after")
            assert set(bodies(master)) == {b"before", b"meanwhile", b"after"}


async def test_a_gateway_that_is_off_stops_no_master_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    words = ("has no JSON gateway", "--enable-grpc-gateway=true")
    with running_etcd(tmp_path) as cluster:
        async with etcd_set(tmp_path, cluster) as members:
            master = members.master
            assert master is not None
            restart(cluster, flag=GATEWAY_IS_OFF)
            await until(lambda: all(all(word in one for word in words) for one in members.troubles), 30)
            assert logged(caplog, "will retry, and change nothing until then", *words)
            await send(members, b"meanwhile")
            late = await members.start("c")
            await until(lambda: all(word in late.machine.view.trouble for word in words), 30)
            assert late.machine.state is State.STARTING
            assert master.machine.state is State.MASTER
            restart(cluster, without=GATEWAY_IS_OFF)
            await until(lambda: members.in_sync == {"a", "b", "c"}, 60)
            await send(members, b"after")
            assert set(bodies(master)) == {b"before", b"meanwhile", b"after"}
