"""Messages that are sent in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.helpers.waiting import wait_for

from cometmq.client import BrokerError, IllegalMessageError, Message, RemotingTimeoutError
from cometmq.client.send.config import ProducerConfig
from cometmq.client.sync import SyncProducer
from cometmq.client.sync.direct import DirectSender
from cometmq.remoting.errors import RemotingSendError
from cometmq.remoting.security import PLAIN
from cometmq.testing import Direction, SyncCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster(links=True) as running:
        yield running


class Sends:
    """A sender in this thread whose routes a cluster's event loop keeps."""

    def __init__(self, cluster: SyncCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.producer = SyncProducer("g", cluster.namesrv_address)
        self.producer.start()
        self.instance = self.producer._inner.instance
        config = ProducerConfig(send_timeout_s=1.0, max_message_bytes=2**23, compress_over_bytes=2**23)
        self.sender = DirectSender(self.instance, "g", config, PLAIN)

    def know_route(self) -> None:
        self.producer.send(Message(self.topic, b"first"))

    def send(self, body: bytes) -> bool:
        return self.sender.send(Message(self.topic, body, tags="a", properties={"n": "v"}))

    def close(self) -> None:
        self.sender.close()
        self.producer.close()


@pytest.fixture
def sends(cluster: SyncCluster, request: pytest.FixtureRequest) -> Iterator[Sends]:
    sends = Sends(cluster, request.node.name.replace("[", "-").replace("]", ""))
    yield sends
    sends.close()


def test_a_message_is_stored_once_its_route_is_known(cluster: SyncCluster, sends: Sends) -> None:
    assert not sends.send(b"second")
    sends.know_route()
    assert sends.send(b"second")
    with cluster.inbox(sends.topic) as inbox:
        first, second = sorted(inbox.expect(2), key=lambda message: message.body)
    assert (first.body, second.body, second.tags, second.properties["n"]) == (b"first", b"second", "a", "v")


def test_a_delayed_message_is_left_to_the_event_loop(sends: Sends) -> None:
    sends.know_route()
    assert not sends.sender.send(Message(sends.topic, b"m", delay=timedelta(seconds=1)))


def test_a_refused_message_raises_an_error(sends: Sends) -> None:
    sends.know_route()
    with pytest.raises(IllegalMessageError):
        sends.sender.send(Message(sends.topic, b""))
    with pytest.raises(BrokerError):
        sends.send(bytes(2**22 + 1))


def test_a_connection_that_the_broker_has_closed_is_opened_again(cluster: SyncCluster, sends: Sends) -> None:
    sends.know_route()
    assert sends.send(b"m")
    (connection,) = sends.sender._connections.values()
    cluster.run(lambda running: running.link(0).cut())
    wait_for(lambda: not connection.is_quiet, "the end of the connection")
    assert sends.send(b"m")


def test_a_message_without_an_answer_may_be_stored(cluster: SyncCluster, sends: Sends) -> None:
    sends.know_route()
    assert sends.send(b"m")
    cluster.run(lambda running: running.link(0).drop(Direction.TO_CLIENT))
    with pytest.raises(RemotingTimeoutError):
        sends.send(b"in doubt")
    cluster.run(lambda running: running.link(0).restore())
    assert sends.send(b"m")


def test_a_connection_that_ends_before_the_answer_leaves_the_message_in_doubt(
    cluster: SyncCluster, sends: Sends
) -> None:
    sends.know_route()
    assert sends.send(b"m")
    cluster.run(lambda running: running.link(0).cut_after(1, Direction.TO_CLIENT))
    with pytest.raises(RemotingSendError):
        sends.send(b"in doubt")
    cluster.run(lambda running: running.link(0).restore())


def test_a_second_thread_does_not_wait_for_the_first(sends: Sends) -> None:
    sends.know_route()
    with sends.sender._sending:
        assert not sends.send(b"m")


def test_a_lock_that_was_left_behind_does_not_keep_the_sender_open(sends: Sends) -> None:
    sends.know_route()
    sends.sender._sending.acquire()
    sends.sender.close()
    assert not sends.send(b"m")


def test_a_broker_that_refuses_connections_is_left_to_the_event_loop_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with SyncCluster() as cluster:
        sends = Sends(cluster, "t")
        sends.know_route()
        cluster.call(cluster.cluster.kill_broker(0))
        assert not sends.send(b"m")
        cluster.call(cluster.cluster.start_broker(0))
        sends.know_route()
        assert not sends.send(b"m")
        until = max(sends.sender._absent_until.values())
        monkeypatch.setattr(type(sends.instance.clock), "monotonic", lambda _clock: until)
        sent = sends.send(b"m")
        monkeypatch.undo()
        assert sent
        sends.close()
