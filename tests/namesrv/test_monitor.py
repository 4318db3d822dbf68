"""A nameserver tells Prometheus of its brokers, topics and requests."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest
from tests.broker.conftest import small_config

from cometmq.broker.controller import Broker
from cometmq.client import AccessDeniedError, Admin
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing import VirtualClock


def read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
        return text


async def test_brokers_topics_and_requests_are_told(tmp_path: Path, clock: VirtualClock) -> None:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kv.json"),
        metrics_exporter_type="PROM",
        metrics_prom_exporter_port=0,
    )
    server = NameServer(config, clock=clock)
    await server.start()
    broker = Broker(small_config(tmp_path, namesrv_addr=server.address), clock=clock)
    await broker.start()
    assert server.monitor is not None
    node = f'node_id="{server.address}",node_type="nameserver"'
    text = await asyncio.to_thread(read, server.monitor.url)
    await broker.stop()
    await server.stop()
    assert 'cometmq_registered_brokers{broker_cluster="DefaultCluster",' in text
    assert 'request_code="register_broker",response_code="success"' in text
    assert node in text


def test_without_the_key_there_is_no_port(tmp_path: Path) -> None:
    assert NameServer(NamesrvConfig(listen_port=0, kv_config_path=str(tmp_path / "kv.json"))).monitor is None


async def test_denials_and_entries_of_the_audit_log_are_told(tmp_path: Path, clock: VirtualClock) -> None:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kv.json"),
        metrics_exporter_type="PROM",
        metrics_prom_exporter_port=0,
        authentication_enabled=True,
        init_authentication_user='{"username": "operators", "password": "secret-of-operators"}',
        audit_log_enable=True,
    )
    server = NameServer(config, clock=clock)
    await server.start()
    assert server.monitor is not None
    async with Admin(server.address) as stranger:
        with pytest.raises(AccessDeniedError):
            await stranger.topics()
    text = await asyncio.to_thread(read, server.monitor.url)
    await server.stop()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    (denied,) = (value for name, value in samples.items() if name.startswith("cometmq_access_denied_total"))
    assert int(denied) > 0
    assert any(name.startswith("cometmq_audit_entries_total") and 'outcome="lost"' in name for name in samples)
    assert any(name.startswith("cometmq_audit_waiting_bytes") for name in samples)
