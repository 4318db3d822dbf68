"""Messages that arrive just when a signal's handler raises are not consumed: the program never got them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from tests.client.sync.test_interrupted_steps import AlarmError, bodies, consumer_of

from cometmq.client import Message
from cometmq.client.sync.base import _Call
from cometmq.remoting.bodies import MessageQueue
from cometmq.testing import SyncCluster

SENT = [b"%d" % number for number in range(6)]
TAKES: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "poll": lambda consumer: consumer.poll,
    "receive": lambda consumer: lambda: consumer.receive(32),
    "batches": lambda consumer: consumer.batches().__next__,
    "messages": lambda consumer: iter(consumer).__next__,
}


@contextmanager
def interrupted_with_messages() -> Iterator[None]:
    """Raise in this thread, as a signal's handler may, in the very step in which messages reach it."""

    def ring(frame: FrameType, event: str, returned: object) -> None:
        if event == "return" and returned and frame.f_code is _Call.wait.__code__:
            raise AlarmError

    sys.setprofile(ring)
    try:
        with pytest.raises(AlarmError):
            yield
    finally:
        sys.setprofile(None)


def got_by(take: Callable[[], Any], number: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < number:
        got += bodies(take())
    return got


@pytest.fixture
def sent() -> Iterator[SyncCluster]:
    with SyncCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        for body in SENT:
            cluster.send(Message("orders", body))
        yield cluster


ALL = [("lite pull", by) for by in ("poll", "batches", "messages")] + [
    ("push", by) for by in ("receive", "batches", "messages")
]


@pytest.mark.parametrize(("kind", "by"), ALL)
def test_they_come_in_the_next_step(sent: SyncCluster, kind: str, by: str) -> None:
    with consumer_of(sent, kind) as consumer:
        take = TAKES[by](consumer)
        for _ in range(3):
            with interrupted_with_messages():
                take()
        assert got_by(take, len(SENT)) == SENT


@pytest.mark.parametrize(("kind", "by"), ALL)
def test_they_come_to_the_next_consumer_when_this_one_is_closed(sent: SyncCluster, kind: str, by: str) -> None:
    with consumer_of(sent, kind) as consumer:
        take = TAKES[by](consumer)
        with interrupted_with_messages():
            take()
    with consumer_of(sent, kind) as other:
        assert got_by(TAKES[by](other), len(SENT)) == SENT


def test_a_step_after_others_gives_back_only_its_own(sent: SyncCluster) -> None:
    with consumer_of(sent, "lite pull") as consumer:
        assert consumer.poll(max_messages=2)
        with interrupted_with_messages():
            consumer.poll(max_messages=3)
    with consumer_of(sent, "lite pull") as other:
        assert got_by(other.poll, 4) == SENT[2:]


def test_a_commit_and_the_position_do_not_count_them(sent: SyncCluster) -> None:
    with consumer_of(sent, "lite pull") as consumer:
        with interrupted_with_messages():
            consumer.poll()
        (queue,) = consumer.assignment
        assert consumer.position(queue) == 0
        consumer.commit()
        assert consumer.committed(queue) == 0


def test_a_pause_and_a_seek_hold_for_them(sent: SyncCluster) -> None:
    with consumer_of(sent, "lite pull") as consumer:
        with interrupted_with_messages():
            consumer.poll()
        (queue,) = consumer.assignment
        assert isinstance(queue, MessageQueue)
        consumer.pause([queue])
        assert consumer.poll(timeout_s=0.05) == []
        consumer.resume([queue])
        consumer.seek(queue, 4)
        assert got_by(consumer.poll, 2) == SENT[4:]
