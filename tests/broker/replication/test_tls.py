"""A nameserver, a master and its slave that speak nothing but TLS with certificates of clients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import trustme
from tests.broker.conftest import small_config

from cometmq.broker.controller import Broker
from cometmq.client import Message, Producer, Security, Tls
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing import VirtualClock, wait_until


def keys(directory: Path) -> dict[str, Any]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(directory / "all.pem")
    own, trust = str(directory / "all.pem"), str(directory / "ca.pem")
    return {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": own,
        "tls_server_need_client_auth": "require",
        "tls_server_auth_client": True,
        "tls_server_trust_cert_path": trust,
        "tls_enable": True,
        "tls_client_cert_path": own,
        "tls_client_trust_cert_path": trust,
    }


async def test_a_slave_follows_its_master_over_tls(tmp_path: Path, clock: VirtualClock) -> None:
    tls = keys(tmp_path)
    nameserver = NameServer(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"), **tls),
        clock=clock,
    )
    await nameserver.start()
    shared = tls | {"namesrv_addr": nameserver.address}
    master = Broker(small_config(tmp_path / "master", **shared), clock=clock)
    of_slave = shared | {"broker_role": "SLAVE", "broker_id": 1}
    slave = Broker(small_config(tmp_path / "slave", **of_slave), clock=clock)
    stranger = Broker(small_config(tmp_path / "stranger", **(of_slave | {"tls_client_cert_path": ""})), clock=clock)
    plain = Broker(small_config(tmp_path / "plain", broker_role="SLAVE", broker_id=2), clock=clock)
    try:
        await master.start()
        security = Security(tls=Tls(tls["tls_client_trust_cert_path"], tls["tls_client_cert_path"]))
        async with Producer("group", nameserver.address, security=security) as producer:
            await producer.send(Message("Orders", os.urandom(100_000)))
            await slave.start()
            await producer.send(Message("Orders", os.urandom(100_000)))
        assert await wait_until(
            clock, lambda: slave.store.max_physical_offset == master.store.max_physical_offset > 200_000, 60
        ), slave.slave.follower.trouble
        for refused in (stranger, plain):
            await refused.start()
            refused.slave.master.ha = f"127.0.0.1:{master.ha.port}"
            refused.slave.master.changed.set()
            assert await wait_until(clock, lambda one=refused: one.slave.follower.trouble is not None, 60)  # type: ignore[misc]
            assert refused.store.max_physical_offset == 0
        assert len(master.ha.slaves) == 1
    finally:
        for broker in (plain, stranger, slave, master):
            await broker.stop()
        await nameserver.stop()
