"""Messages that the broker stores again by itself: each round of the loop stores few, however large they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.broker.admin.test_topic_attributes import change
from tests.broker.lite.subscribing import GROUP as LITE_GROUP
from tests.broker.lite.subscribing import PARENT, Reader, make_group, make_parent
from tests.broker.pop.popping import GROUP, TOPIC, Got, Popper
from tests.broker.transacting import send_half
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.broker.limits import POP_REVIVE_MESSAGES, STORED_AGAIN_BYTES
from cometmq.message.names import TRANS_HALF_TOPIC, dlq_topic
from cometmq.message.pop_info import pop_retry_topic
from cometmq.message.properties import LITE_TOPIC
from cometmq.testing import VirtualClock

LARGE = bytes(600_000)
COUNT = 12
DUE_IN_MS = 60_000


class Rounds:
    """The growth of a queue and of the log in each round of the broker's loop."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._store = broker.store
        self._topic = topic
        self._before = self._ends()
        self.messages: list[int] = []
        self.log_bytes: list[int] = []
        broker.server.end_of_round = (*broker.server.end_of_round, self._note)

    def _ends(self) -> tuple[int, int]:
        return self._store.queue(self._topic, 0).max_offset(), self._store.max_physical_offset

    def _note(self) -> None:
        ends = self._ends()
        self.messages.append(ends[0] - self._before[0])
        self.log_bytes.append(ends[1] - self._before[1])
        self._before = ends


@asynccontextmanager
async def few_in_each_round(broker: Broker, topic: str, messages: int = COUNT) -> AsyncIterator[Rounds]:
    """Check that so many messages are stored in a topic in the ``with`` block, few in each round."""
    rounds = Rounds(broker, topic)
    yield rounds
    assert sum(rounds.messages) == messages
    assert max(rounds.messages) <= POP_REVIVE_MESSAGES
    assert max(rounds.log_bytes) < STORED_AGAIN_BYTES + 2 * len(LARGE)


async def pop_all(popper: Popper, clock: VirtualClock, **fields: object) -> list[Got]:
    """Pop all messages of queue 0; all are due at the same moment."""
    due_ms = clock.now_ms() + DUE_IN_MS
    found: list[Got] = []
    while some := await popper.pop(queue_id=0, **fields):
        found += some
    for message in found:
        await popper.change(message, due_ms - clock.now_ms())
    return found


async def test_large_popped_messages(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    for _ in range(COUNT):
        assert (await wire.send(TOPIC, LARGE, queue_id=0)).code == 0
    assert len(await pop_all(Popper(wire, clock), clock)) == COUNT
    async with few_in_each_round(broker, pop_retry_topic(TOPIC, GROUP)):
        await clock.run_for(DUE_IN_MS / 1000 + 1)


@pytest.mark.parametrize(("count", "body"), [(COUNT, LARGE), (400, b"small")], ids=["large", "many"])
async def test_messages_of_many_message_groups_that_die_together(
    broker: Broker, wire: Wire, clock: VirtualClock, count: int, body: bytes
) -> None:
    popper = Popper(wire, clock)
    group = broker.groups.find(GROUP)
    assert group is not None
    group.retry_max_times = 0
    for number in range(count):
        sent = await wire.send(TOPIC, body, queue_id=0, properties=f"__SHARDINGKEY\x01{number}\x02")
        assert sent.code == 0
    assert len(await pop_all(popper, clock, order=True, by_message_group=True)) == count
    async with few_in_each_round(broker, dlq_topic(GROUP), count):
        await clock.run_for(DUE_IN_MS / 1000 + 1)


async def test_large_expired_messages_of_a_lite_topic(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await make_parent(wire)
    await make_group(wire)
    await change(wire, "+expired.messages=dead-letter", PARENT)
    reader = Reader(wire, clock)
    await reader.sync("a")
    for _ in range(COUNT):
        sent = await wire.send(PARENT, LARGE, properties=f"{LITE_TOPIC}\x01a\x02COMETMQ_TTL_MS\x015000")
        assert sent.code == 0
    await clock.skip(6)
    async with few_in_each_round(broker, dlq_topic(LITE_GROUP)):
        wire.post(reader.command(poll_time=10_000))
        await clock.run_for(1)


async def test_expired_messages_of_many_lite_topics(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    topics, each = 20, 10
    await make_parent(wire)
    await make_group(wire)
    await change(wire, "+expired.messages=dead-letter", PARENT)
    reader = Reader(wire, clock)
    await reader.sync(*map(str, range(topics)))
    for number in range(topics * each):
        properties = f"{LITE_TOPIC}\x01{number % topics}\x02COMETMQ_TTL_MS\x015000"
        assert (await wire.send(PARENT, b"small", properties=properties)).code == 0
    await clock.skip(6)
    async with few_in_each_round(broker, dlq_topic(LITE_GROUP), topics * each):
        wire.post(reader.command(poll_time=10_000))
        await clock.run_for(1)


async def test_checks_of_large_half_messages(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    for number in range(COUNT):
        await send_half(wire, f"k{number}", LARGE)
    async with few_in_each_round(broker, TRANS_HALF_TOPIC):
        await clock.run_for(70)
