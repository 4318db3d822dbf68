"""Real clients read what the broker has deleted and an archive has, and notice nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.archived.archiving import archive_store, delete_log_files, is_readable
from tests.helpers.waiting import wait_for
from tests.interop import builds
from tests.interop.clients import JAVA55, KINDS, Client, Series, queue_positions, seen
from tests.interop.commands import Event
from tests.interop.conftest import GetClient, unavailable

from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, SyncCluster

pytestmark = pytest.mark.interop

TOPIC = "Archived"
QUEUES = 4
SERIES = Series(TOPIC, 2_000, body_size=1_500, tags=("a", "b"), keys="order-{i}", properties={"kind": "archived"})
NAMES = SERIES.properties
SMALL_LOG = {"mappedFileSizeCommitLog": "1048576", "maxMessageSize": "65536"}


def first_offsets(cluster: Cluster) -> list[int]:
    return [cluster.broker(0).store.extent(TOPIC, queue_id)[0] for queue_id in range(QUEUES)]


@pytest.fixture(scope="module")
def cluster(java: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncCluster]:
    """A broker that has deleted two thirds of a topic's messages, and reads them from an archive."""
    data = tmp_path_factory.mktemp("archived")
    lake = data / "lake"
    with SyncCluster(data=data, broker_keys={**SMALL_LOG, "archive.read": str(lake)}) as cluster:
        cluster.create_topic(TOPIC, queues=QUEUES)
        java.produce(cluster.namesrv_address, SERIES, "selector")
        archive_store(cluster.run(lambda running: running.store_root(0)), lake, broker_name="broker-0")
        wait_for(lambda: cluster.run(lambda running: delete_log_files(running.broker(0))), "log files are flushed", 60)
        wait_for(lambda: all(cluster.run(first_offsets)), "the first messages of each queue are deleted", 60)
        cluster.restart_broker(0)  # looks for the archive at once
        wait_for(lambda: cluster.run(lambda running: is_readable(running.broker(0))), "the archive is read", 60)
        yield cluster


def demand_all(events: list[Event]) -> None:
    assert seen(events, NAMES) == sorted(SERIES.expected())
    for positions in queue_positions(events).values():
        assert sorted(positions) == list(range(len(positions)))


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in ("java4", "java5") for mode in KINDS[name].consume_modes] + [("go", "push")],
)
def test_a_new_group_consumes_from_the_first_archived_message(
    cluster: SyncCluster, clients: GetClient, name: str, mode: str
) -> None:
    group = f"archived-{name}-{mode}"
    demand_all(
        clients(name).consume(cluster.namesrv_address, TOPIC, group, SERIES.count, mode=mode, **{"from": "first"})
    )


def test_a_group_that_pops_consumes_from_the_first_archived_message(cluster: SyncCluster, tmp_path: Path) -> None:
    try:
        java55 = Client(JAVA55, tmp_path)
    except builds.ToolMissingError as problem:
        unavailable(problem)
    group = "archived-pop"
    body = {"topic": TOPIC, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    with BlockingConnection(cluster.run(lambda running: running.broker(0).address), 10) as connection:
        answer = connection.invoke(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode())
    assert answer.code == 0, answer
    consumed = java55.consume(cluster.namesrv_address, TOPIC, group, SERIES.count, mode="pop", **{"from": "first"})
    java55.close()
    demand_all(consumed)


def test_mqadmin_and_the_java_client_see_the_offsets_of_the_archive(cluster: SyncCluster, java: Client) -> None:
    status = java.mqadmin(cluster.namesrv_address, "topicStatus", "-t", TOPIC)
    rows = [line.split() for line in status.splitlines() if line.startswith("broker-0")]
    assert [(row[2], row[3]) for row in rows] == [("0", str(SERIES.count // QUEUES))] * QUEUES


def test_messages_are_found_by_key_and_by_id(cluster: SyncCluster, java: Client) -> None:
    for index in (0, 7, SERIES.count - 1):
        (found,) = java.found(cluster.namesrv_address, TOPIC, f"order-{index}")
        assert seen([found], NAMES) == [SERIES.expected_at(index)]
        for message_id in (found["msgId"], found.get("offsetMsgId", found["msgId"])):
            (viewed,) = java.admin(cluster.namesrv_address, "view", topic=TOPIC, id=message_id)
            assert seen([viewed], NAMES) == [SERIES.expected_at(index)]


def test_a_group_that_is_reset_to_the_beginning_consumes_again(cluster: SyncCluster, java: Client) -> None:
    group, address = "archived-reset", cluster.namesrv_address
    demand_all(java.consume(address, TOPIC, group, SERIES.count, **{"from": "first"}))
    java.mqadmin(address, "resetOffsetByTime", "-g", group, "-t", TOPIC, "-s", "1000000000000")
    demand_all(java.consume(address, TOPIC, group, SERIES.count))
