"""A set of real processes, which the cases of one file share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.failover.nemesis.engines import KUBERNETES
from tests.failover.nemesis.load import SHORT_PAUSE_S
from tests.failover.nemesis.members import RunningSet, running_set
from tests.failover.nemesis.story import Story
from tests.helpers.pace import slowness
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable


@pytest.fixture
def members(tmp_path: Path) -> Iterator[RunningSet]:
    """Three members, three nameservers and etcd."""
    try:
        with running_set(tmp_path / "set") as running:
            yield running
    except ToolMissingError as problem:
        unavailable(problem)


@pytest.fixture
def in_kubernetes(tmp_path: Path) -> Iterator[Story]:
    """A history of three members whose vote Kubernetes' leases keep."""
    with running_set(tmp_path / "set", engine=KUBERNETES) as running:
        yield Story(running, seed=1, pause_s=SHORT_PAUSE_S * min(slowness(), 3))


@pytest.fixture
def story(members: RunningSet) -> Story:
    """A history with these members, which the test tells and judges."""
    pause_s = SHORT_PAUSE_S * min(slowness(), 3)  # the load does not keep the members of a slow machine from their work
    return Story(members, seed=1, pause_s=pause_s)
