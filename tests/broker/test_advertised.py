"""The addresses that clients get, inside and outside of a network, and the self-test that says when one is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.conftest import StartBroker, small_config
from tests.helpers.waiting import until
from tests.namesrv.wire import Wire

from cometmq.broker.advertised_check import hints
from cometmq.broker.config import BrokerConfig
from cometmq.broker.controller import Broker
from cometmq.client import Admin, Message, Producer
from cometmq.message.hosts import own_ip
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.options import ConfigError
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import VirtualClock, free_port
from cometmq.testing.link import Link


@pytest.fixture
async def nameserver(tmp_path: Path) -> AsyncIterator[NameServer]:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        listeners="outside=0,home=127.0.0.2/32",
        kv_config_path=str(tmp_path / "kv.json"),
    )
    server = NameServer(config)
    await server.start()
    yield server
    await server.stop()


async def test_clients_get_the_addresses_of_the_listener_at_which_they_ask(
    nameserver: NameServer, start_broker: StartBroker, clock: VirtualClock
) -> None:
    port = free_port()
    link = Link(("127.0.0.1", 0), ("127.0.0.1", port), clock=clock)
    await link.start()
    try:
        broker = await start_broker(
            listen_port=port,
            namesrv_addr=nameserver.address,
            advertised_listeners=f"localhost,outside=127.0.0.1:{link.port}",
        )
        outside = nameserver.listener_addresses["outside"]
        async with Producer("inside", nameserver.address) as producer:
            await producer.send(Message("Orders", b"inside"))
            assert broker.address == f"localhost:{port}"
            # The broker tries its own addresses and leaves; a producer that had come here would stay.
            await until(lambda: link.connections == 0)
        async with Producer("outside", outside) as producer, Admin(outside) as admin:
            await producer.send(Message("Orders", b"outside"))
            await until(lambda: link.connections == 1)  # it goes the way of the clients outside
            [data] = (await admin.cluster_info()).broker_addr_table.values()
            assert data.broker_addrs == {0: f"127.0.0.1:{link.port}"}
    finally:
        await link.stop()


async def test_a_client_is_known_by_its_network_and_gets_the_common_address_without_one_of_its_own(
    nameserver: NameServer, start_broker: StartBroker
) -> None:
    broker = await start_broker(namesrv_addr=nameserver.address, advertised_listeners="home=192.0.2.9:30911")
    routes, listeners = nameserver.routes, nameserver._requests.listeners
    for ip, address in (("127.0.0.2", "192.0.2.9:30911"), ("127.0.0.1", broker.address)):
        [data] = routes.cluster_info(listeners.of("", ip)).broker_addr_table.values()
        assert data.broker_addrs == {0: address}
    [data] = routes.cluster_info("outside").broker_addr_table.values()
    assert data.broker_addrs == {0: broker.address}


async def test_a_registration_with_wrong_addresses_is_refused(nameserver: NameServer) -> None:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", nameserver.port))
    fields = {
        "brokerName": "b",
        "brokerAddr": "h:1",
        "clusterName": "c",
        "haServerAddr": "",
        "brokerId": "0",
        "listenerAddrs": "outside=nowhere",
    }
    answer = await wire.ask(RemotingCommand(code=103, opaque=1, ext_fields=fields))
    assert answer.code == 1
    assert "needs a name and a port" in str(answer.remark)
    assert not nameserver.routes.cluster_info().broker_addr_table
    await wire.close()


async def test_message_ids_have_the_advertised_port(start_broker: StartBroker) -> None:
    broker = await start_broker(advertised_listeners="127.0.0.1:30911")
    assert broker.address == "127.0.0.1:30911"
    assert broker.turn.waiters is not None
    assert broker.config.broker_ip1 == "127.0.0.1"


def test_a_wrong_value_ends_the_start() -> None:
    with pytest.raises(
        ConfigError, match=r"advertisedListeners=0\.0\.0\.0: 0\.0\.0\.0 is only an address to listen on"
    ):
        Broker(BrokerConfig(advertised_listeners="0.0.0.0"))


# --- the self-test ------------------------------------------------------------------------------
async def looked(broker: Broker, clock: VirtualClock) -> dict[str, str]:
    await until(broker.advertised_check.looked.is_set, clock=clock)
    return broker.advertised_check.wrong


async def test_the_self_test_finds_itself_behind_an_address(
    nameserver: NameServer, start_broker: StartBroker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker = await start_broker(namesrv_addr=nameserver.address, advertised_listeners="localhost")
    assert await looked(broker, clock) == {}
    assert f"clients reach this broker at {broker.address}" in caplog.text


async def test_the_self_test_tells_an_address_where_nobody_listens_and_when_it_is_right_again(
    nameserver: NameServer, start_broker: StartBroker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    broker = await start_broker(namesrv_addr=nameserver.address, advertised_listeners=f"localhost:{port}")
    assert "cannot be reached from this machine" in (await looked(broker, clock))[""]
    [line] = [record.getMessage() for record in caplog.records if "is wrong" in record.getMessage()]
    assert f"the advertised address localhost:{port} for clients is wrong" in line
    assert "--advertise HOST[:PORT]" in line
    link = Link(("127.0.0.1", port), ("127.0.0.1", broker.server.port), clock=clock)
    await link.start()
    await until(lambda: "clients reach this broker" in caplog.text, clock=clock, step_s=60)
    await link.stop()


async def test_an_address_on_the_machine_of_the_clients_is_not_called_wrong_where_nobody_listens(
    nameserver: NameServer, start_broker: StartBroker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """In a container, and behind a tunnel, localhost of a listener is another machine."""
    caplog.set_level(logging.INFO)
    port = free_port()
    broker = await start_broker(
        namesrv_addr=nameserver.address, advertised_listeners=f"localhost,outside=localhost:{port}"
    )
    assert await looked(broker, clock) == {}
    assert (
        f"clients of the listener outside get the address localhost:{port}, which is their own machine" in caplog.text
    )
    assert "is wrong" not in caplog.text


async def test_the_self_test_tells_another_broker_of_the_same_name(
    nameserver: NameServer, start_broker: StartBroker, clock: VirtualClock, tmp_path: Path
) -> None:
    clock.advance(1)
    other = Broker(small_config(tmp_path / "other"), clock=VirtualClock())
    await other.start()
    broker = await start_broker(namesrv_addr=nameserver.address, advertised_listeners=f"localhost:{other.server.port}")
    assert "broker broker-a of cluster DefaultCluster answers there" in (await looked(broker, clock))[""]
    await other.stop()


async def test_the_members_of_a_set_may_share_the_address_of_a_listener_but_not_their_own(
    nameserver: NameServer, start_broker: StartBroker, clock: VirtualClock, tmp_path: Path
) -> None:
    """As a Service of Kubernetes, which selects the pod of the master."""
    clock.advance(1)
    other = Broker(small_config(tmp_path / "other"), clock=VirtualClock())
    await other.start()
    there = f"localhost:{other.server.port}"
    keys = {"failover": "etcd", "etcd_endpoints": "http://localhost:2379", "namesrv_addr": nameserver.address}
    broker = await start_broker(advertised_listeners=f"{there},outside={there},home={nameserver.address}", **keys)
    wrong = await looked(broker, clock)
    assert wrong.keys() == {"", "home"}
    await other.stop()


async def test_a_broker_with_accounts_that_tells_strangers_nothing_is_not_called_wrong(
    nameserver: NameServer, start_broker: StartBroker, clock: VirtualClock, tmp_path: Path
) -> None:
    (tmp_path / "plain_acl.yml").write_text("accounts:\n- {accessKey: somebody, secretKey: password}\n")
    broker = await start_broker(
        namesrv_addr=nameserver.address, advertised_listeners="localhost", acl_enable=True, acl_path=str(tmp_path)
    )
    assert await looked(broker, clock) == {}


async def test_the_self_test_tells_what_is_no_broker(
    nameserver: NameServer, start_broker: StartBroker, clock: VirtualClock
) -> None:
    broker = await start_broker(namesrv_addr=nameserver.address, advertised_listeners=f"localhost:{nameserver.port}")
    assert "no broker" in (await looked(broker, clock))[""]


@pytest.mark.parametrize(
    ("keys", "address", "in_container", "words"),
    [
        ({"namesrv_addr": "192.0.2.1:9876"}, "127.0.0.1:1", False, "their own machine"),
        ({"namesrv_addr": "127.0.0.1:9876"}, "localhost:1", False, ""),
        ({"namesrv_addr": "ns:9876"}, f"{own_ip()}:1", True, "of this container"),
        ({"namesrv_addr": "ns:9876"}, "192.0.2.7:1", True, ""),
        ({"namesrv_addr": "ns:9876"}, "192.0.2.7:1", False, ""),
    ],
)
def test_likely_mistakes_are_told_at_the_start(
    keys: dict[str, str], address: str, in_container: bool, words: str
) -> None:
    config = BrokerConfig(**keys)  # type: ignore[arg-type]
    found = hints(config, {"": address}, in_container=in_container)
    assert [words in line for line in found] == ([True] if words else [])
