"""Pops from topics of type PRIORITY: the order of levels, retries that keep theirs, and shares that read in turn."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import GROUP, TOPIC, Popper
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.message.properties import PRIORITY
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig, encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.pop_headers import NotificationRequestHeader, PeekMessageRequestHeader
from cometmq.testing import VirtualClock

LEVELS = 4
RETRY = f"%RETRY%{GROUP}_{TOPIC}"


def make_topic(broker: Broker, levels: int = LEVELS, kind: str = "PRIORITY") -> None:
    broker.topics.put(
        TopicConfig(
            topic_name=TOPIC, read_queue_nums=levels, write_queue_nums=levels, attributes={"message.type": kind}
        )
    )


@pytest.fixture
def popper(broker: Broker, wire: Wire, clock: VirtualClock) -> Popper:
    make_topic(broker)
    return Popper(wire, clock)


async def send(wire: Wire, *levels: int, **fields: Any) -> None:
    for number, level in enumerate(levels):
        answer = await wire.send(TOPIC, b"%d.%d" % (level, number), properties=f"{PRIORITY}\x01{level}", **fields)
        assert answer.code == 0, answer


async def set_factor(wire: Wire, factor: object) -> str | None:
    group = SubscriptionGroupConfig(group_name=GROUP, attributes={"+priority.factor": str(factor)})
    return (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(group))).remark


def bodies(found: list[Any]) -> list[bytes]:
    return [message.body for message in found]


async def test_higher_levels_come_first_and_each_in_order(wire: Wire, popper: Popper) -> None:
    await send(wire, 0, 3, 1, 3, 2, 0)
    assert bodies(await popper.pop(max_msg_nums=3)) == [b"3.1", b"3.3", b"2.4"]
    await send(wire, 3)
    assert bodies(await popper.pop(max_msg_nums=2)) == [b"3.0", b"1.2"]
    assert bodies(await popper.pop()) == [b"0.0", b"0.5"]


async def test_a_level_may_be_read_alone(wire: Wire, popper: Popper) -> None:
    await send(wire, 0, 3, 1)
    assert bodies(await popper.pop(queue_id=1)) == [b"1.2"]
    assert bodies(await popper.pop()) == [b"3.1", b"0.0"]


async def test_the_order_can_be_turned_around_while_it_runs(wire: Wire, popper: Popper, broker: Broker) -> None:
    await send(wire, 3, 0, 1)
    body = b"priorityOrderAsc=false"
    assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
    assert bodies(await popper.pop()) == [b"0.1", b"1.2", b"3.0"]


async def test_a_waiting_pop_gets_the_urgent_one_of_a_round(
    wire: Wire, popper: Popper, connect_to: ConnectTo, broker: Broker, clock: VirtualClock
) -> None:
    waiting = Popper(await connect_to(broker), clock)
    command = waiting.command(poll_time=15_000, max_msg_nums=1)
    waiting.wire.post(command)
    await clock.run_for(1)
    await send(wire, 1)
    (record,) = records(await waiting.wire.answer(command.opaque))
    assert record.body == b"1.0"


async def test_a_retry_keeps_its_level(wire: Wire, popper: Popper, clock: VirtualClock, broker: Broker) -> None:
    await send(wire, 3, 1)
    await popper.pop(invisible_time=1_000)
    await clock.run_for(2)
    await send(wire, 0, 2, 3)
    found = await popper.pop(invisible_time=1_000)
    assert [(m.body, m.times) for m in found] == [(b"3.2", 0), (b"3.0", 1), (b"2.1", 0), (b"1.1", 1), (b"0.0", 0)]
    assert [m.record.topic for m in found] == [TOPIC] * 5
    retry = broker.topics.get(RETRY)
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums) == (LEVELS, LEVELS)
    for message in found:
        if message.body in (b"3.2", b"0.0"):
            assert (await popper.ack(message)).code == 0
    await clock.run_for(2)
    again = await popper.pop()
    assert [(m.body, m.times) for m in again] == [(b"3.0", 2), (b"2.1", 1), (b"1.1", 2)]
    for message in again:
        assert (await popper.ack(message)).code == 0
    await clock.run_for(100)
    assert await popper.pop() == []


async def test_retries_may_come_first_within_their_level(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker(pop_from_retry_probability_for_priority=100)
    make_topic(broker)
    popper = Popper(await connect_to(broker), clock)
    await send(popper.wire, 3, 1)
    await popper.pop(invisible_time=1_000)
    await clock.run_for(2)
    await send(popper.wire, 0, 2, 3)
    found = bodies(await popper.pop())
    assert found == [b"3.0", b"3.2", b"2.1", b"1.1", b"0.0"]


async def test_a_retry_topic_of_one_queue_gets_the_levels_and_a_crash_hides_nothing(
    wire: Wire, broker: Broker, clock: VirtualClock, tmp_path: Path, start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    make_topic(broker, kind="NORMAL")
    popper = Popper(wire, clock)
    await send(wire, 3)
    await popper.pop(invisible_time=1_000)
    await clock.run_for(2)
    assert broker.topics.get(RETRY).read_queue_nums == 1  # type: ignore[union-attr]
    make_topic(broker)
    await send(wire, 2)
    (first, second) = await popper.pop(invisible_time=1_000)
    assert (first.body, second.body, second.times) == (b"2.0", b"3.0", 1)
    await clock.run_for(2)
    copy_store(tmp_path / "store", tmp_path / "left")
    await broker.cut_off()
    await broker.stop()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "left").rename(tmp_path / "store")
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    found = await popper.pop()
    assert [(m.body, m.times) for m in found] == [(b"2.0", 1), (b"3.0", 2)]
    for message in found:
        assert (await popper.ack(message)).code == 0


async def test_fewer_queues_leave_no_retry_behind(
    wire: Wire, popper: Popper, clock: VirtualClock, broker: Broker
) -> None:
    await send(wire, 3, 1)
    await popper.pop(invisible_time=1_000)
    await clock.run_for(2)
    make_topic(broker, levels=2)
    await send(wire, 3)
    assert bodies(await popper.pop()) == [b"3.0", b"3.0", b"1.1"]


async def test_a_dead_letter_keeps_its_priority(wire: Wire, popper: Popper, clock: VirtualClock) -> None:
    group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=0)
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(group))).code == 0
    await send(wire, 3)
    await popper.pop(invisible_time=1_000)
    await clock.run_for(2)
    (dead,) = records(await wire.pull(f"%DLQ%{GROUP}", queue_id=0))
    assert dead.properties[PRIORITY] == "3"


async def test_the_factor_is_the_share_of_pops_by_priority(wire: Wire, popper: Popper) -> None:
    assert await set_factor(wire, 0) is None
    first: Counter[int] = Counter()
    for _ in range(4 * LEVELS):
        await send(wire, *range(LEVELS))
        (message,) = await popper.pop(max_msg_nums=1)
        first[message.record.queue_id] += 1
    assert first == dict.fromkeys(range(LEVELS), 4)
    assert await set_factor(wire, 100) is None
    assert {m.record.queue_id for m in await popper.pop(max_msg_nums=4)} == {3}


@pytest.mark.parametrize("factor", ["-1", "101", "9999999999", "much", ""])
async def test_a_factor_outside_of_0_to_100_is_refused(wire: Wire, popper: Popper, factor: str) -> None:
    remark = await set_factor(wire, factor)
    assert remark is not None
    assert "value is not in range(0, 100)" in remark or "For input string" in remark


async def test_pops_in_order_do_not_look_at_levels(wire: Wire, popper: Popper) -> None:
    first: Counter[int] = Counter()
    for _ in range(LEVELS):
        await send(wire, *range(LEVELS))
        (message,) = await popper.pop(max_msg_nums=1, order=True)
        first[message.record.queue_id] += 1
        assert (await popper.ack(message)).code == 0
    assert first == dict.fromkeys(range(LEVELS), 1)


async def test_a_message_of_a_level_that_is_retried_is_found_by_queries(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, 3)
    await popper.pop(invisible_time=1_000)
    await clock.run_for(2)
    asked: dict[str, Any] = {"consumer_group": GROUP, "topic": TOPIC, "queue_id": -1}
    found = await wire.call(
        RequestCode.NOTIFICATION, NotificationRequestHeader(**asked, poll_time=0, born_time=clock.now_ms())
    )
    assert found.ext_fields["hasMsg"] == "true"
    (record,) = records(await wire.call(RequestCode.PEEK_MESSAGE, PeekMessageRequestHeader(**asked, max_msg_nums=9)))
    assert (record.queue_id, record.reconsume_times) == (3, 1)


async def test_classic_pulls_read_the_levels_as_queues(wire: Wire, popper: Popper) -> None:
    await send(wire, 0, 3, 3)
    assert [record.body for record in records(await wire.pull(TOPIC, queue_id=3))] == [b"3.1", b"3.2"]
    assert [record.body for record in records(await wire.pull(TOPIC, queue_id=0))] == [b"0.0"]
