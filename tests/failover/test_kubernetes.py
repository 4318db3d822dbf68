"""Kubernetes as the engine: its account, its names, and what is not a change. The other tests are ``test_engines``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.failover.kubernetes_server import TOKEN, KubernetesServer, kubernetes
from tests.failover.test_engines import A, B, founded, presence
from tests.helpers.waiting import until

from cometmq.broker.failover.document import DocumentError
from cometmq.broker.failover.engines.interface import EngineError
from cometmq.broker.failover.engines.kubernetes import KubernetesEngine, KubernetesOptions


@pytest.fixture
async def server() -> AsyncIterator[KubernetesServer]:
    async with kubernetes() as running:
        yield running


@pytest.fixture
async def engine(server: KubernetesServer, tmp_path: Path) -> AsyncIterator[KubernetesEngine]:
    (tmp_path / "token").write_text(TOKEN)
    engine = KubernetesEngine(
        KubernetesOptions(server.endpoint, "mq", "DefaultCluster", "broker_a", str(tmp_path / "token"), lease_s=2)
    )
    yield engine
    await engine.close()


async def test_leases_have_names_and_fields_that_operators_can_read(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    outcome = await engine.swap(founded(), "")
    await engine.swap(founded().elected(B, frozenset({B}), "b#1 was elected", 2), outcome.version)
    await engine.announce(presence(A))
    state, alive = server.leases.values()
    assert state["metadata"]["name"].startswith("cometmq-defaultcluster-broker-a-")
    assert alive["metadata"]["name"] == f"{state['metadata']['name']}-a"
    assert state["spec"] == {"holderIdentity": "b#1", "leaseTransitions": 2}
    assert alive["spec"]["leaseDurationSeconds"] == 2


def test_sets_whose_names_differ_in_case_have_different_leases() -> None:
    labels = {
        KubernetesOptions(KubernetesServer().endpoint, "mq", cluster, name).label
        for cluster in ("c", "C")
        for name in ("broker-a", "broker_a", "x" * 200, "x" * 201)
    }
    assert len(labels) == 8
    assert max(map(len, labels)) <= 63


async def test_no_update_is_unconditional(server: KubernetesServer, engine: KubernetesEngine) -> None:
    await engine.swap(founded(), "")
    assert not (await engine.swap(founded(), "")).is_done
    assert not (await engine.swap(founded().changed(frozenset({A, B}), "late", 1), "1")).is_done
    assert (await engine.read()).document == founded()


async def test_a_token_that_was_replaced_is_read_again(
    server: KubernetesServer, engine: KubernetesEngine, tmp_path: Path
) -> None:
    await engine.read()
    engine._token = "expired"
    with pytest.raises(EngineError, match="Unauthorized"):
        await engine.read()
    assert (await engine.read()).document is None


async def test_missing_rights_and_files_are_named(
    server: KubernetesServer, engine: KubernetesEngine, tmp_path: Path
) -> None:
    server.is_forbidden = True
    with pytest.raises(EngineError, match=r"leases is forbidden.*get, list, watch, create and update"):
        await engine.read()
    (tmp_path / "token").unlink()
    engine._token = ""
    with pytest.raises(EngineError, match="run the broker in a pod with a service account"):
        await engine.read()


async def test_an_annotation_that_was_edited_by_hand_is_refused(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await engine.swap(founded(), "")
    (lease,) = server.leases.values()
    lease["metadata"]["annotations"]["cometmq.dev/state"] = "{}"
    with pytest.raises(DocumentError, match="do not edit it by hand"):
        await engine.read()


async def test_renewals_are_not_told_as_changes(server: KubernetesServer, engine: KubernetesEngine) -> None:
    await engine.announce(presence(A))
    told = 0

    async def watch() -> None:
        nonlocal told
        async for _ in engine.changes():
            told += 1

    watching = asyncio.create_task(watch())
    try:
        await until(lambda: told >= 2)  # the watch has begun, and has shown the presence
        before = told
        for _ in range(5):
            await engine.announce(presence(A))
        await engine.announce(presence(A, serves=3))
        await until(lambda: told > before)
        assert told == before + 1
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
