"""No client of the gRPC port holds up another one for 50 ms: neither in a round of the event loop nor by its queue."""

from __future__ import annotations

import asyncio
import gc
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

import pytest
import pytest_asyncio
from tests.helpers.waiting import real_time, until
from tests.proxy.client import message, receive
from tests.proxy.held_up import Attack, Peer, held_up
from tests.proxy.wire import HELLO, data, headers, prefixed

from cometmq.broker.limits import MAX_TOPIC_QUEUES
from cometmq.client import Admin
from cometmq.proxy.embedded import BrokerEndpoint
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import ErrorCode
from cometmq.proxy.limits import MAX_SETTINGS_TOPICS, MAX_STREAMS
from cometmq.proxy.protocol import v2
from cometmq.proxy.rpc.server import GrpcServer
from cometmq.testing import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOST_S = 0.05
TRIES = 5
"""A longer time is measured again: once in a while the store writes a file."""
SECONDS = 0.15
"""Processor time of an attack."""
CALLS = 4_000
"""Number of calls of which less than a tenth of an object each may be left; a connection leaves ten."""
MOST_HANDLES = 20
HANDLES: list[str] = []
"""Of messages that one client has received; attackers acknowledge some of them."""
BROKER = v2.Broker(name="broker-0")
NO_WINDOW = frames.PREFACE + frames.settings({4: 0}) + frames.window_update(0, 2**30)
TOPIC = v2.Resource(name="T")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[GrpcServer]:
    """The server of a broker with messages of a megabyte, and with a topic of as many queues as there may be."""
    async with Cluster() as cluster:
        await cluster.create_topic("T", queues=1)
        await cluster.create_topic("Empty")
        await cluster.create_topic("Acks", queues=1)
        await cluster.create_topic("Wide", queues=MAX_TOPIC_QUEUES)
        async with Admin(instance=cluster.client_instance()) as admin:
            await admin.create_lite_topic("L", queues=1)
            await admin.create_lite_group("LG", "L", quota=-1)
        endpoint = BrokerEndpoint(cluster.broker(0))
        await endpoint.start(0)
        sender = Peer(endpoint.server, keeps=True)
        for stream in range(1, 9, 2):
            large = message("T", b"x" * 1024 * 1024)
            await sender.ask(stream, "SendMessage", v2.SendMessageRequest(messages=[large]))
        small = v2.SendMessageRequest(messages=[message("Acks", b"x") for _ in range(32)])
        await sender.ask(9, "SendMessage", small)
        HANDLES[:] = await handles_of(sender, 11)
        assert len(HANDLES) == 32
        sender.lose()
        yield endpoint.server
        await endpoint.stop()


async def handles_of(consumer: Peer, stream: int) -> list[str]:
    """Receive messages; return their receipt handles."""
    request = receive("Acks", "G", BROKER.name, invisible_duration=v2.Duration(seconds=3_600))
    call = headers(stream, "ReceiveMessage") + data(stream, prefixed(request.SerializeToString()))
    consumer.connection.data_received(call)
    while not consumer.has_answer(stream):
        await asyncio.sleep(0)
    handle = re.compile(rb"[0-9]+ [0-9]+ [0-9]+ [0-9]+ 0 broker-0 [0-9]+ [0-9]+ [0-9]+")
    return [found.decode() for found in handle.findall(bytes(consumer.transport.written))]


def calls(method: str, request: Any, name: str, *, then: bytes = b"") -> Iterator[bytes]:
    payload = prefixed(request.SerializeToString())
    for stream in range(1, 2**31, 2):
        yield headers(stream, method, client=name) + data(stream, payload) + then


PULL = v2.PullMessageRequest(
    group=v2.Resource(name="G"), message_queue=v2.MessageQueue(topic=TOPIC, broker=BROKER), batch_size=1
)
RECEIVE = v2.ReceiveMessageRequest(
    group=v2.Resource(name="G"),
    message_queue=v2.MessageQueue(topic=v2.Resource(name="Empty"), broker=BROKER),
    auto_renew=True,
)


def windows_of_a_byte(name: str) -> Iterator[bytes]:
    """Large answers wait, and each window grows by a byte again and again."""
    streams = range(1, 31, 2)
    yield NO_WINDOW
    for _, call in zip(streams, calls("PullMessage", PULL, name), strict=False):
        yield call
    while True:
        yield b"".join(frames.window_update(stream, 1) for stream in streams)


def first_windows_of_a_byte_more(name: str) -> Iterator[bytes]:
    """A thousand answers wait, and the first window of all grows by a byte again and again."""
    yield NO_WINDOW
    for _, call in zip(range(MAX_STREAMS), calls("Heartbeat", v2.HeartbeatRequest(), name), strict=False):
        yield call
    for window in range(1, 2**31):
        yield frames.settings({4: window})


def resets(name: str) -> Iterator[bytes]:
    """Receives that are given up at once."""
    yield HELLO
    payload = prefixed(RECEIVE.SerializeToString())
    for stream in range(1, 2**31, 2):
        call = headers(stream, "ReceiveMessage", client=name) + data(stream, payload)
        yield call + frames.reset(stream, ErrorCode.CANCEL)


@cache
def settings_of(topics: int, turn: int) -> bytes:
    publishing = v2.Publishing(topics=[v2.Resource(name=f"T{turn}-{number}") for number in range(topics)])
    settings = v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=publishing)
    return prefixed(v2.TelemetryCommand(settings=settings).SerializeToString())


def telemetry(name: str) -> Iterator[bytes]:
    """Streams with settings, of many clients."""
    yield HELLO
    for stream in range(1, 2**31, 2):
        begin = headers(stream, "Telemetry", client=f"{name}-{stream % 50}")
        yield begin + data(stream, settings_of(1, 0), ends=False)


def telemetry_of_many_topics(name: str) -> Iterator[bytes]:
    """Settings of as many topics as there may be, always others."""
    yield HELLO
    for stream in range(1, 2**31, 2):
        settings = settings_of(MAX_SETTINGS_TOPICS, stream % 8)
        yield headers(stream, "Telemetry", client=f"{name}-{stream}") + data(stream, settings, ends=False)


def large_pulls(name: str) -> Iterator[bytes]:
    """Pulls of a megabyte, of which the answers are read."""
    yield frames.PREFACE + frames.settings({4: 2**30}) + frames.window_update(0, 2**30)
    yield from calls("PullMessage", PULL, name, then=frames.window_update(0, 1024 * 1024 + 1024))


def wide_routes(name: str) -> Iterator[bytes]:
    """Routes of a topic with as many queues as there may be."""
    yield frames.PREFACE + frames.settings({4: 2**30}) + frames.window_update(0, 2**30)
    route = v2.QueryRouteRequest(topic=v2.Resource(name="Wide"))
    yield from calls("QueryRoute", route, name, then=frames.window_update(0, 1024 * 1024))


def acknowledgement(*handles: str) -> v2.AckMessageRequest:
    entries = [v2.AckMessageEntry(receipt_handle=handle) for handle in handles]
    return v2.AckMessageRequest(group=v2.Resource(name="G"), topic=v2.Resource(name="Acks"), entries=entries)


def acknowledgements_in_vain(name: str) -> Iterator[bytes]:
    """Handles of messages that are handed out, and one that is not, at the end of a block of the core."""
    yield frames.PREFACE + frames.settings({4: 2**30}) + frames.window_update(0, 2**30)
    own = HANDLES.pop() if len(HANDLES) > MOST_HANDLES else HANDLES[0]
    good, bad = acknowledgement(*HANDLES[:MOST_HANDLES]), acknowledgement("0 1 9999999999999 0 0 broker-0 0 0 0")
    for stream in range(1, 2**31, 2):
        request = acknowledgement(own) if stream == 1 else bad if stream % 6 == 1 else good
        yield headers(stream, "AckMessage", client=name) + data(stream, prefixed(request.SerializeToString()))


def acknowledgements_of_many_pops(name: str) -> Iterator[bytes]:
    """Calls with as many handles as their answer has room for, each of another pop."""
    yield frames.PREFACE + frames.settings({4: 2**30}) + frames.window_update(0, 2**30)
    own = HANDLES.pop() if len(HANDLES) > MOST_HANDLES else HANDLES[0]
    handles = [f"0 {pop} 9999999999999 0 0 broker-0 0 0" for pop in range(100, 390)]
    for stream in range(1, 2**31, 2):
        request = acknowledgement(*([own] if stream == 1 else handles))
        yield headers(stream, "AckMessage", client=name) + data(stream, prefixed(request.SerializeToString()))


@cache
def lite_topics(action: v2.LiteSubscriptionAction, turn: int) -> bytes:
    names = [f"lite-{turn}-{number:06d}" for number in range(100_000)]
    request = v2.SyncLiteSubscriptionRequest(
        action=action, topic=v2.Resource(name="L"), group=v2.Resource(name="LG"), lite_topic_set=names
    )
    return prefixed(request.SerializeToString())


def subscriptions(name: str, action: v2.LiteSubscriptionAction) -> Iterator[bytes]:
    yield HELLO
    for stream in range(1, 2**31, 2):
        payload = lite_topics(action, stream // 2 % 2)
        starts = range(0, len(payload), 16_384)
        yield headers(stream, "SyncLiteSubscription", client=name)
        for start in starts:
            yield data(stream, payload[start : start + 16_384], ends=start == starts[-1])


def many_lite_topics(name: str) -> Iterator[bytes]:
    """Sets of a hundred thousand lite topics, in turn others."""
    return subscriptions(name, v2.LiteSubscriptionAction.COMPLETE_ADD)


def additions_of_many_lite_topics(name: str) -> Iterator[bytes]:
    """A hundred thousand lite topics more, which are too many from the second time on."""
    return subscriptions(name, v2.LiteSubscriptionAction.PARTIAL_ADD)


ATTACKS: tuple[Attack, ...] = (
    windows_of_a_byte,
    first_windows_of_a_byte_more,
    resets,
    telemetry,
    telemetry_of_many_topics,
    large_pulls,
    wide_routes,
    acknowledgements_in_vain,
    acknowledgements_of_many_pops,
    many_lite_topics,
    additions_of_many_lite_topics,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_nobody_holds_up_another_client(server: GrpcServer, attack: Attack) -> None:
    longest = []
    for _ in range(TRIES):
        gc.collect()
        gc.freeze()  # as a server does when it has started: the objects of other tests are none of its own
        found = await held_up(server, attack, attackers=3, seconds=SECONDS)
        longest.append((max(found.rounds), max(found.waits)))
        if max(longest[-1]) < MOST_S:
            return
    pytest.fail(f"rounds of the loop and waits of another client took {longest} seconds")


async def test_calls_and_streams_leave_nothing_to_the_collector_of_garbage(server: GrpcServer) -> None:
    """Its run over the leftovers of a flood takes 100 ms."""
    tasks = len(asyncio.all_tasks())

    async def is_over() -> None:
        """Wait until no call is left; on a busy machine that takes longer than a moment."""
        await real_time(0.1)
        await until(lambda: len(asyncio.all_tasks()) <= tasks and not server.is_busy)

    for attack in (resets, telemetry):
        await held_up(server, attack, attackers=1, seconds=0.02)
        await is_over()
        gc.collect()
        gc.freeze()  # clients of earlier tests may end meanwhile
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            before = server.calls
            while server.calls < before + CALLS:
                await held_up(server, attack, attackers=1, seconds=SECONDS)
            await is_over()
            gc.collect()
            garbage = Counter(type(left).__qualname__ for left in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert garbage.total() < CALLS // 10, garbage
