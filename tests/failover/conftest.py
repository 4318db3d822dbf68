"""Engines of all kinds: the one in memory, real clusters of etcd, and leases of Kubernetes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from tests.failover.etcd_servers import EtcdCluster, etcd
from tests.failover.kubernetes_server import TOKEN, kubernetes
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable

from cometmq.broker.failover.engines.etcd import EtcdEngine, EtcdOptions
from cometmq.broker.failover.engines.interface import Engine
from cometmq.broker.failover.engines.kubernetes import KubernetesEngine, KubernetesOptions
from cometmq.broker.failover.engines.memory import MemoryEngine, MemoryStore

LEASE_S = 2.0
KINDS = ("memory", "etcd-1", "etcd-3", "kubernetes")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], EtcdCluster]]:
    """A cluster of etcd with one or three members, which starts with the first call."""
    with ExitStack() as stack:
        running: dict[int, EtcdCluster] = {}

        def get(count: int) -> EtcdCluster:
            if count not in running:
                try:
                    running[count] = stack.enter_context(etcd(tmp_path_factory.mktemp("etcd"), count))
                except ToolMissingError as problem:
                    unavailable(problem)
            return running[count]

        yield get


@pytest.fixture(params=KINDS)
async def connect(
    request: pytest.FixtureRequest, clusters: Callable[[int], EtcdCluster], tmp_path: Path
) -> AsyncIterator[Callable[[], Engine]]:
    """Opens connections to one new set, in an engine of each kind."""
    opened: list[Engine] = []
    (tmp_path / "token").write_text(TOKEN)
    stack = AsyncExitStack()
    api = await stack.enter_async_context(kubernetes())
    set_name = f"set-{next(_numbers)}"
    store = MemoryStore()

    def get() -> Engine:
        engine: Engine
        if request.param == "memory":
            engine = MemoryEngine(store, lease_s=LEASE_S)
        elif request.param == "kubernetes":
            token_file = str(tmp_path / "token")
            options = KubernetesOptions(api.endpoint, "mq", "Tests", set_name, token_file, lease_s=LEASE_S)
            engine = KubernetesEngine(options)
        else:
            endpoints = clusters(int(request.param[-1])).endpoints
            engine = EtcdEngine(EtcdOptions(endpoints, "tests", set_name, lease_s=LEASE_S))
        opened.append(engine)
        return engine

    yield get
    for engine in opened:
        await engine.close()
    await stack.aclose()
