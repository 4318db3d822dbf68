"""Consumers are sent to one broker of a set, and slaves get the master's address."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Wire
from tests.namesrv.wire import Wire as NamesrvWire

from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.remoting.bodies import SubscriptionGroupConfig, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode


async def suggested(wire: Wire, **fields: object) -> int:
    """The broker id that a pull is sent to next."""
    answer = await wire.pull("T", **fields)
    return int(answer.ext_fields["suggestWhichBrokerId"])


@pytest.mark.parametrize(
    ("read_enable", "ratio", "offset", "expected"),
    [
        (False, 0, 0, 0),
        (True, 40, 0, 2),
        (True, 0, 0, 3),
        (True, 0, 5, 2),
    ],
    ids=["not enabled", "in memory", "not in memory", "nothing found"],
)
async def test_consumers_are_sent_where_their_group_says(
    start_broker: StartBroker, connect_to: ConnectTo, read_enable: bool, ratio: int, offset: int, expected: int
) -> None:
    wire = await connect_to(await start_broker(slave_read_enable=read_enable, access_message_in_memory_max_ratio=ratio))
    group = SubscriptionGroupConfig(group_name="consumers", broker_id=2, which_broker_when_consume_slowly=3)
    body = encode_body(group)
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == ResponseCode.SUCCESS
    await wire.send("T")
    assert await suggested(wire, queue_offset=offset) == expected


async def test_by_default_those_far_behind_go_to_the_first_slave_from_the_moment_it_is_switched_on(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    wire = await connect_to(await start_broker())
    await wire.send("T")
    assert await suggested(wire) == 0
    change = b"slaveReadEnable=true\naccessMessageInMemoryMaxRatio=0\n"
    assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=change)).code == ResponseCode.SUCCESS
    assert await suggested(wire) == 1


@pytest.mark.parametrize(("ip", "announced"), [("", "127.0.0.1"), ("127.0.0.9", "127.0.0.9"), ("[::1]", "[::1]")])
async def test_slaves_are_told_the_masters_address_for_them(
    start_broker: StartBroker, tmp_path: Path, ip: str, announced: str
) -> None:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    nameserver = NameServer(config)
    await nameserver.start()
    try:
        master = await start_broker(namesrv_addr=nameserver.address, broker_ip2=ip)
        port = int(nameserver.address.rpartition(":")[2])
        wire = NamesrvWire(*await asyncio.open_connection("127.0.0.1", port))
        answer = await wire.register(address="127.0.0.1:10921", broker_id=1)
        assert answer.ext_fields == {"masterAddr": master.address, "haServerAddr": f"{announced}:{master.ha.port}"}
        await wire.close()
    finally:
        await nameserver.stop()
