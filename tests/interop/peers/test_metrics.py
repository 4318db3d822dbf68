"""The metrics of our broker and of Apache's 5.5.0, each asked over its own port after the same load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from tests.broker.metrics.metric_load import Shape, Target, loaded, read, shapes
from tests.interop.systems import Deployment, System

from cometmq.client.instance import ClientInstance
from cometmq.clock import SYSTEM_CLOCK
from cometmq.testing import free_port

pytestmark = pytest.mark.interop


async def shapes_of(deployment: Deployment, port: int) -> dict[str, Shape]:
    instance = partial(ClientInstance, deployment.address)
    async with loaded(Target(instance, deployment.broker.address, SYSTEM_CLOCK, asyncio.sleep)):
        return shapes(await read(f"http://127.0.0.1:{port}/metrics"))


async def test_both_ports_have_the_same_families(deploy: Callable[..., Deployment]) -> None:
    """Kind, unit, which is in the name, labels and bounds of all 45."""
    ports = {system: free_port() for system in (System.APACHE55, System.COMETMQ)}
    started = {
        system: deploy(system, metricsExporterType="PROM", metricsPromExporterPort=str(port))
        for system, port in ports.items()
    }
    apache, ours = await asyncio.gather(*(shapes_of(started[system], port) for system, port in ports.items()))
    del apache["target_info"]
    assert len(apache) == 45
    assert {name: shape for name, shape in ours.items() if name.startswith("rocketmq_")} == apache
