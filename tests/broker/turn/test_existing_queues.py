"""Messages that the broker itself stores go to queues that their topic has, also when it has fewer than before."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.broker.send.retrying import GROUP, RETRY, hand_back, sent
from tests.broker.transacting import COMMIT, Half, end, half_properties
from tests.broker.wire import Wire
from tests.helpers.contents import bodies

from cometmq.broker.controller import Broker
from cometmq.broker.turn.targets import existing_queue
from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.testing import VirtualClock


def topic(name: str, read: int, write: int) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=read, write_queue_nums=write)


@pytest.mark.parametrize(
    ("read", "write", "asked", "found"),
    [
        (4, 4, 3, 3),
        (4, 4, 7, 3),
        (8, 4, 7, 7),  # it is still read
        (4, 8, 7, 7),  # it is written, and read later
        (8, 4, 13, 1),
        (4, 0, 7, 3),
        (0, 0, 7, 7),  # no queue is better
    ],
)
def test_a_queue_that_is_there_stays_and_another_is_replaced_by_one_that_is_read(
    read: int, write: int, asked: int, found: int
) -> None:
    assert existing_queue(topic("T", read, write), asked) == found


async def test_retries_are_read_although_the_group_has_more_queues_than_its_retry_topic(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    broker.topics.put(topic(RETRY, 1, 1))
    broker.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=4))
    for _ in range(40):
        record = await sent(broker, wire)
        assert (await hand_back(wire, record.physical_offset)).code == 0
    await clock.run_for(10)
    assert len(bodies(broker, RETRY)) == 40


async def test_all_that_waits_for_a_queue_that_is_gone_comes_to_one_that_is_there(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    """A delay level, a delay of its own, a retry, a dead letter and half messages, by Python and by the core."""
    broker.topics.put(topic("T", 8, 8))
    broker.topics.put(topic(RETRY, 8, 8))
    broker.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=8))
    halves = []
    for body, properties in (
        (b"level", "DELAY\x011"),
        (b"timer", "TIMER_DELAY_MS\x015000"),
        (b"half 1", half_properties("a")),
        (b"half 2", half_properties("b")),
    ):
        answer = await wire.send("T", body, queue_id=7, properties=properties)
        assert answer.code == 0, answer.remark
        if body.startswith(b"half"):
            _, _, at = decode_offset_msg_id(answer.ext_fields["msgId"])
            halves.append(Half(properties[-9:-8], int(answer.ext_fields["queueOffset"]), at))
    record = await sent(broker, wire)
    for _ in range(20):
        await hand_back(wire, record.physical_offset)
        await hand_back(wire, record.physical_offset, delay_level=-1)
    broker.topics.put(topic("T", 4, 4))
    broker.topics.put(topic(RETRY, 2, 2))
    for half in halves:
        assert (await end(wire, half, COMMIT)).code == 0
    await clock.run_for(20)
    assert Counter(bodies(broker, "T", 3)) == Counter([b"level", b"timer", b"half 1", b"half 2"])
    assert len(bodies(broker, RETRY, 0)) + len(bodies(broker, RETRY, 1)) == 20
    lacking = [
        (name, queue_id)
        for name, queues in broker.store.queues().items()
        for queue_id, queue in queues.items()
        if (config := broker.topics.get(name)) is not None and queue_id >= config.read_queue_nums and queue.max_offset()
    ]
    assert lacking == []


async def test_messages_of_one_queue_keep_their_order(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    broker.topics.put(topic("T", 8, 8))
    for number in range(10):
        await wire.send("T", b"%d" % number, queue_id=5, properties=f"TIMER_DELAY_MS\x01{5000 + number}")
    broker.topics.put(topic("T", 4, 4))
    await clock.run_for(10)
    assert bodies(broker, "T", 1) == [b"%d" % number for number in range(10)]
