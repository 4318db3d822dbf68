"""The storages of all kinds, on real servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable
from tests.storage.servers.azure import URL, azure
from tests.storage.servers.gcs import BUCKET, gcs
from tests.storage.servers.hdfs import hdfs
from tests.storage.servers.seaweed import S3Server, seaweed

from cometmq.storage import Storage, open_storage

KINDS = ("local", "s3", "gcs", "azure", "hdfs")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Storage]]:
    """Opens the storage of a kind; its server starts with the first call."""
    with ExitStack() as stack:
        opened: dict[str, Storage] = {}

        def start(kind: str) -> Storage:
            directory = tmp_path_factory.mktemp(kind)
            if kind == "local":
                return open_storage(directory)
            if kind == "s3":
                return open_storage("s3://lake", stack.enter_context(seaweed(directory)).options)
            if kind == "gcs":
                return open_storage(f"gs://{BUCKET}", stack.enter_context(gcs(directory)))
            if kind == "azure":
                return open_storage(URL, stack.enter_context(azure(directory)))
            return open_storage(stack.enter_context(hdfs(directory)))

        def get(kind: str) -> Storage:
            if kind not in opened:
                try:
                    opened[kind] = start(kind)
                except ToolMissingError as problem:
                    unavailable(problem)
            return opened[kind]

        yield get


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, servers: Callable[[str], Storage]) -> Storage:
    """An empty storage of each kind."""
    return servers(request.param).below(f"test-{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server for tests that need more than its storage."""
    with seaweed(Path(tmp_path_factory.mktemp("seaweed"))) as found:
        yield found
