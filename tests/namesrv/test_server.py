"""A running nameserver: connections, silence, compressed and broken registrations, order configurations."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import pytest
from tests.helpers.waiting import until
from tests.namesrv.wire import Connect, Wire, topic

from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.remoting.admin_headers import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    PutKVConfigRequestHeader,
)
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import GetRouteInfoRequestHeader
from cometmq.testing import VirtualClock


async def route(wire: Wire, name: str) -> RemotingCommand:
    return await wire.call(105, GetRouteInfoRequestHeader(topic=name))


async def test_a_closed_connection_takes_the_broker_out_at_once(server: NameServer, connect: Connect) -> None:
    broker, client = await connect(), await connect()
    await broker.register(topics=topic("T"))
    assert (await route(client, "T")).code == 0
    await broker.close()
    await until(lambda: server.routes.route("T") is None)
    assert (await route(client, "T")).code == 17


async def test_a_broker_silent_for_120_seconds_is_taken_out(
    server: NameServer, connect: Connect, clock: VirtualClock
) -> None:
    broker = await connect()
    await broker.register(topics=topic("T"))
    clock.advance(60)
    await broker.register(topics=topic("T"))
    clock.advance(115)
    assert server.routes.route("T") is not None
    clock.advance(16)
    assert server.routes.route("T") is None


async def test_two_nameservers_know_nothing_of_each_other(
    server: NameServer, connect: Connect, clock: VirtualClock, tmp_path: Path
) -> None:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "other.json"))
    other = NameServer(config, clock=clock)
    await other.start()
    broker = await connect()
    await broker.register(topics=topic("T"))
    assert server.routes.topics() == ["T"]
    assert other.routes.topics() == []
    await other.stop()


async def test_a_compressed_registration_says_the_same(server: NameServer, connect: Connect) -> None:
    broker = await connect()
    answer = await broker.register(topics={**topic("A", queues=3, perm=7), **topic("B")}, compressed=True)
    assert answer.code == 0
    found = server.routes.route("A")
    assert found is not None
    assert (found.queue_datas[0].write_queue_nums, found.queue_datas[0].perm) == (3, 7)


@pytest.mark.parametrize(
    ("body", "compressed"),
    [
        (b"not json", False),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}', False),
        (b"not zlib", True),
        (zlib.compress(b"\x7f\xff\xff\xff"), True),
        (zlib.compress(b"\x00\x00\x00\x02{}\x7f\xff\xff\xff\x00"), True),
        (zlib.compress(b"\x00\x00\x00\x02{}\x00\x00\x00\x01\x00\x00\x00\x03T 1"), True),
        (zlib.compress(bytes(70 * 1024 * 1024), 1), True),
    ],
)
async def test_a_broken_registration_is_refused_with_words(
    server: NameServer, connect: Connect, body: bytes, compressed: bool
) -> None:
    broker = await connect()
    answer = await broker.register(body=body, compressed=compressed)
    assert answer.code == 1
    assert answer.remark
    assert server.routes.cluster_info().broker_addr_table == {}
    assert (await broker.register(topics=topic("T"))).code == 0


async def test_a_checksum_that_does_not_match_is_refused(connect: Connect) -> None:
    broker = await connect()
    body = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": {"counter": 1, "timestamp": 1}}}).encode()
    assert (await broker.register(body=body, crc=5)).remark == "crc32 not match"
    assert (await broker.register(body=body, crc=zlib.crc32(body) & 0x7FFF_FFFF)).code == 0


async def test_a_slave_is_told_where_its_master_is(connect: Connect) -> None:
    master, slave = await connect(), await connect()
    await master.register(topics=topic("T"), ha="127.0.0.1:10912")
    answer = await slave.register(address="127.0.0.1:10921", broker_id=1)
    assert answer.ext_fields == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}


async def test_order_configurations_reach_brokers_and_with_the_option_clients(connect: Connect) -> None:
    wire = await connect()
    put = PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    await wire.call(100, put)
    answer = await wire.register(topics=topic("T"))
    assert json.loads(answer.body) == {"table": {"T": "broker-a:4"}}
    assert b"orderTopicConf" not in (await route(wire, "T")).body
    assert (await wire.call(318, body=b"orderMessageEnable=true\n")).code == 0
    assert json.loads((await route(wire, "T")).body)["orderTopicConf"] == "broker-a:4"


async def test_kv_configuration_survives_a_restart(server: NameServer, connect: Connect, tmp_path: Path) -> None:
    wire = await connect()
    put = PutKVConfigRequestHeader(namespace="N", key="k", value="v 1=ü")
    assert (await wire.call(100, put)).code == 0
    file = tmp_path / "namesrv" / "kvConfig.json"
    assert json.loads(file.read_text(encoding="utf-8")) == {"configTable": {"N": {"k": "v 1=ü"}}}
    again = NameServer(server.config)
    assert again.kv.get("N", "k") == "v 1=ü"
    assert (await wire.call(102, DeleteKVConfigRequestHeader(namespace="N", key="k"))).code == 0
    assert (await wire.call(101, GetKVConfigRequestHeader(namespace="N", key="k"))).code == 22


@pytest.mark.parametrize(
    ("namespace", "key", "value"), [("", "k", "v"), ("n", "", "v"), ("n" * 256, "k", "v"), ("n", "k", "v" * 65_537)]
)
async def test_kv_entries_have_limits(connect: Connect, namespace: str, key: str, value: str) -> None:
    wire = await connect()
    answer = await wire.call(100, PutKVConfigRequestHeader(namespace=namespace, key=key, value=value))
    assert answer.code == 1
    assert answer.remark


async def test_a_missing_field_is_named(connect: Connect) -> None:
    wire = await connect()
    answer = await wire.ask(RemotingCommand(code=105, opaque=3))
    assert answer.code == 1
    assert "topic" in (answer.remark or "")


async def test_bytes_that_are_no_frame_end_the_connection_and_not_the_server(
    server: NameServer, connect: Connect
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    assert (await route(await connect(), "T")).code == 17
