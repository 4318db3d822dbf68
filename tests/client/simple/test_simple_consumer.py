"""Simple consumers with brokers: receiving, acknowledging, giving back, dead letters."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.simple.conftest import Seen, consumer
from tests.helpers.waiting import until

from cometmq.client import (
    Admin,
    ClientStateError,
    ConsumeFromWhere,
    Message,
    MessageExt,
    PoppedMessage,
    PullConsumer,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock, settle


async def send(cluster: Cluster, topic: str, *bodies: str, **fields: Any) -> None:
    for body in bodies:
        await cluster.send(Message(topic, body.encode(), **fields))


def bodies(messages: Sequence[MessageExt]) -> list[str]:
    return [message.body.decode() for message in messages]


async def take_all(reader: SimpleConsumer, **options: Any) -> list[PoppedMessage]:
    """Receive and acknowledge until there is nothing more."""
    found: list[PoppedMessage] = []
    while messages := await reader.receive(wait_s=0, **options):
        found += messages
        await reader.ack(messages)
    return found


async def test_everything_on_all_brokers_is_received_once(two: Cluster) -> None:
    sent = [f"{topic}{number}" for topic in "ab" for number in range(100)]
    for body in sent:
        await send(two, body[0], body)
    async with consumer(two, "a", "b") as one, consumer(two, "a", "b") as other:
        found = [await take_all(reader) for reader in (one, other)]
        assert sorted(bodies(found[0] + found[1])) == sorted(sent)
        assert {message.broker_name for message in found[0]} == {"broker-0", "broker-1"}
        assert {message.delivery_attempt for message in found[0]} == {1}
        assert await one.receive(wait_s=0) == []


async def test_a_new_group_starts_at_the_first_message_or_where_it_is_told(timed: Cluster) -> None:
    await send(timed, "a", "before")
    async with consumer(timed) as reader:
        assert bodies(await reader.receive(wait_s=0)) == ["before"]
    with pytest.raises(ValueError, match="consume_from_where"):
        SimpleConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)


async def test_a_message_that_is_not_acknowledged_is_received_again(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed, invisible_s=30) as reader:
        (first,) = await reader.receive(wait_s=0)
        assert first.invisible_until_ms == clock.now_ms() + 30_000
        (again,) = await clock.run_until(reader.receive(wait_s=60), 60)
        assert (again.body, again.topic, again.delivery_attempt) == (b"m", "a", 2)
        assert again.receipt != first.receipt
        await reader.ack(again)
        await clock.run_for(120)
        assert await reader.receive(wait_s=0) == []


async def test_a_message_that_is_given_back_is_received_again_at_once(two: Cluster) -> None:
    await send(two, "a", "m")
    async with consumer(two, "a", "b") as reader:
        (message,) = await reader.receive(wait_s=5)
        await reader.change_invisible(message, 0)
        (again,) = await reader.receive(wait_s=5)
        assert again.delivery_attempt == 2
        await reader.ack(again)
        assert await reader.receive(wait_s=0) == []


async def test_a_changed_message_is_acknowledged_by_its_new_receipt(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m", "n")
    async with consumer(timed, invisible_s=30) as reader:
        messages = await reader.receive(wait_s=0) + await reader.receive(wait_s=0)
        for message in messages:
            await reader.change_invisible(message, 100)
            assert message.invisible_until_ms == clock.now_ms() + 100_000
        await clock.run_for(90)
        assert await reader.receive(wait_s=0) == []
        await reader.ack(messages)
        await clock.run_for(300)
        assert await reader.receive(wait_s=0) == []


async def test_each_of_many_messages_of_the_topic_and_of_its_retry_topic_has_its_own_receipt(
    timed: Cluster, clock: VirtualClock
) -> None:
    await send(timed, "a", *(f"old{number}" for number in range(8)))
    async with consumer(timed, invisible_s=10) as reader:
        assert len(await reader.receive(wait_s=0)) == 8
        await clock.run_for(20)
        await send(timed, "a", *(f"new{number}" for number in range(8)))
        found = await reader.receive(wait_s=0)
        assert Counter(message.delivery_attempt for message in found) == {1: 8, 2: 8}
        await reader.ack(found)
        await clock.run_for(60)
        assert await reader.receive(wait_s=0) == []


async def test_a_receipt_in_the_properties_of_a_forwarded_message_is_not_used(
    timed: Cluster, clock: VirtualClock
) -> None:
    await send(timed, "a", "m")
    async with consumer(timed, invisible_s=10) as reader:
        await reader.receive(wait_s=0)
        await clock.run_for(20)
        (again,) = await reader.receive(wait_s=0)
        await reader.ack(again)
        await send(timed, "a", "forwarded", properties={"POP_CK": again.properties["POP_CK"]})
        (forwarded,) = await reader.receive(wait_s=0)
        await reader.ack(forwarded)
        await clock.run_for(60)
        assert await reader.receive(wait_s=0) == []


async def test_after_the_last_attempt_a_message_is_a_dead_letter(timed: Cluster, clock: VirtualClock) -> None:
    async with Admin(instance=timed.client_instance()) as admin:
        await admin.create_group(SubscriptionGroupConfig(group_name="workers", retry_max_times=2))
    await send(timed, "a", "m")
    async with consumer(timed, invisible_s=10) as reader:
        for attempt in (1, 2, 3):
            (message,) = await reader.receive(wait_s=0)
            assert message.delivery_attempt == attempt
            await clock.run_for(11)
        assert await reader.receive(wait_s=0) == []
    assert await dead_letters(timed) == ["m"]


async def test_a_rejected_message_is_a_dead_letter_at_once(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as reader:
        (message,) = await reader.receive(wait_s=0)
        await reader.reject(message)
        assert await dead_letters(timed) == ["m"]
        await clock.run_for(100)
        assert await reader.receive(wait_s=0) == []


async def test_a_dead_letter_of_a_message_that_came_again_names_its_own_topic(
    timed: Cluster, clock: VirtualClock
) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as reader, PullConsumer("tools", instance=timed.client_instance()) as tools:
        (message,) = await reader.receive(wait_s=0)
        await reader.change_invisible(message, 0)
        await clock.run_for(1)
        (again,) = await reader.receive(wait_s=0)
        await reader.reject(again)
        (queue,) = await tools.queues("%DLQ%workers")
        (letter,) = (await tools.pull(queue, 0)).messages
        assert letter.properties["RETRY_TOPIC"] == "a"


async def test_others_receive_the_messages_of_a_consumer_that_has_died(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as other:
        for gives_back, found in ((False, []), (True, ["m"])):
            dead = consumer(timed, gives_back_when_gone=gives_back, invisible_s=10)
            await dead.start()
            assert bodies(await dead.receive(wait_s=0)) == ["m"]
            await dead.instance.remoting.close()
            await settle()
            await clock.run_for(1)
            assert bodies(await other.receive(wait_s=0)) == found
            await dead.close()
            await clock.run_for(10)


async def dead_letters(cluster: Cluster) -> list[str]:
    async with PullConsumer("tools", instance=cluster.client_instance()) as reader:
        return [
            body
            for queue in await reader.queues("%DLQ%workers")
            for body in bodies((await reader.pull(queue, 0)).messages)
        ]


# --- acknowledgements ---


async def test_acknowledgements_of_one_moment_are_one_request(timed: Cluster, clock: VirtualClock) -> None:
    seen = Seen(timed)
    await send(timed, "a", *map(str, range(32)))
    async with consumer(timed, instance=seen.instance) as reader:
        found = await reader.receive(wait_s=0)
        assert len(found) == 32
        seen.codes.clear()
        await asyncio.gather(*(reader.ack(message) for message in found))
        assert seen.codes == [RequestCode.BATCH_ACK_MESSAGE]
        await clock.run_for(100)
        assert await reader.receive(wait_s=0) == []


async def test_an_acknowledgement_of_nothing_is_no_request(timed: Cluster) -> None:
    async with consumer(timed) as reader:
        await reader.ack([])


async def test_a_message_of_another_process_cannot_be_acknowledged(timed: Cluster) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as reader:
        (message,) = await reader.receive(wait_s=0)
        copied = pickle.loads(pickle.dumps(message))
        assert copied.body == b"m"
        with pytest.raises(ClientStateError, match="another process"):
            await reader.ack(copied)


# --- arguments and states ---


@pytest.mark.parametrize(
    "arguments", [{"max_messages": 0}, {"max_messages": 33}, {"invisible_s": -1}, {"invisible_s": 1e6}, {"topic": "b"}]
)
async def test_arguments_out_of_range_are_refused(timed: Cluster, arguments: dict[str, Any]) -> None:
    async with consumer(timed) as reader:
        with pytest.raises(ValueError):
            await reader.receive(**arguments)


async def test_a_consumer_that_does_not_run_receives_nothing(timed: Cluster) -> None:
    reader = consumer(timed)
    with pytest.raises(ClientStateError, match="not started"):
        await reader.receive()
    async with reader:
        with pytest.raises(ClientStateError, match="is running"):
            await reader.start()
    with pytest.raises(ClientStateError, match="closed"):
        await reader.receive()
    await reader.close()


# --- closing ---


async def test_what_was_received_but_not_taken_is_given_back(two: Cluster) -> None:
    async with consumer(two, "a") as reader:
        await send(two, "a", "m", "n")
        messages = await reader.receive(wait_s=5)
        reader.give_back(messages)
    async with consumer(two, "a") as other:
        found: list[PoppedMessage] = []
        while len(found) < 2:
            found += await other.receive(wait_s=5)
        assert sorted(bodies(found)) == ["m", "n"]


async def test_a_pop_that_waits_when_its_consumer_is_closed_hides_no_message(
    timed: Cluster, clock: VirtualClock
) -> None:
    instance = timed.client_instance()
    async with instance:  # stays open when the consumer is closed
        async with consumer(timed, instance=instance) as reader:
            waiting = asyncio.ensure_future(reader.receive(wait_s=15))
            await until(lambda: len(timed.broker(0).pops.polling) == 1)
            reader.stop()
            assert await waiting == []
        await send(timed, "a", "m")
        async with consumer(timed) as other:
            assert bodies(await clock.run_until(other.receive(wait_s=5), 5)) == ["m"]


@pytest.mark.parametrize("way", ["cancel", "stop"])
async def test_a_call_that_ends_takes_its_waiting_pop_back(timed: Cluster, clock: VirtualClock, way: str) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as reader:
        (message,) = await reader.receive(wait_s=0)
        waiting = asyncio.ensure_future(reader.receive(wait_s=600))
        await until(lambda: len(timed.broker(0).pops.polling) == 1)
        waiting.cancel() if way == "cancel" else reader.stop()
        await asyncio.wait([waiting])
        await until(lambda: len(timed.broker(0).pops.polling) == 0)
        await reader.change_invisible(message, 0)
    async with consumer(timed) as other:
        (again,) = await clock.run_until(other.receive(wait_s=5), 5)
        assert again.delivery_attempt == 2


async def test_a_consumer_that_only_stops_receiving_keeps_its_messages(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed, gives_back_when_gone=True) as reader, consumer(timed) as other:
        (message,) = await clock.run_until(reader.receive(wait_s=5), 5)
        waiting = asyncio.ensure_future(reader.receive(wait_s=600))
        await until(lambda: len(timed.broker(0).pops.polling) == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await clock.run_for(10)
        assert await other.receive(wait_s=0) == []
        await reader.ack(message)
    async with consumer(timed) as third:
        assert await third.receive(wait_s=0) == []


async def test_acknowledgements_end_before_the_consumer(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as reader:
        messages = await reader.receive(wait_s=0)
        acked = asyncio.ensure_future(reader.ack(messages))
        await asyncio.sleep(0)
    await acked
    await clock.run_for(100)
    async with consumer(timed) as reader:
        assert await reader.receive(wait_s=0) == []


async def test_administrators_see_the_consumer(timed: Cluster) -> None:
    async with consumer(timed) as reader, Admin(instance=timed.client_instance()) as admin:
        connection = await admin.consumer_connection("workers")
        assert connection.consume_type == "CONSUME_ACTIVELY"
        assert set(connection.subscription_table) == {"a"}
        info = await admin.consumer_running_info("workers", reader.instance.client_id)
        assert {data.topic for data in info.subscription_set} == {"a"}


async def test_messages_have_values(timed: Cluster) -> None:
    await send(timed, "a", '{"n": 1}')
    async with consumer(timed, deserializer=dict) as reader:
        (message,) = await reader.receive(wait_s=0)
        assert message.value == {"n": 1}
