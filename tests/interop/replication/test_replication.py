"""A real Apache slave of a CometMQ master: it has every byte and every table, through kills of the master."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.crash.reading import read_queue
from tests.helpers.waiting import wait_for
from tests.interop import builds, systems
from tests.interop.clients import PATIENCE_S, Client, Series, seen
from tests.interop.conftest import unavailable
from tests.interop.replication.replicas import (
    OF_A_SLAVE,
    log_files,
    send_one,
    sync_master,
    table,
    until_in_sync,
    until_same_log,
    until_same_table,
)
from tests.interop.systems import Deployment, Server, System

from cometmq.broker.replication.frames import encode_report
from cometmq.client import ConsumeFromWhere, Message, MessageExt, PushConfig, SendStatus
from cometmq.client.sync import SyncAdmin, SyncProducer, SyncPushConsumer
from cometmq.remoting.admin_bodies import HARuntimeInfo
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.interop

LOADED = "Loaded"
"""Made early: Apache's slaves learn of topics every ten seconds."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Ours."""
    with sync_master(System.COMETMQ, tmp_path_factory.mktemp("set"), [*["Large"] * 4, LOADED]) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def slave(master: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Apache's, on an empty disk."""
    try:
        started = systems.start_broker(System.APACHE, tmp_path_factory.mktemp("slave"), master.address, OF_A_SLAVE)
    except builds.ToolMissingError as problem:
        unavailable(problem)
    with started:
        yield started


def test_an_apache_slave_has_every_byte_and_every_table(master: Deployment, slave: Server, java: Client) -> None:
    broker = master.broker
    java.create_topic(master.address, broker.address, "Made", queues=3)
    java.mqadmin(master.address, "updateSubGroup", "-b", broker.address, "-g", "made-group", "-r", "3")
    until_in_sync(broker, slave)
    series = Series("Made", 30, tags=("a", "b"), keys="k{i}")
    assert {event["status"] for event in java.produce(master.address, series)} == {"SEND_OK"}
    java.consume(master.address, "Made", "made-group", 30)
    listed = java.mqadmin(master.address, "clusterList")
    for broker_id, one in enumerate((broker, slave)):
        assert re.search(rf"broker-a +{broker_id} +{one.address} ", listed), listed
    with BlockingConnection(broker.address, 60) as connection:
        for number in range(3):
            assert send_one(connection, "Made", b"%d" % number, "DELAY\x011") == ResponseCode.SUCCESS
        for number in range(4):
            assert send_one(connection, "Large", bytes([number + 1]) * 300_000) == ResponseCode.SUCCESS

    assert min(log_files(slave)) > min(log_files(broker)), "it began with the last file"
    until_same_log(broker, slave)
    for name, entry in (
        ("topics.json", "Made"),
        ("subscriptionGroup.json", "made-group"),
        ("consumerOffset.json", "Made@made-group"),
    ):
        until_same_table(broker, slave, name, entry)
    wait_for(
        lambda: ((table(slave, "delayOffset.json") or {}).get("offsetTable") or {}).get("1") == 3,
        "the slave knows how far delays are",
        PATIENCE_S,
    )


def test_consumers_far_behind_are_sent_to_the_slave_and_go(master: Deployment, slave: Server, java: Client) -> None:
    topic, count = "Large", 300
    java.produce(master.address, Series(topic, count), "batch")
    until_in_sync(master.broker, slave)
    for key, value in (("slaveReadEnable", "true"), ("accessMessageInMemoryMaxRatio", "0")):
        java.mqadmin(master.address, "updateBrokerConfig", "-b", master.broker.address, "-k", key, "-v", value)
    before = pulled_from(master.address, slave)
    java.consume(master.address, topic, "java-far-behind", count)
    after_java = pulled_from(master.address, slave)
    assert after_java > before
    consume(master.address, topic, "ours-far-behind", lambda got: len(got) >= count)
    assert pulled_from(master.address, slave) > after_java


def pulled_from(namesrv: str, broker: Server) -> int:
    """The number of messages that consumers have had of a broker."""
    with SyncAdmin(namesrv) as admin:
        return int(admin.runtime_info(broker.address)["msgGetTotalTodayNow"])


def consume(namesrv: str, topic: str, group: str, is_all: Callable[[set[bytes]], bool]) -> None:
    """Consume with our client from the first message on, until these bodies are all that are wanted."""
    got: set[bytes] = set()

    def listen(messages: Sequence[MessageExt]) -> None:
        got.update(message.body for message in messages)

    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = SyncPushConsumer(group, listen, namesrv, config=config)
    consumer.subscribe(topic)
    with consumer:
        wait_for(lambda: is_all(got), f"our consumer has all of {topic}", PATIENCE_S)


def test_a_slave_of_apache_5_has_every_byte_and_its_tools_show_both(
    master: Deployment, slave: Server, clients: Callable[[str], Client], tmp_path: Path
) -> None:
    until_in_sync(master.broker, slave)
    second = {**OF_A_SLAVE, "brokerId": "2"}
    with systems.start_broker(System.APACHE5, tmp_path, master.address, second) as of_5:
        wait_for(lambda: bool(log_files(of_5)), f"it has begun\n{of_5.logs()}", PATIENCE_S)
        until_same_log(master.broker, of_5)

        def both_are_shown() -> bool:
            shown = clients("java5").mqadmin(master.address, "haStatus", "-b", master.broker.address)
            return "#InSyncSlaveNum\t2\n" in shown and len(re.findall(r"(?m)^127[.\d]+:\d+ .* OK +\d+$", shown)) == 2

        wait_for(both_are_shown, "mqadmin shows both slaves", PATIENCE_S)


def test_what_was_acknowledged_is_at_the_slave_and_can_be_consumed_there_when_the_master_is_killed(
    master: Deployment, slave: Server, java: Client
) -> None:
    topic, queues = LOADED, 4
    until_in_sync(master.broker, slave)
    until_same_table(master.broker, slave, "topics.json", topic)
    acknowledged: set[bytes] = set()
    enough = threading.Event()

    def load(writer: int) -> None:
        try:
            with BlockingConnection(master.broker.address, 60) as connection:
                for number in range(1_000_000):
                    body = b"%d/%d" % (writer, number)
                    if send_one(connection, topic, body, queue_id=number % queues) == ResponseCode.SUCCESS:
                        acknowledged.add(body)
                    if len(acknowledged) > 500:
                        enough.set()
        except BlockingConnectionError:
            return

    writers = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    assert enough.wait(PATIENCE_S), slave.logs()
    master.broker.kill()
    for writer in writers:
        writer.join(PATIENCE_S)
        assert not writer.is_alive()

    def at_the_slave() -> set[bytes]:
        return {record.body for queue in range(queues) for record in read_queue(slave.address, topic, queue)}

    wait_for(lambda: acknowledged <= at_the_slave(), "all acknowledged messages are at the slave", PATIENCE_S)
    stored = len(at_the_slave())
    assert len(java.consume(master.address, topic, "java-without-a-master", stored)) == stored
    consume(master.address, topic, "ours-without-a-master", lambda got: acknowledged <= got)

    master.start_again(System.COMETMQ)
    until_in_sync(master.broker, slave)
    late = Series(topic, 12, first=5_000)
    java.produce(master.address, late)
    assert set(seen(java.read_topic(master.address, topic))) >= set(late.expected())
    until_same_log(master.broker, slave)


def test_producers_are_told_what_is_missing(
    deploy: Callable[..., Deployment], clients: Callable[[str], Client]
) -> None:
    keys = {"slaveTimeout": "200", "haHousekeepingInterval": "600000"}
    deployment = deploy(System.COMETMQ, brokerRole="SYNC_MASTER", **keys)
    names = ("java4", "java5")
    for name in names:
        sent = clients(name).produce(deployment.address, Series(f"Alone-{name}"))
        assert [event["status"] for event in sent] == ["SLAVE_NOT_AVAILABLE"]
    with (
        socket.create_connection(("127.0.0.1", deployment.broker.port + 1)) as silent,
        BlockingConnection(deployment.broker.address, PATIENCE_S) as connection,
    ):

        def is_in_sync() -> bool:
            status = decode_body(HARuntimeInfo, connection.invoke(RequestCode.GET_BROKER_HA_STATUS).body)
            ends = [slave.slave_ack_offset + slave.diff for slave in status.ha_connection_info]
            silent.sendall(encode_report(*ends or (0,)))
            return status.in_sync_slave_nums == 1

        for name in names:
            wait_for(is_in_sync, "the slave has reported what it lacked")
            sent = clients(name).produce(deployment.address, Series(f"Late-{name}"))
            assert [event["status"] for event in sent] == ["FLUSH_SLAVE_TIMEOUT"]
        wait_for(is_in_sync, "the slave has reported what it lacked")
        with SyncProducer("late", deployment.address) as producer:
            assert producer.send(Message("Late", b"x")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
