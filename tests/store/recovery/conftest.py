"""Stores to damage, written once for each test module."""

from __future__ import annotations

import pytest
from tests.store.recovery.damaged_stores import Written, write_store


@pytest.fixture(scope="module", params=["stopped", "killed"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_store(tmp_path_factory.mktemp("written") / "store", killed=request.param == "killed")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_store(tmp_path_factory.mktemp("stopped") / "store", killed=False)
