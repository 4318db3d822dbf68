"""Java's clients through a failover: with a second broker, a handover fails no send, and all is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.failover.nemesis.members import CLUSTER, NAMES, RunningSet, running_set
from tests.helpers.waiting import wait_for
from tests.interop import builds
from tests.interop.clients import PATIENCE_S, Client, Series, seen
from tests.interop.conftest import unavailable

from cometmq.client.sync import SyncAdmin
from cometmq.testing.cluster_keys import HOST, SMALL_STORE
from cometmq.testing.ports import free_port
from cometmq.testing.processes import ServerProcess

pytestmark = pytest.mark.interop

COUNT = 3_000
BEFORE = 300
"""Messages that are acknowledged before the master goes."""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSet]:
    """A set of three members, and a broker without failover."""
    directory = tmp_path_factory.mktemp("failover")
    try:
        with running_set(directory / "set") as running:
            other = _other_broker(directory, running.namesrv_addresses)
            other.start()
            yield running
            other.kill()
    except builds.ToolMissingError as problem:
        unavailable(problem)


def _other_broker(directory: Path, namesrvs: list[str]) -> ServerProcess:
    keys = {
        **SMALL_STORE,
        "brokerClusterName": CLUSTER,
        "brokerName": "other",
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": str(free_port(HOST)),
        "namesrvAddr": ";".join(namesrvs),
        "storePathRootDir": str(directory / "other"),
    }
    words = [word for key, value in keys.items() for word in ("-o", f"{key}={value}")]
    return ServerProcess("other", ["broker", *words], directory / "other.log")


def until_in_sync(members: RunningSet) -> str:
    """Start the members that do not run, and wait until all are in sync; return the master's name."""
    for name in NAMES:
        members.start(name)
    wait_for(lambda: {one.name for one in members.in_sync()} == set(NAMES), "all members are in sync", PATIENCE_S)
    master = members.master()
    assert master is not None
    return master


@pytest.mark.parametrize("version", ["java4", "java5"])
def test_a_master_that_stops_fails_no_send_and_loses_nothing(
    members: RunningSet, clients: Callable[[str], Client], version: str
) -> None:
    """SIGTERM, as in a rolling upgrade. (After SIGKILL, Java 4 waits for the timeout of what it had sent.)"""
    java, namesrv, topic = clients(version), members.namesrv_addresses[0], f"Failover-{version}"
    old = until_in_sync(members)
    with SyncAdmin(namesrv) as admin:
        admin.create_topic(topic, queues=4)
    series = Series(topic, COUNT)
    sending = java.start_producing(namesrv, series)
    wait_for(lambda: len(sending.named("sent")) >= BEFORE, "the producer sends", PATIENCE_S)
    members.stop(old)
    sending.wait(PATIENCE_S)
    sent = sending.named("sent")
    assert len(sent) == COUNT
    assert {event["status"] for event in sent} == {"SEND_OK"}
    wait_for(lambda: members.master() not in (None, old), "another member is the master", PATIENCE_S)
    until_in_sync(members)
    assert set(seen(java.read_topic(namesrv, topic, COUNT))) >= set(series.expected())
