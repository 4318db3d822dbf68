"""A broker that its clients know by a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.conftest import StartBroker

from cometmq.client import Admin, Message, Producer
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.options import ConfigError


async def test_a_broker_is_registered_by_its_name_and_message_ids_have_its_address(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    kv = str(tmp_path / "kv.json")
    nameserver = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=kv))
    await nameserver.start()
    try:
        broker = await start_broker(broker_ip1="localhost", namesrv_addr=nameserver.address)
        async with Producer("by-name", nameserver.address) as producer, Admin(nameserver.address) as admin:
            sent = await producer.send(Message("Orders", b"by name"))
            assert broker.address.startswith("localhost:")
            [addresses] = (await admin.cluster_info()).broker_addr_table.values()
            assert list(addresses.broker_addrs.values()) == [broker.address]
            found = await admin.message_by_id(sent.offset_msg_id)
        assert (found.body, found.store_host) == (b"by name", f"127.0.0.1:{broker.server.port}")
    finally:
        await nameserver.stop()


async def test_a_name_without_an_address_ends_the_start_with_the_next_step(start_broker: StartBroker) -> None:
    with pytest.raises(ConfigError, match=r"brokerIP1=nowhere\.invalid cannot be resolved") as wrong:
        await start_broker(broker_ip1="nowhere.invalid")
    assert "a name that resolves" in (wrong.value.next_step or "")
