"""Addresses of both families, IPv4 mapped into IPv6, and with a zone: from the start to the id of a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.conftest import StartBroker
from tests.broker.wire import Wire
from tests.helpers.hosts import link_local
from tests.namesrv.wire import Wire as NamesrvWire

from cometmq.auth.addresses import canonical, parse_pattern
from cometmq.auth.quota.model import Subject
from cometmq.broker.controller import Broker
from cometmq.client import Admin, Message, Producer
from cometmq.client.errors import UnknownBrokerError
from cometmq.console.listening import listen
from cometmq.console.options import ConsoleOptions
from cometmq.message.hosts import encode_host, format_address, stored_ip
from cometmq.message.ids import offset_msg_id
from cometmq.message.listeners import parse_listeners
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing import free_port


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1", "0:0:0:0:0:FFFF:7f00:1", "[::1]", "a zone"])
def host(request: pytest.FixtureRequest) -> str:
    found = link_local() if request.param == "a zone" else str(request.param)
    if not found:
        pytest.skip("this machine has no link-local address")
    return found


@pytest.fixture
async def nameserver(host: str, tmp_path: Path) -> AsyncIterator[NameServer]:
    bare = host.strip("[]")
    running = NameServer(NamesrvConfig(listen_port=0, bind_address=bare, kv_config_path=str(tmp_path / "kv.json")))
    await running.start()
    yield running
    await running.stop()


async def test_a_message_is_found_by_its_id_at_a_broker_of_any_address(
    start_broker: StartBroker, nameserver: NameServer, host: str
) -> None:
    bare = host.strip("[]")
    namesrv = format_address(bare, nameserver.port)
    broker = await start_broker(
        bind_address=bare, broker_ip1=host, namesrv_addr=namesrv, listen_port=free_port("127.0.0.1"), grpc_server_port=0
    )
    async with Producer("hosts", namesrv) as producer, Admin(namesrv) as admin:
        sent = await producer.send(Message("Orders", b"found", keys=["k"]))
        found = await admin.message_by_id(sent.offset_msg_id)
        assert (found.body, found.store_host) == (b"found", format_address(stored_ip(bare) or "", broker.server.port))
        [brokers] = (await admin.cluster_info()).broker_addr_table.values()
        [address] = brokers.broker_addrs.values()
    assert len(sent.offset_msg_id) == (32 if "127" in address else 56)
    assert address == broker.address
    assert ("%" in address) == ("%" in host), "clients need the zone to connect"


@pytest.mark.parametrize("form", ["[::ffff:127.0.0.1]:{}", "::ffff:127.0.0.1:{}", "[::FFFF:7f00:1]:{}", "localhost:{}"])
async def test_an_id_leads_to_a_broker_that_registers_its_address_in_another_form(
    broker: Broker, wire: Wire, tmp_path: Path, form: str
) -> None:
    msg_id = (await wire.send("Orders", b"found")).ext_fields["msgId"]
    kv = str(tmp_path / "kv.json")
    nameserver = NameServer(NamesrvConfig(listen_port=0, bind_address="::ffff:127.0.0.1", kv_config_path=kv))
    await nameserver.start()
    named = NamesrvWire(*await asyncio.open_connection("127.0.0.1", nameserver.port))
    try:
        assert (await named.register(address=form.format(broker.server.port))).code == 0
        async with Admin(f"[::ffff:127.0.0.1]:{nameserver.port}") as admin:
            assert (await admin.message_by_id(msg_id)).body == b"found"
            with pytest.raises(UnknownBrokerError):
                await admin.message_by_id(offset_msg_id(encode_host("127.0.0.2", broker.server.port), 0))
    finally:
        await named.close()
        await nameserver.stop()


@pytest.mark.parametrize(
    ("given", "registered"),
    [
        ({"broker_ip1": " ::ffff:127.0.0.1 "}, "127.0.0.1"),
        ({"advertised_listeners": "::ffff:127.0.0.1"}, "127.0.0.1"),
        ({"advertised_listeners": "[::ffff:127.0.0.1]"}, "127.0.0.1"),
        ({"broker_ip1": "::1", "broker_ip2": "[::ffff:127.0.0.1]"}, "[::1]"),
    ],
)
async def test_a_mapped_address_is_advertised_as_ipv4(
    start_broker: StartBroker, given: dict[str, str], registered: str
) -> None:
    broker = await start_broker(**given)
    assert broker.address == f"{registered}:{broker.server.port}"
    assert broker.config.broker_ip2 == "127.0.0.1"


@pytest.mark.parametrize("pattern", ["address:::ffff:127.0.0.1", "address:::ffff:127.0.0.0/104", "address:127.0.0.1"])
async def test_a_quota_of_a_mapped_address_is_one_of_ipv4(pattern: str) -> None:
    assert str(Subject.parse(pattern)) in ("address:127.0.0.1", "address:127.0.0.0/8")


def test_an_account_of_a_mapped_address_is_one_of_ipv4() -> None:
    assert parse_pattern("::ffff:10.0.0.1")(canonical("10.0.0.1"))
    assert parse_pattern("10.0.0.*")(canonical("::ffff:10.0.0.7"))
    assert parse_pattern("fe80::1")(canonical("fe80::1%eth0"))


def test_a_listener_of_mapped_networks_has_the_clients_of_ipv4() -> None:
    listeners = parse_listeners("vpn=::ffff:10.0.0.0/104,wire=fe80::/64")
    assert [listeners.of("", ip) for ip in ("10.1.2.3", "::ffff:10.1.2.3", "fe80::5%eth0", "11.0.0.1")] == [
        "vpn",
        "vpn",
        "wire",
        "",
    ]


def test_the_console_and_its_safety_know_mapped_addresses(tmp_path: Path) -> None:
    listening = listen("::ffff:127.0.0.1", 0)
    assert listening.getsockname()[0] == "127.0.0.1"
    listening.close()
    assert ConsoleOptions("", tmp_path, host="::ffff:127.0.0.1").is_local
    assert not ConsoleOptions("", tmp_path, host="::ffff:10.0.0.1").is_local
