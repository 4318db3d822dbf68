"""Slaves of a master that checks accounts: the port of replication has no signatures of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.replication.slave import RawSlave
from tests.broker.test_access import ACCOUNTS, BILLING, OPERATORS, ask, make_topics, send
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.limits import SERVER_SECONDS
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock, settle


def write_accounts(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "plain_acl.yml").chmod(0o600)
    return {"acl_enable": True, "acl_path": str(tmp_path)}


async def test_a_log_is_copied_only_to_where_a_server_of_the_cluster_asks(
    start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, clock: VirtualClock
) -> None:
    master = await start_broker(**write_accounts(tmp_path))
    wire = await connect_to(master)
    for by in (None, BILLING):
        await ask(wire, by, RequestCode.GET_BROKER_RUNTIME_INFO)
        await ask(wire, by, RequestCode.GET_ALL_TOPIC_CONFIG)
        stranger = await RawSlave.connect(master)
        await stranger.report(0)
        assert (stranger.closed, stranger.transfers) == (True, [])
    assert (await ask(wire, OPERATORS, RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
    slave = await RawSlave.connect(master)
    await slave.report(0)
    assert not slave.closed
    slave.close()
    clock.advance(SERVER_SECONDS)
    await settle()
    late = await RawSlave.connect(master)
    await late.report(0)
    assert late.closed


async def test_a_slave_with_an_account_follows_its_master(tmp_path: Path, connect_to: ConnectTo) -> None:
    accounts = write_accounts(tmp_path)
    (tmp_path / "tools.yml").write_text("accessKey: operators\nsecretKey: secret-of-operators\n")
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"), **accounts
    )
    nameserver = NameServer(config)
    await nameserver.start()
    options = {"namesrv_addr": nameserver.address, **accounts}
    master = Broker(small_config(tmp_path / "master", **options))
    await master.start()
    slave = Broker(small_config(tmp_path / "slave", broker_role="SLAVE", broker_id=1, **options))
    await slave.start()
    wire = await connect_to(master)
    await make_topics(wire, "Orders")
    assert (await send(wire, BILLING, "Orders")).code == 0
    await until(lambda: slave.store.max_physical_offset == master.store.max_physical_offset)
    await until(lambda: slave.topics.get("Orders") is not None)
    for part in (slave, master, nameserver):
        await part.stop()
