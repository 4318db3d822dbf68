"""A time limit of a task, or a signal, may interrupt it while it sends another one, or gets a message."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import Empty
from types import FrameType

import pytest
from kombu import Connection, Consumer, Producer, Queue
from tests.helpers.waiting import wait_for
from tests.integrations.kombu.conftest import Connect
from tests.integrations.kombu.test_channel import Received, drain

import cometmq.integrations.kombu  # noqa: F401
from cometmq.client import PoppedMessage
from cometmq.client.sync.base import _Call
from cometmq.integrations.kombu.channel import Channel
from cometmq.testing import Direction, SyncCluster


class LimitError(Exception):
    """Raised by a signal handler, as Celery raises ``SoftTimeLimitExceeded``."""


def stored_bytes(cluster: SyncCluster) -> int:
    return cluster.run(lambda running: running.broker(0).store.max_physical_offset)


@contextmanager
def interrupted_when_stored(cluster: SyncCluster) -> Iterator[None]:
    """Interrupt this thread as soon as the broker has stored something, and let no answer of the broker arrive."""
    before = stored_bytes(cluster)

    def interrupt() -> None:
        wait_for(lambda: stored_bytes(cluster) > before, "the broker stores a message")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise LimitError

    previous = signal.signal(signal.SIGUSR1, handler)
    cluster.run(lambda running: running.link(0).drop(Direction.TO_CLIENT))
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        with pytest.raises(LimitError):
            yield
    finally:
        other.join()
        signal.signal(signal.SIGUSR1, previous)
        cluster.run(lambda running: running.link(0).restore())


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_task_that_is_sent_again_after_an_interruption_is_stored_once(is_delayed: bool) -> None:
    options = {"send_timeout": 30}
    with (
        SyncCluster(links=True) as cluster,
        Connection(f"cometmq://{cluster.namesrv_address}", transport_options=options) as connection,
    ):
        queue = connection.SimpleQueue("interrupted")
        eta = datetime.now(UTC) + timedelta(seconds=6 if is_delayed else -1)
        headers = {"id": "some-task", "task": "add", "retries": 0, "eta": eta.isoformat()}
        queue.put("first", headers={**headers, "id": "first"})  # the client knows what the broker can do from now on
        with interrupted_when_stored(cluster):
            queue.put("task", headers=headers)
        queue.put("task", headers=headers)
        assert sorted(queue.get(timeout=20).payload for _ in range(2)) == ["first", "task"]
        with pytest.raises(Empty):
            queue.get(timeout=0.3)


@contextmanager
def interrupted_with_a_message() -> Iterator[None]:
    """Interrupt this thread in the very step in which it gets a message."""

    with interrupted_when(_Call.wait, lambda returned: isinstance(returned, PoppedMessage | dict)):
        yield


@contextmanager
def interrupted_when(function: Callable[..., object], is_now: Callable[[object], bool]) -> Iterator[None]:
    """Interrupt this thread when a function returns something."""

    def interrupt(frame: FrameType, event: str, returned: object) -> None:
        if event == "return" and frame.f_code is function.__code__ and is_now(returned):
            raise LimitError

    sys.setprofile(interrupt)
    try:
        with pytest.raises(LimitError):
            yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("is_private", [False, True])
def test_a_message_that_comes_with_an_interruption_comes_again(
    connection: Connection, connect: Connect, name: str, is_private: bool
) -> None:
    with connection.channel() as channel:
        queue = Queue(name, routing_key=name, exclusive=is_private)(channel)
        queue.declare()
        for body in "ab":
            Producer(channel).publish(body, routing_key=name)
        with interrupted_with_a_message():
            wait_for(lambda: queue.get() and False, "a message")
        assert [message.payload for message in (queue.get(), queue.get()) if message] == ["a", "b"]
        Producer(channel).publish("c", routing_key=name)
        with interrupted_with_a_message():
            wait_for(lambda: queue.get() and False, "a message")
    if not is_private:  # the channel has given it back
        with connect().SimpleQueue(name) as other:
            assert sorted(other.get(timeout=10).payload for _ in range(3)) == ["a", "b", "c"]


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("function", [Channel._next_delivery_tag, Channel._accept])
def test_a_consumer_that_is_interrupted_gets_the_message_again(
    connection: Connection, name: str, function: Callable[..., object], is_private: bool
) -> None:
    received = Received()
    with connection.channel() as channel:
        queue = Queue(name, routing_key=name, exclusive=is_private)
        queue(channel).declare()
        with Consumer(channel, [queue], callbacks=[received], prefetch_count=1):
            Producer(channel).publish("m", routing_key=name)
            wait_for(lambda: connection.transport.mailbox._items, "the message")
            with interrupted_when(function, lambda _: True):
                connection.drain_events(timeout=10)
            drain(connection, received, 1)
            Producer(channel).publish("n", routing_key=name)
            drain(connection, received, 2)
    assert received.bodies == ["m", "n"]
