"""One cluster and one console for the tests of pages of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.helpers.consoles import Surfer, console_of

from cometmq.testing.sync import SyncCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster(2, broker_keys={"enablePropertyFilter": "true", "traceTopicEnable": "true"}) as running:
        yield running


@pytest.fixture(scope="module")
def surfer(cluster: SyncCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surfer]:
    """A visitor of a console that allows changes; its audit log is ``surfer.audit()``."""
    data = tmp_path_factory.mktemp("console")
    with console_of(cluster, data, allow_changes=True) as server:
        yield Surfer(server.url, data=data)


@pytest.fixture(scope="module")
def reader(cluster: SyncCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surfer]:
    """A visitor of a console that is read-only."""
    data = tmp_path_factory.mktemp("reading")
    with console_of(cluster, data) as server:
        yield Surfer(server.url, data=data)
