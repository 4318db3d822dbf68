"""SIGKILL while topics are made and deleted: what was answered is so after the next start, and the one after it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.crash.loading import kill_under_load, send
from tests.helpers.waiting import until

from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.bodies import TopicConfigSerializeWrapper, decode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import NoHeader
from cometmq.testing import Cluster, ProcessCluster

pytestmark = pytest.mark.crash

ROUNDS = 3
BEFORE = 2_000
"""Topics that are there when the load begins."""


def topics_of(cluster: ProcessCluster) -> set[str]:
    with BlockingConnection(cluster.broker_addresses[0], 60) as connection:
        body = connection.invoke(RequestCode.GET_ALL_TOPIC_CONFIG, NoHeader()).body
    return set(decode_body(TopicConfigSerializeWrapper, body).topic_config_table)


def test_topics_that_were_made_stay_and_deleted_ones_do_not_come_back() -> None:
    answered: dict[str, bool] = {}
    """For each topic, whether it is there."""
    asked: dict[str, bool] = {}

    def work(seed: int) -> None:
        """Make and delete topics of its own until the broker is gone."""
        choice = random.Random(seed)
        mine: list[str] = []
        names: Iterator[str] = (f"T-{seed}-{number}" for number in range(1_000_000))
        with suppress(Exception), BlockingConnection(address, 60) as connection:
            while True:
                if mine and choice.random() < 0.4:
                    name = mine.pop(choice.randrange(len(mine)))
                    asked[name] = False
                    answer = connection.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=name))
                    assert answer.code == 0
                    answered[name] = False
                else:
                    name = next(names)
                    asked[name] = True
                    send(connection, name, b"first", "")
                    answered[name] = True
                    mine.append(name)

    with ProcessCluster() as cluster:
        address = cluster.broker_addresses[0]
        with BlockingConnection(address, 60) as connection:
            for number in range(BEFORE):
                send(connection, f"Before-{number}", b"first", "")
        for round_ in range(ROUNDS):
            kill_under_load(cluster, work, range(round_ * 4, round_ * 4 + 4), seconds=1.5)
            for again in (False, True):
                if again:
                    cluster.restart_broker(0)
                found = topics_of(cluster)
                assert {f"Before-{number}" for number in range(BEFORE)} <= found
                for name, is_there in answered.items():
                    assert (name in found) in (is_there, asked[name]), (round_, again, name)
        assert sum(answered.values()) > 50
        assert sum(not is_there for is_there in answered.values()) > 20


async def test_a_topic_that_is_made_after_a_kill_survives_the_next_one() -> None:
    """The first kill finds the file whole and its journals removed."""
    async with Cluster() as cluster:
        for number in range(3):
            await cluster.create_topic(f"Made{number}", 1)
            tables = cluster.store_root(0) / "comet" / "tables"
            await until(lambda tables=tables: not list(tables.glob("topics.*.journal")))  # type: ignore[misc]
            await cluster.kill_broker(0)
            await cluster.start_broker(0)
            await cluster.create_topic(f"Next{number}", 1)
            await cluster.kill_broker(0)
            broker = await cluster.start_broker(0)
            made = [f"{name}{up_to}" for name in ("Made", "Next") for up_to in range(number + 1)]
            assert [topic for topic in made if broker.topics.get(topic) is None] == []
