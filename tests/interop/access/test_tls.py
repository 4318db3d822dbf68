"""Apache's clients over TLS at our servers, which the clients check; the broker takes nothing else."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop import systems
from tests.interop.clients import Client, Series, seen
from tests.interop.commands import CommandFailedError
from tests.interop.conftest import GetClient
from tests.interop.systems import System

from cometmq.client import Security, Tls
from cometmq.client.sync import SyncAdmin
from cometmq.remoting.errors import RemotingSendError

pytestmark = pytest.mark.interop

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Secured:
    """A nameserver that takes both, and a broker that takes TLS only and registers with it."""

    namesrv: str
    broker: str
    trust: str


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    make = [sys.executable, "-m", "cometmq", "tls", "make-certificates", str(directory), "--host", "127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True)
    file = f"tls.config.file={directory / 'tls.properties'}"
    both = ("-o", file, "-o", "tls.server.mode=permissive")
    with ExitStack() as running:
        names = running.enter_context(systems.start_namesrv(System.COMETMQ, directory / "namesrv", options=both))
        keys = dict([file.split("=", 1)])
        broker = running.enter_context(systems.start_broker(System.COMETMQ, directory / "broker", names.address, keys))
        yield Secured(names.address, broker.address, str(directory / "ca.pem"))


@pytest.fixture
def topic(servers: Secured) -> str:
    name = f"OverTls{next(_numbers)}"
    with SyncAdmin(servers.namesrv, security=Security(tls=Tls(servers.trust))) as admin:
        admin.create_topic(name, queues=2)
    return name


@pytest.mark.parametrize("name", ["java4", "java5"])
def test_java_sends_and_consumes(servers: Secured, topic: str, clients: GetClient, name: str) -> None:
    client = clients(name)
    series = Series(topic, 10, body_size=20_000)
    assert len(client.produce(servers.namesrv, series, tls=servers.trust)) == 10
    received = client.consume(servers.namesrv, topic, f"group-{topic}", 10, tls=servers.trust)
    assert seen(received) == sorted(series.expected())


def test_mqadmin_looks_at_the_cluster(servers: Secured, topic: str, java: Client) -> None:
    assert servers.broker in java.mqadmin(servers.namesrv, "clusterList", tls=servers.trust)
    changed = java.mqadmin(
        servers.namesrv, "updateTopic", "-b", servers.broker, "-t", topic, "-r", "4", tls=servers.trust
    )
    assert "success" in changed


def test_the_broker_takes_no_plain_text(servers: Secured) -> None:
    with SyncAdmin(servers.namesrv, security=Security()) as admin, pytest.raises(RemotingSendError):
        admin.runtime_info(servers.broker)


def test_java_refuses_a_server_of_another_authority(servers: Secured, topic: str, java: Client, tmp_path: Path) -> None:
    make = [sys.executable, "-m", "cometmq", "tls", "make-certificates", str(tmp_path)]
    subprocess.run(make, check=True, capture_output=True)
    with pytest.raises(CommandFailedError):
        java.produce(servers.namesrv, Series(topic), tls=tmp_path / "ca.pem")
