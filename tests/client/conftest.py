"""Systems to talk to: CometMQ and real Apache RocketMQ, each started once a session."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.helpers.waiting import answered
from tests.interop import builds, systems
from tests.interop.systems import Deployment, System

from cometmq.client import Admin
from cometmq.testing import Cluster, VirtualClock

_numbers = itertools.count(1)

SYSTEMS = [
    pytest.param(System.COMETMQ, id="cometmq"),
    pytest.param(System.APACHE, id="apache", marks=pytest.mark.interop),
]


def deploy(system: System, directory: object, **broker_conf: str) -> Deployment:
    """Start a nameserver and a broker, or skip where Java is missing (fail where nothing may be skipped)."""
    try:
        return systems.deploy(system, directory, **broker_conf)  # type: ignore[arg-type]
    except builds.ToolMissingError as problem:
        if os.environ.get("COMETMQ_REQUIRE_INTEROP") == "1":
            pytest.fail(str(problem))
        pytest.skip(str(problem))


@pytest.fixture(scope="session", params=SYSTEMS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A nameserver and a broker that all tests share; topics and groups are their own."""
    deployment = deploy(request.param, tmp_path_factory.mktemp("client"))
    yield deployment
    deployment.close()


@pytest.fixture(params=SYSTEMS)
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A nameserver and a broker for one test, which may kill them."""
    deployment = deploy(request.param, tmp_path_factory.mktemp("own"))
    yield deployment
    deployment.close()


@pytest.fixture
async def admin(server: Deployment) -> AsyncIterator[Admin]:
    async with Admin(server.address) as admin:
        yield admin


@pytest.fixture
async def topic(admin: Admin) -> str:
    """A new topic of four queues."""
    name = f"Client{os.getpid()}x{next(_numbers)}"
    await admin.create_topic(name, queues=4)
    return name


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    """A cluster in this process whose clock the test moves, with the topic ``orders`` of one queue."""
    async with Cluster(clock=clock) as cluster:
        await cluster.create_topic("orders", queues=1)
        yield cluster


@pytest.fixture
def group() -> str:
    """A new group's name."""
    return f"client-group-{os.getpid()}-{next(_numbers)}"


async def visible(address: str, topic: str, count: int) -> None:
    """Wait until the queues of a topic show so many messages: Apache's queues follow its log."""
    async with Admin(address) as admin:

        async def shown() -> bool:
            return sum(row.max_offset for row in (await admin.topic_stats(topic)).offset_table.values()) >= count

        await answered(shown)
