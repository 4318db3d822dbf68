"""A cluster, connections of Kombu to it, and real Celery workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection
from tests.integrations.kombu.workers import Workers

import cometmq.integrations.kombu  # noqa: F401
from cometmq.testing import SyncCluster

Connect = Callable[..., Connection]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as running:
        yield running


@pytest.fixture
def connect(cluster: SyncCluster) -> Iterator[Connect]:
    """Opens connections that share nothing, as if each belonged to a process of its own."""
    opened: list[Connection] = []

    def connect(**options: Any) -> Connection:
        options = {"send_timeout": 5 + len(opened), "wait_time": 2, **options}
        connection = Connection(f"cometmq://{cluster.namesrv_address}", transport_options=options)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.release()


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect()


@pytest.fixture
def name() -> str:
    """The name of a queue that no other test has."""
    return f"queue-{next(_numbers)}"


@pytest.fixture
def workers(cluster: SyncCluster) -> Iterator[Workers]:
    with Workers(cluster.namesrv_address) as workers:
        yield workers
