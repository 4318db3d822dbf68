"""``run`` and the loops of the synchronous classes, ended by signals, by a break, or by a close."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from cometmq.client import (
    ClientStateError,
    ConsumeFromWhere,
    LitePullConfig,
    Message,
    MessageExt,
    PushConfig,
    PushConsumer,
)
from cometmq.client.stop_signals import STOP_SIGNALS
from cometmq.client.sync import SyncLitePullConsumer, SyncPushConsumer
from cometmq.testing import Cluster, SyncCluster

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture(scope="module")
def shared() -> Iterator[SyncCluster]:
    with SyncCluster() as cluster:
        yield cluster


def committed(cluster: SyncCluster, group: str, topic: str) -> int:
    offsets = cluster.run(lambda inner: inner.broker(0).offsets)
    return sum(max(0, offsets.query(group, topic, queue)) for queue in range(4))


async def nothing(messages: Sequence[MessageExt]) -> None:
    """Take everything."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_run_starts_consumes_and_closes_at_a_signal(cluster: Cluster, number: signal.Signals) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    seen: list[bytes] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.body for message in messages)
        os.kill(os.getpid(), number)

    await cluster.send(Message("orders", b"1"))
    config = PushConfig(consume_from_where=FIRST)
    consumer = PushConsumer("workers", listener, config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    await consumer.run()
    assert seen == [b"1"]
    assert cluster.broker(0).offsets.query("workers", "orders", 0) == 1
    assert not cluster.broker(0).clients.consumers.groups
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    with pytest.raises(ClientStateError, match="is closed"):
        await consumer.run()


async def test_run_ends_when_it_is_cancelled_stopped_or_the_consumer_is_closed(cluster: Cluster) -> None:
    for end in ("cancel", "stop", "close"):
        consumer = PushConsumer("workers", nothing, instance=cluster.client_instance())
        await consumer.subscribe("orders")
        async with consumer:
            running = asyncio.create_task(consumer.run())
            await asyncio.sleep(0)
            if end == "cancel":
                running.cancel()
            elif end == "stop":
                consumer.stop()
            else:
                await consumer.close()
            await asyncio.wait([running])
            assert running.cancelled() == (end == "cancel")
            assert consumer._state == "closed"


def test_a_second_signal_does_what_it_did_before_and_a_handler_of_the_program_stays() -> None:
    stops: list[int] = []
    with STOP_SIGNALS.calling(lambda: stops.append(1)), STOP_SIGNALS.calling(lambda: stops.append(2)):
        os.kill(os.getpid(), signal.SIGINT)
        assert stops == [1, 2]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    own: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: own.append(1))
    try:
        with STOP_SIGNALS.calling(lambda: stops.append(3)):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (own, stops) == ([1], [1, 2])


RUN = """
import sys
from cometmq.client import ConsumeFromWhere, PushConfig
from cometmq.client.sync import SyncPushConsumer

def listener(messages):
    print("consumed", messages[0].body.decode(), flush=True)

config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer = SyncPushConsumer("terminated", listener, sys.argv[1], config=config)
consumer.subscribe("terminations")
consumer.run()
print("closed")
"""


def test_sigterm_ends_a_synchronous_run_cleanly(shared: SyncCluster) -> None:
    shared.create_topic("terminations")
    shared.send(Message("terminations", b"1"))
    with subprocess.Popen(
        [sys.executable, "-c", RUN, shared.namesrv_address], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "consumed 1\n"
        program.terminate()
        assert program.stdout.read() == "closed\n"
        assert program.wait() == 0
    assert committed(shared, "terminated", "terminations") == 1


def test_a_synchronous_loop_acknowledges_and_ends_with_the_consumer(shared: SyncCluster) -> None:
    shared.create_topic("loops")
    for number in range(8):
        shared.send(Message("loops", value=number))
    config = PushConfig(consume_from_where=FIRST)
    consumer = SyncPushConsumer("loopers", namesrv=shared.namesrv_address, config=config, deserializer=int)
    consumer.subscribe("loops")
    seen: list[int] = []
    with consumer:
        for message in consumer:
            seen.append(message.value)
            message.ack()
            if len(seen) == 4:
                break
        for batch in consumer.batches(2):
            seen += [message.value for message in batch]
            batch.ack()
            if len(seen) == 8:
                threading.Thread(target=consumer.close).start()
    assert sorted(seen) == list(range(8))
    assert committed(shared, "loopers", "loops") == 8


def test_a_synchronous_loop_polls(shared: SyncCluster) -> None:
    shared.create_topic("polled")
    for number in range(3):
        shared.send(Message("polled", value=number))
    config = LitePullConfig(consume_from_where=FIRST)
    consumer = SyncLitePullConsumer("pollers", shared.namesrv_address, config=config, deserializer=int)
    consumer.subscribe("polled")
    seen: list[int] = []
    with consumer:
        for message in consumer:
            seen.append(message.value)
            if len(seen) == 3:
                break
    assert sorted(seen) == [0, 1, 2]
    assert committed(shared, "pollers", "polled") == 3


def test_ctrl_c_in_a_synchronous_loop_loses_no_message(shared: SyncCluster) -> None:
    shared.create_topic("interrupted")
    config = PushConfig(consume_from_where=FIRST)

    consumer = SyncPushConsumer("interrupters", namesrv=shared.namesrv_address, config=config)
    consumer.subscribe("interrupted")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with consumer:
        with pytest.raises(KeyboardInterrupt):
            next(iter(consumer))
        shared.send(Message("interrupted", b"1"))
        for message in consumer:
            assert message.body == b"1"
            message.ack()
            break
