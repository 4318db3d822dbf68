"""Orderly consumption: one call at a time for each queue, in order, whoever joins, leaves, pauses or dies."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.client.consumer.ordered_group import OrderedGroup
from tests.helpers.examples import run
from tests.helpers.waiting import answered, until
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    ClientInstance,
    ClientRpcHook,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    PartlySentError,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    Retry,
    Suspend,
)
from cometmq.client.consumer.listener import Verdict
from cometmq.client.errors import RouteNotFoundError
from cometmq.client.sync import SyncAdmin, SyncPushConsumer
from cometmq.message.names import dlq_topic, retry_topic
from cometmq.remoting.command import RemotingCommand

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def test_queues_are_consumed_in_order_by_one_member() -> None:
    async with OrderedGroup() as group:
        await group.send(20)
        await group.join()
        await group.all_done(within_s=30)
        assert [offset for _, offset in group.begun[0]] == list(range(10))


async def test_a_newcomer_gets_a_queue_as_soon_as_the_call_that_runs_has_ended() -> None:
    async with OrderedGroup() as group:
        group.call_takes_s = 5.0
        await group.send(20)
        await group.join()
        await group.pass_time(8)
        await group.join()
        await group.all_done()
        names = {queue: list(dict.fromkeys(name for name, _ in begun)) for queue, begun in group.begun.items()}
        assert sorted(names.values()) == [["member-1"], ["member-1", "member-2"]]
        assert all([offset for _, offset in begun] == list(range(10)) for begun in group.begun.values())


async def test_a_member_that_leaves_hands_its_queues_over_at_once() -> None:
    async with OrderedGroup() as group:
        one = await group.join()
        await group.join()
        await group.pass_time(3)
        await group.send(8)
        await group.all_done(within_s=10)
        await group.leave(one)
        await group.send(8)
        await group.all_done(within_s=10)


async def test_the_queues_of_a_killed_member_wait_until_its_locks_are_over() -> None:
    async with OrderedGroup() as group:
        one = await group.join()
        two = await group.join()
        await group.pass_time(3)
        await group.kill(one)
        await group.send(8)
        await group.until(lambda: len(two.consumer.assignment) == 2, 30)
        await group.pass_time(20)
        assert sum(map(len, group.done.values())) == 4, "the other queue may still be consumed by the lost member"
        await group.all_done(within_s=60)


async def test_a_member_paused_past_its_locks_goes_on_only_where_nobody_took_over() -> None:
    async with OrderedGroup() as group:
        one = await group.join()
        await group.pass_time(3)
        group.call_takes_s = 1.0
        await group.send(12)
        await group.pass_time(2.5)
        one.clock.pause()
        await group.join()
        await group.pass_time(70)
        assert {name for begun in group.begun.values() for name, _ in begun} == {"member-1", "member-2"}
        one.clock.resume()
        await group.all_done()


@pytest.mark.parametrize(
    ("verdict", "rests_s"),
    [
        (Suspend(seconds=7.0), 7),
        (ValueError("no"), 1),
        (ConsumeResult.RECONSUME_LATER, 1),
        (Retry(), 1),
        (Suspend(), 1),
    ],
)
async def test_a_queue_rests_after_a_failure_and_goes_on_with_the_same_message(
    verdict: Verdict | Exception, rests_s: float
) -> None:
    async with OrderedGroup(queues=1) as group:
        await group.join()
        await group.pass_time(3)
        group.failures = [verdict] * 2
        await group.send(3)
        await group.until(lambda: group.begun[0], 5)
        await group.pass_time(2 * rests_s - 0.5)
        assert not group.done[0]
        await group.all_done(within_s=2)
        assert [offset for _, offset in group.begun[0]] == [0, 0, 0, 1, 2]


async def test_failures_of_one_queue_do_not_hold_up_another() -> None:
    config = PushConfig(orderly=True, consume_from_where=FIRST, suspend_current_queue_s=50.0, consume_concurrency=1)
    async with OrderedGroup(queues=2, config=config) as group:
        await group.join()
        await group.pass_time(3)
        group.failures = [ConsumeResult.RECONSUME_LATER]
        await group.send(2)
        await group.pass_time(3)
        await group.send(10)
        await group.pass_time(10)
        assert sorted(map(len, group.done.values())) == [6]
        await group.all_done(within_s=50)


async def test_a_busy_queue_lets_others_go_first_after_a_minute() -> None:
    config = PushConfig(orderly=True, consume_from_where=FIRST, consume_concurrency=1)
    async with OrderedGroup(queues=2, config=config) as group:
        group.call_takes_s = 10.0
        await group.send(40)
        await group.join()
        await group.all_done(within_s=900)
        turns: list[tuple[str, int]] = []
        assert len(group.calls) == 40
        for queue in group.calls:
            if turns and turns[-1][0] == str(queue):
                turns[-1] = (str(queue), turns[-1][1] + 1)
            else:
                turns.append((str(queue), 1))
        assert max(count for _, count in turns) <= 7
        assert len(turns) >= 5


async def test_the_part_of_a_batch_that_is_done_does_not_come_again() -> None:
    config = PushConfig(orderly=True, consume_from_where=FIRST, consume_batch_size=4)
    async with OrderedGroup(queues=1, config=config) as group:
        group.failures = [Suspend(first=3)]
        group.done[0] = {0, 1, 2}  # as the listener says
        await group.send(4)
        await group.join()
        await group.all_done()
        assert [offset for _, offset in group.begun[0]] == [0, 1, 2, 3, 3]


async def test_locks_are_renewed_as_long_as_the_member_lives() -> None:
    async with OrderedGroup() as group:
        await group.join()
        await group.pass_time(3)
        group.call_takes_s = 100.0
        await group.send(4)
        await group.all_done()
        assert group.begun[0] == [("member-1", 0), ("member-1", 1)]


async def test_a_broker_away_for_long_ends_the_trust_in_its_locks() -> None:
    async with OrderedGroup() as group:
        one = await group.join()
        await group.pass_time(3)
        group.call_takes_s = 25.0
        await group.send(8)
        await group.pass_time(5)
        await group.until_done(group.cluster.stop_broker(0))
        await group.pass_time(70)
        begun = sum(map(len, group.begun.values()))
        assert begun <= 4, "two more calls at most began while the lock was trusted"
        await group.until_done(group.cluster.start_broker(0))
        await group.all_done()
        assert one.consumer.cached_count == 0


async def test_a_killed_broker_changes_nothing_of_the_order() -> None:
    async with OrderedGroup() as group:
        for _ in range(2):
            await group.join()
        await group.pass_time(30)
        group.call_takes_s = 0.5
        for _ in range(3):
            await group.send(12)
            await group.pass_time(1.2)
            await group.until_done(group.cluster.kill_broker(0))
            await group.pass_time(2)
            await group.until_done(group.cluster.start_broker(0))
        await group.all_done()
        assert {member for begun in group.begun.values() for member, _ in begun} == {"member-1", "member-2"}


# --- against a broker of either system --------------------------------------------------------------


class Log:
    """The messages of each queue, in order; safe in threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[int, list[int]] = defaultdict(list)
        self.busy: Counter[int] = Counter()
        self.overlaps = 0

    def __call__(self, messages: Sequence[MessageExt]) -> None:
        queue = messages[0].queue_id
        with self.lock:
            self.busy[queue] += 1
            self.overlaps += self.busy[queue] > 1
            self.queues[queue] += [int(message.body) for message in messages]
        with self.lock:
            self.busy[queue] -= 1

    async def listen(self, messages: Sequence[MessageExt]) -> None:
        self(messages)

    @property
    def count(self) -> int:
        return sum(map(len, self.queues.values()))


def ordered(**more: Any) -> PushConfig:
    return PushConfig(orderly=True, consume_from_where=FIRST, rebalance_interval_s=2.0, **more)


async def send_keys(server: Deployment, topic: str, numbers: Sequence[int]) -> None:
    async with Producer("p", server.address) as producer:
        for number in numbers:
            await producer.send(Message(topic, b"%d" % number), sharding_key=f"key-{number % 8}")


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_members_of_a_group_keep_the_order_of_every_key_while_queues_move(
    server: Deployment, topic: str, group: str, kind: str
) -> None:
    log = Log()
    listener = log if kind == "plain" else log.listen
    one, two = (PushConsumer(group, listener, server.address, config=ordered(consume_batch_size=3)) for _ in range(2))
    for consumer in (one, two):
        await consumer.subscribe(topic)
    await one.start()
    await send_keys(server, topic, range(100))
    await until(lambda: log.count >= 100)
    await two.start()
    await send_keys(server, topic, range(100, 200))
    await until(lambda: log.count >= 200 and len(two.assignment) == 2)
    await send_keys(server, topic, range(200, 300))
    await until(lambda: log.count >= 300)
    await one.close()
    await send_keys(server, topic, range(300, 400))
    await until(lambda: log.count >= 400)
    await two.close()
    assert log.overlaps == 0
    assert sorted(number for numbers in log.queues.values() for number in numbers) == list(range(400))
    for numbers in log.queues.values():
        assert numbers == sorted(numbers)
    async with Admin(server.address) as admin:
        assert (await admin.consume_progress(group, topic)).lag == 0


async def test_a_synchronous_consumer_keeps_the_order_too(server: Deployment, topic: str, group: str) -> None:
    await send_keys(server, topic, range(50))
    log = Log()
    consumer = SyncPushConsumer(group, log, server.address, config=ordered())
    consumer.subscribe(topic)
    with consumer:
        await until(lambda: log.count >= 50)
    assert log.overlaps == 0
    assert all(numbers == sorted(numbers) for numbers in log.queues.values())


async def routed(reader: PullConsumer, topic: str) -> Sequence[MessageQueue]:
    """The queues of a topic that the broker has just made, none as long as the nameserver has not heard of it."""
    try:
        return await reader.queues(topic)
    except RouteNotFoundError:
        return ()


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_message_that_fails_too_often_is_sent_away_and_the_queue_goes_on(
    server: Deployment, topic: str, group: str, at_once: bool
) -> None:
    tries: list[tuple[bytes, int]] = []

    async def listener(messages: Sequence[MessageExt]) -> Verdict:
        (message,) = messages
        if message.stored_topic == retry_topic(group):
            return None
        tries.append((message.body, message.reconsume_times))
        if message.body != b"poison":
            return None
        return Retry(delay_level=-1) if at_once else ConsumeResult.RECONSUME_LATER

    sent_away: list[RemotingCommand] = []

    def see(_peer: str, request: RemotingCommand) -> None:
        if request.ext_fields.get("b", "").startswith("%RETRY%"):
            sent_away.append(request)

    hooks = [ClientRpcHook(before=see)]
    async with ClientInstance(server.address, hooks=hooks) as instance, Producer("p", server.address) as producer:
        for body in (b"poison", b"next"):
            await producer.send(Message(topic, body, keys=["k"]), sharding_key="one")
        config = ordered(max_reconsume_times=2, suspend_current_queue_s=0.05)
        consumer = PushConsumer(group, listener, config=config, instance=instance)
        await consumer.subscribe(topic)
        async with consumer:
            await until(lambda: tries and tries[-1][0] == b"next")
            failures = 0 if at_once else 2
            assert tries == [(b"poison", times) for times in range(failures + 1)] + [(b"next", 0)]
            (request,) = sent_away
            assert (request.ext_fields["j"], request.ext_fields["l"]) == (str(failures), str(failures))
        async with PullConsumer("reader", server.address) as reader:
            (queue,) = await answered(lambda: routed(reader, dlq_topic(group)))
            async with asyncio.timeout(60):
                while not (dead_letters := (await reader.pull(queue, 0, wait_s=10)).messages):
                    pass
            (dead,) = dead_letters
    assert (dead.body, dead.keys, dead.topic, dead.reconsume_times) == (b"poison", ("k",), topic, failures)
    assert dead.properties["ORIGIN_MESSAGE_ID"] == dead.msg_id


async def test_a_broadcasting_consumer_keeps_the_order_without_locks(
    server: Deployment, topic: str, group: str, tmp_path: Path
) -> None:
    await send_keys(server, topic, range(50))
    log = Log()
    config = ordered(message_model=MessageModel.BROADCASTING, offset_store_dir=tmp_path)
    consumer = PushConsumer(group, log, server.address, config=config)
    await consumer.subscribe(topic)
    async with consumer:
        await until(lambda: log.count >= 50)
    assert log.overlaps == 0
    assert all(numbers == sorted(numbers) for numbers in log.queues.values())


async def test_batches_of_one_key_follow_each_other_and_stop_at_a_failure(server: Deployment, topic: str) -> None:
    config = ProducerConfig(max_message_bytes=500)
    async with Producer("p", server.address, config=config) as producer:
        messages = [Message(topic, b"%02d" % number + b"x" * 100) for number in range(12)]
        results = await producer.send_batch(messages, sharding_key="one")
        assert len({result.queue for result in results}) == 1
        offsets = [result.queue_offset for result in results]
        assert offsets == list(range(offsets[0], offsets[0] + 12))
        nowhere = MessageQueue(topic, results[0].queue.broker_name, 99)
        with pytest.raises(PartlySentError) as partly:
            await producer.send_batch(messages, queue=nowhere)
    errors = [str(outcome) for outcome in partly.value.outcomes]
    assert "queueId[99] is illegal" in errors[0]
    assert "would overtake" in errors[-1]


def test_the_example_runs_as_written(server: Deployment, tmp_path: Path) -> None:
    with SyncAdmin(server.address) as admin:
        admin.create_topic("order-states", queues=4)
    lines = run("ordered.py", tmp_path, server.address).splitlines()
    for order in ("order-1", "order-2", "order-3"):
        states = [line.split()[1] for line in lines if line.startswith(f"{order} ") and "failed" not in line]
        assert states == ["created", "paid", "packed", "sent"]
    assert "order-2 failed, once more" in lines
