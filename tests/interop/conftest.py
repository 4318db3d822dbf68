"""Fixtures: the real clients (each built and started once a session) and running systems to talk to."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.interop import builds, systems
from tests.interop.clients import KINDS, Client
from tests.interop.systems import Deployment, System

REQUIRE = "COMETMQ_REQUIRE_INTEROP"
SYSTEMS = "COMETMQ_INTEROP_SYSTEMS"

GetClient = Callable[[str], Client]

_numbers = itertools.count(1)


def unavailable(problem: builds.ToolMissingError) -> NoReturn:
    """Skip, or fail where the environment demands that nothing is skipped."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{problem} (and {REQUIRE}=1)")
    pytest.skip(f"{problem}; set {REQUIRE}=1 to make this a failure")


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GetClient]:
    """Gives a client by its name."""
    opened: dict[str, Client] = {}

    def get(name: str) -> Client:
        if name not in opened:
            try:
                opened[name] = Client(KINDS[name], tmp_path_factory.mktemp(f"client-{name}"))
            except builds.ToolMissingError as problem:
                unavailable(problem)
        return opened[name]

    yield get
    for client in opened.values():
        client.close()


@pytest.fixture(scope="session")
def java(clients: GetClient) -> Client:
    """The Java client of the version that CometMQ follows, also used to look from outside."""
    return clients("java4")


def wanted_systems() -> list[System]:
    """The systems that the clients are tried against: CometMQ, or those named in the environment."""
    return [System(name) for name in os.environ.get(SYSTEMS, "cometmq").split(",")]


@pytest.fixture(scope="session", params=wanted_systems(), ids=lambda system: system.value)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A nameserver and a broker of one system that all tests of a session share; topics and groups are their own."""
    deployment = _deploy(request.param, tmp_path_factory.mktemp(request.param.value))
    yield deployment
    deployment.close()


@pytest.fixture
def topic(cluster: Deployment, java: Client) -> str:
    """A new topic of four queues."""
    name = f"Interop{next(_numbers)}"
    java.create_topic(cluster.address, cluster.broker.address, name)
    return name


@pytest.fixture
def group() -> str:
    """A new group's name."""
    return f"interop-group-{next(_numbers)}"


@pytest.fixture
def deploy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Deployment]]:
    """Starts nameservers and brokers that only this test uses, and stops them after it."""
    deployments: list[Deployment] = []

    def start(broker: System, namesrv: System | None = None, **broker_conf: str) -> Deployment:
        deployments.append(_deploy(broker, tmp_path / f"deployment-{len(deployments)}", namesrv, **broker_conf))
        return deployments[-1]

    yield start
    for deployment in deployments:
        deployment.close()


def _deploy(broker: System, directory: Path, namesrv: System | None = None, **broker_conf: str) -> Deployment:
    try:
        return systems.deploy(broker, directory, namesrv, **broker_conf)
    except builds.ToolMissingError as problem:
        unavailable(problem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the servers' logs beside a failure."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Deployment):
                report.sections.append(("servers", value.logs()))
    return report
