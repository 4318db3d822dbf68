"""Real clients and real mqadmin with accounts at our nameserver and broker, by ACL 1.0 and by ACL 2.0."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import small_config
from tests.helpers.waiting import wait_for
from tests.interop.clients import PATIENCE_S, Client, MqAdminFailedError, Series
from tests.interop.commands import CommandFailedError

from cometmq.broker.controller import Broker
from cometmq.client import Admin, Credentials, Security
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer

pytestmark = pytest.mark.interop

OPERATORS = {"access_key": "operators", "secret_key": "secret-of-operators"}
BILLING = {"access_key": "billing-account", "secret_key": "secret-of-billing"}
WRONG = {"access_key": "billing-account", "secret_key": "another-secret"}
ACCOUNTS = """
accounts:
- {accessKey: operators, secretKey: secret-of-operators, admin: true}
- accessKey: billing-account
  secretKey: secret-of-billing
  topicPerms: [Orders=PUB|SUB]
  groupPerms: [billing=SUB]
"""
USERS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username":"operators","password":"secret-of-operators"}',
}
INNER = '{"accessKey":"operators","secretKey":"secret-of-operators"}'


@asynccontextmanager
async def servers(directory: Path, **keys: Any) -> AsyncIterator[tuple[NameServer, Broker]]:
    """Both check accounts; the topics are Orders and Closed."""
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(directory / "kv.json"), **keys)
    nameserver = NameServer(config)
    await nameserver.start()
    inner = {"inner_client_authentication_credentials": INNER}
    broker = Broker(small_config(directory, namesrv_addr=nameserver.address, **inner, **keys))
    await broker.start()
    try:
        security = Security(Credentials("operators", "secret-of-operators"))
        async with Admin(nameserver.address, security=security) as admin:
            for topic in ("Orders", "Closed"):
                await admin.create_topic(topic, queues=2)
        yield nameserver, broker
    finally:
        await broker.stop()
        await nameserver.stop()


def use_everything(client: Client, namesrv: str) -> None:
    """Send in every way and consume; other topics and wrong keys are refused."""
    sent = 0
    for mode in client.kind.send_modes:
        client.produce(namesrv, Series("Orders", 2, first=sent), mode, **BILLING)
        sent += 2
    received = client.consume(namesrv, "Orders", "billing", sent, **{"from": "first"}, **BILLING)
    assert len(received) == sent
    for topic, account in (("Closed", BILLING), ("Orders", WRONG)):
        with pytest.raises((CommandFailedError, AssertionError)) as refused:
            client.produce(namesrv, Series(topic), **account)
        assert "another-secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["java4", "java4-binary", "java5", "go"])
async def test_real_clients_with_accounts_of_acl_1(clients: Callable[[str], Client], tmp_path: Path, name: str) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "plain_acl.yml").chmod(0o600)
    async with servers(tmp_path, acl_enable=True, acl_path=str(tmp_path)) as (nameserver, broker):
        await asyncio.to_thread(use_everything, clients(name), nameserver.address)
        assert broker.store.extent("Closed", 0)[1] == broker.store.extent("Closed", 1)[1] == 0


async def test_mqadmin_of_4_9_changes_accounts(clients: Callable[[str], Client], tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "plain_acl.yml").chmod(0o600)
    java = clients("java4")

    def work(namesrv: str, broker: str, known: Callable[[], Collection[str]]) -> None:
        at = ("-b", broker)
        java.mqadmin(
            namesrv,
            "updateAclConfig",
            *at,
            "-a",
            "fresh-account",
            "-s",
            "secret-of-fresh",
            "-t",
            "Orders=PUB",
            **OPERATORS,
        )
        wait_for(lambda: "fresh-account" in known(), "the nameserver has read the changed file", PATIENCE_S)
        java.produce(namesrv, Series("Orders"), access_key="fresh-account", secret_key="secret-of-fresh")
        listed = java.mqadmin(namesrv, "getAclConfig", *at, **OPERATORS)
        assert "fresh-account" in listed
        assert "secret-of" not in listed
        assert "broker-a" in java.mqadmin(namesrv, "clusterAclConfigVersion", *at, **OPERATORS)
        java.mqadmin(namesrv, "deleteAclConfig", *at, "-a", "fresh-account", **OPERATORS)
        with pytest.raises(MqAdminFailedError, match="Need admin permission"):
            java.mqadmin(namesrv, "deleteAclConfig", *at, "-a", "operators", **BILLING)

    async with servers(tmp_path, acl_enable=True, acl_path=str(tmp_path)) as (nameserver, broker):
        assert nameserver.access is not None
        assert nameserver.access.files is not None
        files = nameserver.access.files
        await asyncio.to_thread(work, nameserver.address, broker.address, lambda: files.rules.accounts)
        assert broker.access is not None
        assert broker.access.files is not None
        assert set(broker.access.files.rules.accounts) == {"operators", "billing-account"}


async def test_mqadmin_and_clients_of_5_3_with_users_and_policies(
    clients: Callable[[str], Client], tmp_path: Path
) -> None:
    java = clients("java5")

    def work(namesrv: str, broker: str) -> None:
        def admin(*words: str, **account: str) -> str:
            return java.mqadmin(namesrv, *words, "-b", broker, **(account or OPERATORS))

        admin("createUser", "-u", "billing-account", "-p", "secret-of-billing", "-t", "Normal")
        with pytest.raises((CommandFailedError, AssertionError)):
            java.produce(namesrv, Series("Orders"), **BILLING)
        admin("createAcl", "-s", "User:billing-account", "-r", "Topic:Ord*", "-a", "Pub,Sub,Get", "-d", "Allow")
        admin("createAcl", "-s", "User:billing-account", "-r", "Group:billing", "-a", "Sub", "-d", "Allow")
        use_everything(java, namesrv)
        users = admin("listUser")
        assert "billing-account" in users
        assert "secret-of" not in users
        assert "Topic:Ord*" in admin("listAcl", "-s", "User:billing-account")
        assert "Group:billing" in admin("getAcl", "-s", "User:billing-account")
        admin("updateAcl", "-s", "User:billing-account", "-r", "Topic:Ord*", "-a", "Pub", "-d", "Deny")
        with pytest.raises((CommandFailedError, AssertionError)):
            java.produce(namesrv, Series("Orders"), **BILLING)
        admin("deleteAcl", "-s", "User:billing-account", "-r", "Topic:Ord*")
        admin("updateUser", "-u", "billing-account", "-s", "disable")
        admin("deleteUser", "-u", "billing-account")
        assert "billing-account" not in admin("listUser")

    async with servers(tmp_path, **USERS) as (nameserver, broker):
        assert nameserver.access is not None
        assert nameserver.access.users is not None
        nameserver.access.users.create("billing-account", "secret-of-billing", "Super")  # the nameserver's own users
        await asyncio.to_thread(work, nameserver.address, broker.address)
