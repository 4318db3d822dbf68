"""A broker that is started with the name and the id of another says so, and so do the doctor and the other one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.client import Admin
from cometmq.client.admin.cluster_health import examine_cluster
from cometmq.client.admin.finding import PROBLEM
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing import VirtualClock


async def problems(server: NameServer) -> list[str]:
    async with Admin(server.address) as admin:
        return [
            f"{finding.check}: {finding.found}"
            async for finding in examine_cluster(admin, [server.address])
            if finding.state == PROBLEM
        ]


async def test_the_second_broker_says_so_at_its_start_and_goes_on_saying_it(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    server = NameServer(config)
    await server.start()
    brokers = [Broker(small_config(tmp_path / name, namesrv_addr=server.address), clock=clock) for name in ("1", "2")]

    def told(address: str) -> int:
        return sum(f"another live broker, at {address}" in record.getMessage() for record in caplog.records)

    try:
        await brokers[0].start()
        assert await problems(server) == []
        await brokers[1].start()
        first, second = (broker.address for broker in brokers)
        assert (told(first), told(second)) == (1, 0)
        await until(lambda: told(first) > 1 and told(second) > 1, clock=clock)
        found = f"broker-a, id 0, is a single broker: {' and '.join(sorted((first, second)))} replace each other"
        assert any(found in problem for problem in await problems(server))
        await brokers[1].stop()
        await until(lambda: "no longer knows another broker with this name" in caplog.text, clock=clock)
        assert not any("displace" in problem for problem in await problems(server))
    finally:
        for broker in brokers:
            await broker.stop()
        await server.stop()
