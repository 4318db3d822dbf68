"""The engine under faults is one register: reads and swaps of several members through relays to a real etcd."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.failover.checker.register import Call, check_documents, check_register
from tests.failover.etcd_servers import EtcdCluster, etcd
from tests.failover.nemesis.documents import all_documents
from tests.failover.test_engines import A, founded
from tests.helpers.pace import Patience
from tests.helpers.waiting import real_time
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable

from cometmq.broker.failover.document import Document
from cometmq.broker.failover.engines.etcd import EtcdEngine, EtcdOptions
from cometmq.broker.failover.engines.http_client import Endpoint
from cometmq.broker.failover.engines.interface import EngineError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.testing import Direction, Link

SECONDS = 6.0
LEAST_DONE = 20
CLIENTS = 3
KEY = "/cometmq/tests/register/state"


class Caller:
    """A member that reads and swaps through relays of its own, and writes its calls down."""

    def __init__(self, name: str, links: list[Link], calls: list[Call]) -> None:
        self.name = name
        self.links = links
        self._calls = calls

    async def run(self, goes_on: Callable[[], bool]) -> None:
        options = EtcdOptions(
            tuple(Endpoint("127.0.0.1", link.port, False) for link in self.links), "tests", "register"
        )
        engine = EtcdEngine(options)
        try:
            while goes_on():
                began = time.monotonic()
                try:
                    found = await engine.read()
                except EngineError:
                    continue
                self._calls.append(Call(self.name, began, time.monotonic(), found.version))
                if found.document is not None:
                    await self._swap(engine, found.document, found.version)
                await real_time(random.uniform(0, 0.02))
        finally:
            await engine.close()

    async def _swap(self, engine: EtcdEngine, document: Document, version: str) -> None:
        after = document.changed(frozenset({A}), f"by {self.name}", 0)
        began, seen, is_done = time.monotonic(), None, False
        try:
            outcome = await engine.swap(after, version)
            seen, is_done = outcome.version, outcome.is_done
        except EngineError:
            pass
        self._calls.append(Call(self.name, began, time.monotonic(), seen, version, is_done))


@asynccontextmanager
async def links_to(cluster: EtcdCluster) -> AsyncIterator[list[Link]]:
    links = [Link(("127.0.0.1", 0), (one.host, one.port), clock=SYSTEM_CLOCK) for one in cluster.endpoints]
    for link in links:
        await link.start()
    yield links
    for link in links:
        await link.stop()


async def disturb(cluster: EtcdCluster, callers: list[Caller], goes_on: Callable[[], bool]) -> None:
    """Lose requests and answers of single members, and freeze etcd's leader now and then."""
    rng = random.Random(1)
    while goes_on():
        links = rng.choice(callers).links
        for link in links:
            link.drop(rng.choice([Direction.TO_SERVER, Direction.TO_CLIENT]))
        leader = cluster.members[await asyncio.to_thread(cluster.leader)] if rng.random() < 0.3 else None
        if leader is not None:
            leader.signal(signal.SIGSTOP)
        await real_time(rng.uniform(0.1, 1))
        if leader is not None:
            leader.signal(signal.SIGCONT)
        for link in links:
            link.restore()
            link.cut()
        await real_time(0.2)


@pytest.mark.crash
async def test_reads_and_swaps_are_those_of_one_register(tmp_path: Path) -> None:
    calls: list[Call] = []
    try:
        with etcd(tmp_path, 3) as cluster:
            await _run(cluster, calls)
            documents = await asyncio.to_thread(all_documents, cluster, KEY)
    except ToolMissingError as problem:
        unavailable(problem)
    assert check_register(calls, ["", *(version for version, _ in documents)]) == []
    assert check_documents([document for _, document in documents]) == []
    assert len(documents) > LEAST_DONE
    assert prove_something(calls)


def prove_something(calls: list[Call]) -> bool:
    """Tell whether there are swaps that landed, and some whose outcome is unknown."""
    return sum(call.is_done for call in calls) > LEAST_DONE and any(call.seen is None for call in calls)


async def _run(cluster: EtcdCluster, calls: list[Call]) -> None:
    first = EtcdEngine(EtcdOptions(cluster.endpoints, "tests", "register"))
    await first.swap(founded(), "")
    await first.close()
    ends, patience = time.monotonic() + SECONDS, Patience(10 * SECONDS)

    def goes_on() -> bool:
        return time.monotonic() < ends or not (prove_something(calls) or patience.is_over)

    async with links_to(cluster) as a, links_to(cluster) as b, links_to(cluster) as c:
        callers = [Caller(name, links, calls) for name, links in zip("abc", (a, b, c), strict=True)]
        await asyncio.gather(disturb(cluster, callers, goes_on), *(caller.run(goes_on) for caller in callers))
