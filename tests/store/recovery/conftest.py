"""Stores to damage, written once for each test module."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.recovery.damaged_stores import Written, write_store


@pytest.fixture(scope="module", params=["stopped", "killed"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_store(tmp_path_factory.mktemp("written") / "store", killed=request.param == "killed")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_store(tmp_path_factory.mktemp("stopped") / "store", killed=False)


@pytest.fixture(scope="module")
def stopped_files(stopped: Written) -> dict[Path, bytes]:
    """What is in the files of the stopped store that are not empty, by their place below its root."""
    files = sorted(path for path in stopped.root.rglob("*") if path.is_file() and path.stat().st_size)
    return {path.relative_to(stopped.root): path.read_bytes() for path in files}
