"""A connection that is collected and was not closed: its clients leave, and its messages come again at once."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator

import pytest
from kombu import Connection, Consumer, Queue
from tests.helpers.waiting import wait_for

from cometmq.integrations.kombu.sessions import SESSIONS
from cometmq.testing import SyncCluster

WAIT_S = 10.0
NOT_CLOSED = r"the connection to cometmq://.* was not closed"


@pytest.fixture
def url(cluster: SyncCluster) -> str:
    return f"cometmq://{cluster.namesrv_address}"


@pytest.fixture
def mine(url: str) -> Iterator[dict[str, float]]:
    """Options of connections that share their session with no other test's."""
    options = {"send_timeout": 77.0, "wait_time": 2}
    yield options
    assert not [settings for settings in SESSIONS._open if settings.send_timeout == 77.0]


def produce(url: str, options: dict[str, float], name: str) -> None:
    connection = Connection(url, transport_options=options)
    with connection.Producer() as producer:
        producer.publish({"n": 1}, routing_key=name, declare=[Queue(name)], serializer="json")


def consume(url: str, options: dict[str, float], name: str) -> None:
    """Take a message, and neither acknowledge it nor close anything."""
    connection = Connection(url, transport_options=options)
    got: list[object] = []
    consumer = Consumer(connection.channel(), [Queue(name)], callbacks=[lambda body, _: got.append(body)])
    consumer.consume()
    while not got:
        connection.drain_events(timeout=WAIT_S)


def forget(work: Callable[[str, dict[str, float], str], None], url: str, options: dict[str, float], name: str) -> None:
    """Collect what is left when work with a connection has ended."""
    work(url, options, name)
    gc.collect()


def test_a_producing_connection_ends_its_session(url: str, mine: dict[str, float], name: str) -> None:
    with pytest.warns(ResourceWarning, match=NOT_CLOSED):
        forget(produce, url, mine, name)
    wait_for(lambda: not open_sessions(), "the session is closed", WAIT_S)


def test_another_connection_goes_on_with_the_session(url: str, mine: dict[str, float], name: str) -> None:
    with Connection(url, transport_options=mine) as other:
        other.ensure_connection()
        with pytest.warns(ResourceWarning, match=NOT_CLOSED):
            forget(produce, url, mine, name)
        wait_for(lambda: open_sessions() == [1], "the forgotten connection uses it no more", WAIT_S)
        with other.Producer() as producer:
            producer.publish({"n": 2}, routing_key=name, serializer="json")
        assert other.SimpleQueue(name).qsize() == 2


def test_messages_of_a_consuming_connection_go_to_another_one(url: str, mine: dict[str, float], name: str) -> None:
    produced = Connection(url, transport_options=mine)
    with produced, produced.Producer() as producer:
        producer.publish({"n": 1}, routing_key=name, declare=[Queue(name)], serializer="json")
        with pytest.warns(ResourceWarning, match=NOT_CLOSED):
            forget(consume, url, mine, name)
        with produced.SimpleQueue(name) as queue:
            message = queue.get(timeout=WAIT_S)
            assert message.payload == {"n": 1}
            message.ack()


def test_closed_connections_warn_of_nothing(url: str, mine: dict[str, float], name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for _ in range(2):
            with Connection(url, transport_options=mine) as connection, connection.Producer() as producer:
                producer.publish({"n": 1}, routing_key=name, declare=[Queue(name)], serializer="json")
            del connection, producer
            gc.collect()


def test_a_forked_child_that_forgets_a_connection_ends_nothing_of_its_parent(
    url: str, mine: dict[str, float], name: str
) -> None:
    connection = Connection(url, transport_options=mine)
    connection.ensure_connection()
    child = os.fork()
    if child == 0:
        del connection
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with connection, connection.Producer() as producer:
        producer.publish({"n": 1}, routing_key=name, declare=[Queue(name)], serializer="json")


def open_sessions() -> list[int]:
    return [session.users for settings, session in SESSIONS._open.items() if settings.send_timeout == 77.0]
