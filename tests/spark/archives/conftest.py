"""Catalogs of Iceberg tables, on real servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable
from tests.spark.archives.catalog_servers import KINDS, Lake, start_catalog


@pytest.fixture(scope="session")
def catalog_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lake]]:
    """Starts the server of a kind of catalog with the first call."""
    with ExitStack() as stack:
        started: dict[str, Lake] = {}

        def get(kind: str) -> Lake:
            if kind not in started:
                try:
                    started[kind] = stack.enter_context(start_catalog(kind, tmp_path_factory.mktemp(kind)))
                except ToolMissingError as problem:
                    unavailable(problem)
            return started[kind]

        yield get


@pytest.fixture
def sqlite(catalog_servers: Callable[[str], Lake]) -> Lake:
    """The quickest catalog, for what does not depend on the kind."""
    return catalog_servers("sqlite").named(f"shop.t{uuid.uuid4().hex}")


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, catalog_servers: Callable[[str], Lake]) -> Lake:
    """A catalog of each kind, and the name of a table that it does not have yet."""
    return catalog_servers(request.param).named(f"shop.t{uuid.uuid4().hex}")
