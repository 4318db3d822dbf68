"""SIGKILL while topics are made, filled, deleted and made anew: only the messages of the last life are there."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest
from tests.crash import loading
from tests.crash.reading import read_queue
from tests.helpers.waiting import block_for

from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

GROUP = "readers"
WRITERS = 4
LOST = ("", "consumequeue", "consumequeue comet/position.json", "comet/position.json")
"""What is lost with each kill."""


class Life:
    """The present life of one topic, as its writer knows it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.number = 0
        self.answered: list[bytes] = []
        self.in_doubt: bytes | None = None
        """Sent, but not answered before the kill."""
        self.deleting = False
        self.committed = 0
        self.deletions = 0

    def expected(self) -> list[list[bytes]]:
        """What the queue may have now."""
        if self.deleting:
            return [self.answered, []]
        return [self.answered, *([[*self.answered, self.in_doubt]] if self.in_doubt is not None else [])]

    def go_on(self, found: list[bytes]) -> None:
        """Take what is there for the state of the topic."""
        if self.deleting and not found:
            self.begin()
        self.answered, self.in_doubt, self.deleting = list(found), None, False

    def begin(self) -> None:
        self.number += 1
        self.answered, self.committed, self.deleting = [], 0, False
        self.deletions += 1


def live(address: str, life: Life, rng: random.Random) -> None:
    """Send, commit and delete until the broker is gone."""
    try:
        with BlockingConnection(address, 60) as connection:
            while True:
                for _ in range(rng.randint(1, 6)):
                    life.in_doubt = b"%s/%d/%d" % (life.topic.encode(), life.number, len(life.answered))
                    loading.send(connection, life.topic, life.in_doubt, "", group=GROUP)
                    life.answered.append(life.in_doubt)
                    life.in_doubt = None
                    if life.number % 2 == 0:  # nothing is committed in the other lives
                        life.committed = len(life.answered)
                        commit = UpdateConsumerOffsetRequestHeader(GROUP, life.topic, 0, life.committed)
                        connection.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
                life.deleting = True
                answer = connection.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": life.topic})
                assert answer.code == ResponseCode.SUCCESS
                life.begin()
                if rng.random() < 0.3:
                    block_for(0.05)  # a kill may find the topic deleted
    except BlockingConnectionError:
        return


def committed(address: str, topic: str) -> int:
    with BlockingConnection(address, 60) as connection:
        answer = connection.invoke(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader(GROUP, topic, 0))
    return int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0


def lose(root: Path, lost: str) -> None:
    for name in lost.split():
        if name == "consumequeue":
            shutil.rmtree(root / name)
        else:
            (root / name).unlink(missing_ok=True)


def test_no_kill_brings_an_earlier_life_back() -> None:
    rng = random.Random(5)
    lives = [Life(f"Lives{number}") for number in range(WRITERS)]
    keys = {"mappedFileSizeCommitLog": str(1 << 20), "flushConsumerOffsetInterval": "100"}
    with ProcessCluster(broker_keys=keys) as cluster:
        address = cluster.broker_addresses[0]
        for lost in (*LOST, *LOST):
            threads = [
                threading.Thread(target=live, args=(address, life, random.Random(rng.random()))) for life in lives
            ]
            for thread in threads:
                thread.start()
            block_for(rng.uniform(0.3, 0.8))  # the length of the load
            cluster.brokers[0].kill()
            for thread in threads:
                thread.join(loading.JOIN_S)
                assert not thread.is_alive()
            lose(cluster.store_root(0), lost)
            cluster.brokers[0].start()
            for life in lives:
                found = [record.body for record in read_queue(address, life.topic)]
                assert found in life.expected(), (lost, life.number)
                assert committed(address, life.topic) <= life.committed
                life.go_on(found)
    assert all(life.deletions > 5 for life in lives)
