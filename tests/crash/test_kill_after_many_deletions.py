"""SIGKILL after thousands of topics were deleted and made anew: no message of their earlier lives comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.crash.loading import send
from tests.crash.reading import read_queue

from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPICS = [f"T{number}" for number in range(2_000)]
ANEW = TOPICS[::2]
CONNECTIONS = 16


def delete(address: str, number: int) -> None:
    """Delete some of the topics; each must be answered."""
    with BlockingConnection(address, 60) as connection:
        for topic in TOPICS[number::CONNECTIONS]:
            header = DeleteTopicRequestHeader(topic=topic)
            assert connection.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, header).code == 0


def bodies(address: str, topics: Iterable[str]) -> Iterator[list[bytes]]:
    for topic in topics:
        yield [record.body for record in read_queue(address, topic)]


def test_what_was_deleted_stays_deleted_and_what_was_made_anew_begins_anew() -> None:
    with ProcessCluster() as cluster:
        address = cluster.broker_addresses[0]
        with BlockingConnection(address, 60) as connection:
            for topic in TOPICS:
                send(connection, topic, b"of the earlier life", "")
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            for _ in threads.map(delete, [address] * CONNECTIONS, range(CONNECTIONS)):
                pass
        with BlockingConnection(address, 60) as connection:
            for topic in ANEW:
                send(connection, topic, b"of the new life", "")
        for position_file in ("kept", "lost"):
            cluster.brokers[0].kill()
            if position_file == "lost":
                (cluster.store_root(0) / "comet" / "position.json").unlink()
            cluster.brokers[0].start()
            assert list(bodies(address, ANEW)) == [[b"of the new life"]] * len(ANEW)
            assert not any(bodies(address, TOPICS[1::2]))
