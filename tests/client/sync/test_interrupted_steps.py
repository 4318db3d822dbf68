"""A signal's handler that raises in a step of an iteration neither ends the iteration nor loses a message."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Any

import pytest

from cometmq.client import ConsumeFromWhere, LitePullConfig, Message, PushConfig
from cometmq.client.sync import SyncLitePullConsumer, SyncPushConsumer
from cometmq.client.sync.base import _Call
from cometmq.testing import SyncCluster

MESSAGES = 100
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class AlarmError(Exception):
    pass


@contextmanager
def alarm() -> Iterator[Callable[[float], None]]:
    """Yield a function that sets the time of an alarm, or with 0 none; it rings only while a step waits."""

    def ring(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is _Call.wait.__code__:
                raise AlarmError
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def consumer_of(cluster: SyncCluster, kind: str) -> Any:
    if kind == "lite pull":
        config = LitePullConfig(consume_from_where=FIRST)
        consumer: Any = SyncLitePullConsumer("g", cluster.namesrv_address, config=config)
    else:
        consumer = SyncPushConsumer("g", None, cluster.namesrv_address, config=PushConfig(consume_from_where=FIRST))
    consumer.subscribe("orders")
    return consumer


def bodies(step: Any) -> list[bytes]:
    messages = step if isinstance(step, list) else [step]
    for message in messages:
        if hasattr(message, "ack"):
            message.ack()
    return [message.body for message in messages]


@pytest.mark.parametrize("by", ["messages", "batches", "calls"])
@pytest.mark.parametrize("kind", ["lite pull", "push"])
def test_an_interrupted_step_goes_on_and_loses_no_message(kind: str, by: str) -> None:
    random = Random(7)
    with SyncCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        with consumer_of(cluster, kind) as consumer, alarm() as set_alarm:
            if by == "calls":
                take = consumer.poll if kind == "lite pull" else consumer.receive
            else:
                steps = iter(consumer) if by == "messages" else consumer.batches(8)
                take = lambda: next(steps)  # noqa: E731

            def send() -> None:
                for number in range(MESSAGES):
                    threading.Event().wait(random.random() / 500)
                    cluster.send(Message("orders", b"%d" % number))

            sending = threading.Thread(target=send)
            sending.start()
            got: list[bytes] = []
            interrupted = 0
            while len(got) < MESSAGES:
                step = None
                try:
                    set_alarm(random.choice([0.0001, 0.0002, 0.0005, 0.001]))
                    step = take()
                except AlarmError:
                    interrupted += 1
                finally:
                    set_alarm(0)
                got += [] if step is None else bodies(step)
            sending.join()
            assert got == [b"%d" % number for number in range(MESSAGES)]
            assert interrupted > 10
            consumer.close()
            if by != "calls":
                with pytest.raises(StopIteration):
                    next(steps)
            if by != "calls":
                consumer.close()
                with pytest.raises(StopIteration):
                    next(steps)
