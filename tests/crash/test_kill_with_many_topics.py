"""SIGKILL of a broker with 2,000 topics under load: its messages, groups and persisted offsets are there afterwards."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import msgspec
import pytest
from tests.crash.loading import kill_under_load, send
from tests.crash.reading import read_queue
from tests.helpers.waiting import wait_for

from cometmq import fastjson
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import (
    NoHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPICS = [f"Many{number}" for number in range(2_000)]
GROUPS = 40
LAST = "last_group"
"""The beginning of the names of groups whose offsets are committed last."""
ROUNDS = 2
WRITERS = 4


def commit_offsets(cluster: ProcessCluster, offset: int) -> None:
    """Commit an offset in each topic, and wait until the broker has written them."""
    root = cluster.store_root(0)

    def is_written(group: str) -> bool:
        files = (*(root / "comet" / "tables").glob("consumerOffset*"), *(root / "config").glob("consumerOffset.json"))
        for path in files:
            with suppress(FileNotFoundError):  # the broker has put the file into its place
                if group.encode() in path.read_bytes():
                    return True
        return False

    with BlockingConnection(cluster.broker_addresses[0], 60) as connection:

        def commit(group: str, topic: str) -> None:
            header = UpdateConsumerOffsetRequestHeader(
                consumer_group=group, topic=topic, queue_id=0, commit_offset=offset
            )
            assert connection.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0

        for number, topic in enumerate(TOPICS):
            commit(f"g{number % GROUPS}", topic)
        for time in ("first", "second"):  # a whole file that is being written may have the first and lack some before
            last = f"{LAST}_{offset}_{time}"
            commit(last, TOPICS[0])
            wait_for(partial(is_written, last), "the offsets are written")


def test_messages_groups_and_persisted_offsets_of_thousands_of_topics_survive_kills() -> None:
    acknowledged: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
    groups: set[str] = set()

    def work(seed: int) -> None:
        """Send to topics of its own, and make groups, until the broker is gone."""
        choice = random.Random(seed)
        mine = TOPICS[seed % WRITERS :: WRITERS]
        with suppress(BlockingConnectionError), BlockingConnection(address, 60) as connection:
            for count in range(1_000_000):
                topic, body = choice.choice(mine), b"%d/%d" % (seed, count)
                acknowledged[topic][send(connection, topic, body, "").queue_offset] = body
                if not count % 20:
                    name = f"made_{seed}_{count}"
                    group = msgspec.json.encode(SubscriptionGroupConfig(group_name=name))
                    answer = connection.invoke(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoHeader(), group)
                    assert answer.code == 0
                    groups.add(name)

    with ProcessCluster(broker_keys={"flushConsumerOffsetInterval": "200"}) as cluster:
        address = cluster.broker_addresses[0]
        with BlockingConnection(address, 60) as connection:
            for topic in TOPICS:
                for offset in range(ROUNDS):  # a start sets offsets behind the end of their queue back to it
                    acknowledged[topic][offset] = topic.encode()
                    assert send(connection, topic, topic.encode(), "").queue_offset == offset
        for number in range(ROUNDS):
            commit_offsets(cluster, number + 1)
            kill_under_load(cluster, work, range(number * WRITERS, (number + 1) * WRITERS), seconds=1.0)
            for topic, bodies in acknowledged.items():
                found = [record.body for record in read_queue(address, topic)]
                assert {offset: found[offset] for offset in bodies} == bodies, topic
                assert len(found) <= len(bodies) + WRITERS * ROUNDS
            with BlockingConnection(address, 60) as connection:
                for index, topic in enumerate(TOPICS):
                    header = QueryConsumerOffsetRequestHeader(
                        consumer_group=f"g{index % GROUPS}", topic=topic, queue_id=0
                    )
                    answer = connection.invoke(RequestCode.QUERY_CONSUMER_OFFSET, header)
                    assert answer.header(QueryConsumerOffsetResponseHeader).offset == number + 1, topic
                answer = connection.invoke(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NoHeader())
            assert groups <= set(fastjson.loads(answer.body)["subscriptionGroupTable"])
        assert len(groups) > 20
