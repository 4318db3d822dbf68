"""A CometMQ slave of a real Apache master: every byte and every table, through kills of both, and its promotion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.crash.reading import read_queue
from tests.helpers.waiting import wait_for
from tests.interop import systems
from tests.interop.clients import PATIENCE_S, Client, Series, seen
from tests.interop.replication.replicas import (
    FILES,
    OF_A_SLAVE,
    send_one,
    sync_master,
    until_in_sync,
    until_same_log,
    until_same_table,
)
from tests.interop.systems import Deployment, Server, System

from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import ResponseCode

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Apache's."""
    with sync_master(System.APACHE, tmp_path_factory.mktemp("set"), ["Before"] * 5) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def slave(master: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours, on an empty disk."""
    with systems.start_broker(System.COMETMQ, tmp_path_factory.mktemp("slave"), master.address, OF_A_SLAVE) as started:
        yield started


def test_it_has_every_byte_and_every_table(master: Deployment, slave: Server, java: Client) -> None:
    broker = master.broker
    java.create_topic(master.address, broker.address, "Made", queues=3)
    until_in_sync(broker, slave)
    java.produce(master.address, Series("Made", 30, tags=("a", "b"), keys="k{i}"))
    java.consume(master.address, "Made", "made-group", 30)
    with BlockingConnection(broker.address, 60) as connection:
        for number in range(4):
            assert send_one(connection, "Large", bytes([number + 1]) * 300_000) == ResponseCode.SUCCESS
    until_same_log(broker, slave)
    for name, entry in (
        ("topics.json", "Made"),
        ("subscriptionGroup.json", "made-group"),
        ("consumerOffset.json", "Made@made-group"),
    ):
        until_same_table(broker, slave, name, entry)
    assert read_queue(slave.address, "Before", 0)[0].body == bytes(400_000)  # of the first file, long before the slave
    with BlockingConnection(slave.address, 60) as connection:
        assert send_one(connection, "Made", b"no") == ResponseCode.SERVICE_NOT_AVAILABLE


def test_kills_of_either_leave_no_gap(master: Deployment, slave: Server) -> None:
    until_in_sync(master.broker, slave)
    slave.kill()
    with BlockingConnection(master.broker.address, 60) as connection:
        for number in range(2):
            assert send_one(connection, "Large", bytes([number + 1]) * 300_000) == ResponseCode.SLAVE_NOT_AVAILABLE
    with systems.start_broker(System.COMETMQ, slave.directory, master.address, OF_A_SLAVE, slave.port) as again:
        until_in_sync(master.broker, again)
        master.broker.kill()
        master.start_again(System.APACHE)
        until_in_sync(master.broker, again)
        until_same_log(master.broker, again)


def test_it_takes_the_place_of_its_master(master: Deployment, slave: Server, java: Client) -> None:
    """Also for messages that wait, whose delivery Apache's master noted in a file of its own."""
    with systems.start_broker(System.COMETMQ, slave.directory, master.address, OF_A_SLAVE, slave.port) as started:
        until_in_sync(master.broker, started)
        with BlockingConnection(master.broker.address, 60) as connection:
            assert send_one(connection, "Later", b"soon", "DELAY\x011") == ResponseCode.SUCCESS
            assert send_one(connection, "Later", b"later", "DELAY\x013") == ResponseCode.SUCCESS
            wait_for(lambda: bool(read_queue(master.broker.address, "Later", 0)), "one is delivered", PATIENCE_S)
        topic = Series("Made", 12, first=500)
        java.produce(master.address, topic)
        until_in_sync(master.broker, started)
        until_same_table(master.broker, started, "topics.json", "Later")
        master.broker.kill()
        last = seen(java.consume(master.address, "Made", "java-without-a-master", 42))
        assert set(last) >= set(topic.expected()), "consumed from the slave"
        (by_key,) = java.found(master.address, "Made", "k3")
        (by_id,) = java.admin(master.address, "view", topic="Made", id=by_key["msgId"])
        assert by_id["offsetMsgId"] == by_key["offsetMsgId"], "looked up there, too"
    conf = {**FILES, "brokerRole": "ASYNC_MASTER", "brokerId": "0"}
    with systems.start_broker(System.COMETMQ, slave.directory, master.address, conf, slave.port) as promoted:
        java.produce(master.address, Series("Made", 5, first=900))
        found = seen(java.read_topic(master.address, "Made"))
        assert set(found) >= {*topic.expected(), *Series("Made", 5, first=900).expected()}

        def delivered() -> bool:
            return b"later" in [record.body for record in read_queue(promoted.address, "Later", 0)]

        wait_for(delivered, "the message that waited is delivered", PATIENCE_S)
