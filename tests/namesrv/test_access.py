"""A nameserver that checks accounts, and brokers with and without an account of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.conftest import small_config

from cometmq.broker.controller import Broker
from cometmq.client import AccessDeniedError, Admin, Credentials, Message, Producer, Security
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer

ACCOUNTS = """
accounts:
- accessKey: operators
  secretKey: secret-of-operators
  admin: true
- accessKey: billing-account
  secretKey: secret-of-billing
  topicPerms: [Orders=PUB]
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    directory = tmp_path / "conf"
    directory.mkdir()
    (directory / "plain_acl.yml").write_text(ACCOUNTS)
    (directory / "plain_acl.yml").chmod(0o600)
    return directory


async def test_brokers_and_administrators_need_an_admin_and_clients_a_permission_for_the_topic(
    conf: Path, tmp_path: Path
) -> None:
    nameserver = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(tmp_path / "kv"),
            acl_path=str(conf),
            acl_enable=True,
        )
    )
    await nameserver.start()
    options = {"namesrv_addr": nameserver.address, "acl_enable": True, "acl_path": str(conf)}
    stranger = Broker(small_config(tmp_path / "stranger", broker_name="stranger", namesrv_addr=nameserver.address))
    await stranger.start()
    (conf / "tools.yml").write_text("accessKey: operators\nsecretKey: secret-of-operators\n")
    broker = Broker(small_config(tmp_path / "broker", **options))
    await broker.start()
    operators = Security(Credentials("operators", "secret-of-operators"))
    billing = Security(Credentials("billing-account", "secret-of-billing"))
    async with Admin(nameserver.address, security=operators) as admin:
        await admin.create_topic("Orders")
        await admin.create_topic("Closed")
        assert nameserver.routes.cluster_info().broker_addr_table.keys() == {"broker-a"}
    async with Producer("billing-p", nameserver.address, security=billing) as producer:
        await producer.send(Message("Orders", b"x"))
        with pytest.raises(AccessDeniedError, match="topic:Closed"):
            await producer.send(Message("Closed", b"x"))
    async with Admin(nameserver.address, security=billing) as admin:
        with pytest.raises(AccessDeniedError, match="Need admin permission"):
            await admin.topics()
    for part in (broker, stranger, nameserver):
        await part.stop()
