"""`cometmq proxy` before brokers of which none has an endpoint of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from tests.proxy.client import Client, receive
from tests.proxy.test_commands import check_that_each_is_asked

from cometmq.message.pop_info import parse_handle
from cometmq.options import ConfigError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.proxy_config import ProxyConfig, load_proxy_config
from cometmq.proxy.standalone import FleetProxy
from cometmq.testing import Cluster


@pytest.fixture
async def fleet() -> AsyncIterator[Cluster]:
    async with Cluster(2, broker_keys={"transactionTimeOut": "100", "transactionCheckInterval": "100"}) as running:
        await running.create_topic("T")
        yield running


@pytest.fixture
async def proxy(fleet: Cluster) -> AsyncIterator[FleetProxy]:
    running = FleetProxy(ProxyConfig(namesrv_addr=fleet.namesrv_address, bind_address="127.0.0.1", grpc_server_port=0))
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def client(proxy: FleetProxy) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        yield Client(channel)


async def test_a_route_has_the_queues_of_all_brokers_behind_the_clients_own_access_point(client: Client) -> None:
    point = v2.Endpoints(scheme=v2.AddressScheme.DOMAIN_NAME, addresses=[v2.Address(host="balancer.example", port=443)])
    answer = await client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="T"), endpoints=point))
    assert [(queue.broker.name, queue.id) for queue in answer.message_queues] == [
        (f"broker-{broker}", number) for broker in (0, 1) for number in range(4)
    ]
    assert {queue.broker.endpoints.addresses[0].host for queue in answer.message_queues} == {"balancer.example"}


async def test_messages_go_to_all_brokers_and_come_from_each(fleet: Cluster, client: Client) -> None:
    await client.subscribe("G", "T")
    for number in range(16):
        sent = await client.send("T", b"%d" % number)
        assert sent.status.code == Code.OK, sent
    for broker in ("broker-0", "broker-1"):
        bodies: set[bytes] = set()
        while len(bodies) < 8:
            answers = await client.receive(receive("T", "G", broker))
            assert answers[0].status.code == Code.OK, answers
            entries = []
            for answer in answers[1:-1]:
                bodies.add(answer.message.body)
                system = answer.message.system_properties
                entries.append(v2.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle))
            group, topic = v2.Resource(name="G"), v2.Resource(name="T")
            acked = await client.ask("AckMessage", v2.AckMessageRequest(group=group, topic=topic, entries=entries))
            assert acked.status.code == Code.OK


async def test_requests_that_name_no_broker_receive_from_each_in_turn(client: Client) -> None:
    await client.subscribe("G", "T")
    for number in range(16):
        sent = await client.send("T", b"%d" % number)
        assert sent.status.code == Code.OK, sent
    brokers = []
    for _ in range(4):
        answers = await client.receive(receive("T", "G", "", batch_size=1))
        assert answers[0].status.code == Code.OK, answers
        handle = answers[1].message.system_properties.receipt_handle
        brokers.append(parse_handle(handle).broker_name)
    assert brokers[:2] == brokers[2:]
    assert set(brokers) == {"broker-0", "broker-1"}


async def test_an_orphan_of_any_broker_is_asked_about(fleet: Cluster, client: Client) -> None:
    await fleet.create_topic("TX")
    for broker in fleet.brokers:
        broker.topics.table["TX"].attributes = {"message.type": "TRANSACTION"}
    stream = await client.publish("TX")
    sent = await client.send("TX", b"orphan", message_type=v2.MessageType.TRANSACTION)
    assert sent.status.code == Code.OK, sent
    orphan = (await stream.read()).recover_orphaned_transaction_command
    async with fleet.inbox("TX") as inbox:
        answer = await client.ask(
            "EndTransaction",
            v2.EndTransactionRequest(
                topic=v2.Resource(name="TX"),
                message_id=sent.entries[0].message_id,
                transaction_id=orphan.transaction_id,
                resolution=v2.TransactionResolution.COMMIT,
            ),
        )
        assert answer.status.code == Code.OK, answer
        assert [found.body for found in await inbox.expect(1)] == [b"orphan"]


async def test_a_broker_asks_exactly_the_named_client_behind_the_proxy_for_its_thread_stacks(
    fleet: Cluster, proxy: FleetProxy
) -> None:
    await check_that_each_is_asked(fleet, proxy.address)


async def test_an_unknown_topic_and_broker_are_refused(client: Client) -> None:
    route = await client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="NOPE")))
    assert route.status.code == Code.TOPIC_NOT_FOUND
    answers = await client.receive(receive("T", "G", "no-such-broker"))
    assert (answers[0].status.code, answers[0].status.message) == (
        Code.INTERNAL_SERVER_ERROR,
        "the broker[no-such-broker] not exist",
    )


def test_apaches_file_is_read_and_unknown_keys_are_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "rmq-proxy.json"
    file.write_text(
        json.dumps(
            {
                "rocketMQClusterName": "Blue",
                "namesrvAddr": "127.0.0.1:9876",
                "grpcServerPort": 18_081,
                "tlsCertPath": "/certificates/server.pem",
                "enableTopicMessageTypeCheck": False,
                "noSuchKey": 1,
            }
        )
    )
    config, warnings = load_proxy_config(file, {})
    assert config.namesrv_addr == "127.0.0.1:9876"
    assert (config.rocketmq_cluster_name, config.grpc_server_port) == ("Blue", 18_081)
    assert config.tls_server_cert_path == "/certificates/server.pem"
    assert not config.endpoint.validates_type
    assert len(warnings) == 1
    assert "noSuchKey" in warnings[0]


def test_the_values_of_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "rmq-proxy.json"
    file.write_text(json.dumps({"rocketMQClusterName": "C:\\users = #1", "tlsCertPath": "/证书\\n"}))
    config, warnings = load_proxy_config(file, {})
    assert (config.rocketmq_cluster_name, config.tls_server_cert_path) == ("C:\\users = #1", "/证书\\n")
    assert not warnings


@pytest.mark.parametrize("text", ["[]", "{", '{"grpcServerPort": "many"}', '{"proxyMode": "LOCAL"}'])
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rmq-proxy.json"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_proxy_config(file, {})
