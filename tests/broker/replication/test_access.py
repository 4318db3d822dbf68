"""Slaves of a master that checks accounts: they sign in on the port of replication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.broker.access.test_access import ACCOUNTS, BILLING, OPERATORS, ask, make_topics, send
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.replication.slave import RawSlave
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.replication.frames import SIGN_IN
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.signing import Credentials, Stamps
from cometmq.testing import VirtualClock


def write_accounts(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "plain_acl.yml").chmod(0o600)
    return {"acl_enable": True, "acl_path": str(tmp_path)}


def signed_in(by: Credentials, stamp: str | None, **fields: str) -> bytes:
    """The bytes by which a slave signs in."""
    command = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO, ext_fields=fields)
    by.sign(command, stamp)
    return SIGN_IN + command.encode()


async def is_refused(master: Broker, begin: bytes) -> bool:
    """Tell whether a slave that begins so gets nothing of the log."""
    slave = await RawSlave.connect(master)
    for at in range(0, len(begin), 50):
        await slave.write(begin[at : at + 50])
    await slave.report(0)
    refused = slave.closed
    assert refused is not bool(slave.transfers)
    slave.close()
    return refused


async def test_a_log_is_copied_only_to_a_slave_that_has_signed_in(
    start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, clock: VirtualClock
) -> None:
    master = await start_broker(**write_accounts(tmp_path))
    wire = await connect_to(master)
    await make_topics(wire, "Orders")
    assert (await send(wire, BILLING, "Orders")).code == 0
    assert (await ask(wire, OPERATORS, RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
    stamps = Stamps(clock.now_ms)
    good = signed_in(OPERATORS, stamps.next(), haReport="0")
    for begin in (
        b"",  # not signed, though a server of the cluster asks from the same address
        signed_in(BILLING, stamps.next(), haReport="0"),  # may not change the cluster
        signed_in(Credentials("operators", "wrong-secret"), stamps.next(), haReport="0"),
        signed_in(Credentials("nobody", "secret-of-operators"), stamps.next(), haReport="0"),
        signed_in(OPERATORS, None, haReport="0"),  # could be a repetition
        signed_in(OPERATORS, stamps.next()),  # any request of a slave, overheard on the other port
        good.replace(b'"haReport":"0"', b'"haReport":"7"'),
        good[:8] + b"\x7f\xff\xff\xff" + good[12:],
        good[:8] + b"\0\0\0\x08\0\0\0\x04nope",
        good[:8],
    ):
        assert await is_refused(master, begin), begin
    assert not await is_refused(master, good)
    assert await is_refused(master, good)  # overheard and sent again


async def test_a_slave_at_an_address_on_the_white_list_needs_no_signature(
    start_broker: StartBroker, tmp_path: Path, connect_to: ConnectTo
) -> None:
    options = write_accounts(tmp_path)
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("globalWhiteRemoteAddresses: [127.0.0.1]\n" + accounts.read_text())
    master = await start_broker(**options)
    wire = await connect_to(master)
    await make_topics(wire, "Orders")
    assert (await send(wire, None, "Orders")).code == 0
    assert not await is_refused(master, b"")


async def test_a_slave_that_cannot_sign_in_is_named_with_the_white_list_that_it_needs(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = await start_broker(**write_accounts(tmp_path))
    assert await is_refused(master, b"")
    assert "put 127.0.0.1 on globalWhiteRemoteAddresses" in caplog.text


async def test_a_slave_with_a_wrong_key_follows_nobody(tmp_path: Path) -> None:
    accounts = write_accounts(tmp_path)
    tools = tmp_path / "tools.yml"
    tools.write_text("accessKey: operators\nsecretKey: secret-of-operators\n")
    nameserver = NameServer(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"), **accounts)
    )
    await nameserver.start()
    options = {"namesrv_addr": nameserver.address, **accounts}
    master = Broker(small_config(tmp_path / "master", **options))
    await master.start()
    tools.write_text("accessKey: operators\nsecretKey: another-secret\n")
    plain = {"namesrv_addr": "", "ha_master_address": f"127.0.0.1:{master.ha.port}"}
    for number, more in enumerate((options, {**accounts, **plain}, plain), 1):
        config = small_config(tmp_path / f"slave{number}", broker_role="SLAVE", broker_id=number, **more)
        slave = Broker(config)
        await slave.start()
        follower = slave.slave.follower
        await until(lambda follower=follower: follower.trouble is not None)  # type: ignore[misc]
        assert slave.store.max_physical_offset == 0
        assert not master.ha.slaves
        await slave.stop()
    for part in (master, nameserver):
        await part.stop()


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
