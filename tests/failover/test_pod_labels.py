"""The label ``cometmq.dev/role`` of pods, by which a Service finds the master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.failover.kubernetes_server import TOKEN, KubernetesServer, kubernetes
from tests.failover.test_engines import A, founded, presence
from tests.helpers.waiting import until

from cometmq.broker.failover.engines.kubernetes import KubernetesEngine, KubernetesOptions
from cometmq.testing import VirtualClock

ROLE = "cometmq.dev/role"


@pytest.fixture
async def server() -> AsyncIterator[KubernetesServer]:
    async with kubernetes() as running:
        running.pods = {"a": {"app": "mq"}, "b": {"app": "mq"}, "other": {"app": "mq"}}
        yield running


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(server: KubernetesServer, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[KubernetesEngine]:
    (tmp_path / "token").write_text(TOKEN)
    options = KubernetesOptions(server.endpoint, "mq", "DefaultCluster", "broker_a", str(tmp_path / "token"))
    engine = KubernetesEngine(options, clock=clock)
    yield engine
    await engine.close()


async def roles_are(server: KubernetesServer, **roles: str) -> None:
    await until(lambda: {name: labels[ROLE] for name, labels in server.pods.items() if ROLE in labels} == roles)


async def test_a_pod_has_the_role_of_its_member_and_keeps_its_other_labels(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await engine.announce(presence(A))
    await roles_are(server, a="slave")
    await engine.announce(presence(A, serves=2))
    await roles_are(server, a="master")
    await engine.announce(presence(A))
    await roles_are(server, a="slave")
    assert server.pods["a"] == {"app": "mq", ROLE: "slave"}


async def test_a_new_master_takes_the_label_of_one_that_is_cut_off(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    server.pods["b"][ROLE] = "master"
    await engine.swap(founded().with_replica("b", "10.0.0.2:10911", "10.0.0.2:10912"), "")
    await engine.read()
    await engine.announce(presence(A, serves=2))
    await roles_are(server, a="master", b="slave")


async def test_labels_are_written_once_and_again_after_some_time(
    server: KubernetesServer, engine: KubernetesEngine, clock: VirtualClock
) -> None:
    await engine.announce(presence(A, serves=2))
    await roles_are(server, a="master")
    server.pods["a"][ROLE] = "slave"  # by a request that was late
    for _ in range(5):
        await engine.announce(presence(A, serves=2))
    await roles_are(server, a="slave")
    assert server.requests.count("PATCH a") == 1
    clock.advance(30)
    await engine.announce(presence(A, serves=2))
    await roles_are(server, a="master")


async def test_a_label_that_cannot_be_written_delays_no_lease_and_is_logged_once(
    server: KubernetesServer, engine: KubernetesEngine, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    del server.pods["a"]
    for count in (1, 2, 3):
        await engine.announce(presence(A, serves=2))
        await until(lambda: server.requests.count("PATCH a") == count)  # noqa: B023
        await until(lambda: engine._labels._task is None or engine._labels._task.done())
        clock.advance(30)
    assert server.requests.count("PUT " + engine._lease_name("a")) == 2
    assert [record.message for record in caplog.records if "failoverMember" in record.message] == [
        "cannot label a pod with cometmq.dev/role, so a Service may not find the master: a: HTTP status 404. Set "
        "failoverMember to the pod's name, and give the service account the verb patch for pods in this namespace"
    ]
