"""Orderly listeners that commit and roll back themselves: ``setAutoCommit(false)`` of Java's orderly context."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.client.consumer.ordered_group import TOPIC, Member, OrderedGroup
from tests.helpers.examples import run
from tests.helpers.waiting import until
from tests.interop.systems import Deployment

from cometmq.client import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    Retry,
    Rollback,
    Suspend,
)
from cometmq.client.consumer.listener import Verdict
from cometmq.client.sync import SyncAdmin, SyncProducer, SyncPushConsumer
from cometmq.message.names import dlq_topic, retry_topic

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
SUCCESS, COMMIT, ROLLBACK = ConsumeResult.SUCCESS, ConsumeResult.COMMIT, ConsumeResult.ROLLBACK
Answer = Callable[[list[int]], Verdict]


def config(**options: Any) -> PushConfig:
    return PushConfig(orderly=True, auto_commit=False, consume_from_where=FIRST, pull_batch_size=4, **options)


class ManualGroup(OrderedGroup):
    """One queue; what a call answers depends on the offsets that it gets."""

    def __init__(self, answer: Answer, **options: Any) -> None:
        super().__init__(queues=1, config=config(**options))
        self.answer = answer
        self.calls_seen: list[list[int]] = []
        self.times: list[float] = []
        self.reconsumed: list[int] = []

    async def consumed(self, member: Member, messages: Sequence[MessageExt]) -> Verdict:
        if messages[0].stored_topic == retry_topic(self.name):
            return COMMIT
        offsets = [message.queue_offset for message in messages]
        self.calls_seen.append(offsets)
        self.times.append(self.clock.monotonic())
        self.reconsumed.append(messages[0].reconsume_times)
        return self.answer(offsets)

    @property
    def offset(self) -> int:
        return self.cluster.broker(0).offsets.query(self.name, TOPIC, 0)

    async def seen(self, *offsets: int) -> None:
        """Exactly these, one a call, were consumed."""
        await self.until(lambda: len(self.calls_seen) >= len(offsets), 20)
        await self.pass_time(0.5)
        assert self.calls_seen == [[offset] for offset in offsets]


async def test_what_was_consumed_after_the_last_commit_comes_again_when_its_member_is_killed() -> None:
    async with ManualGroup(lambda offsets: COMMIT if offsets == [2] else None) as group:
        await group.send(6)
        one = await group.join()
        await group.seen(0, 1, 2, 3, 4, 5)
        await group.pass_time(6)
        assert group.offset == 3
        await group.kill(one)
        group.calls_seen.clear()
        await group.join()
        await group.until(lambda: group.calls_seen, 130)
        await group.seen(3, 4, 5)


@pytest.mark.parametrize("verdict", [None, SUCCESS])
async def test_a_member_that_leaves_reports_what_it_committed_and_no_more(verdict: Verdict) -> None:
    async with ManualGroup(lambda offsets: COMMIT if offsets == [1] else verdict) as group:
        await group.send(5)
        one = await group.join()
        await group.seen(0, 1, 2, 3, 4)
        await group.leave(one)
        assert group.offset == 2
        group.calls_seen.clear()
        await group.join()
        await group.seen(2, 3, 4)


@pytest.mark.parametrize(("verdict", "rests_s"), [(ROLLBACK, 1.0), (Rollback(), 1.0), (Rollback(seconds=7.0), 7.0)])
async def test_a_rollback_gives_everything_since_the_last_commit_again_and_counts_no_failure(
    verdict: Verdict, rests_s: float
) -> None:
    answers: dict[int, list[Verdict]] = {1: [COMMIT], 4: [verdict, COMMIT]}

    def answer(offsets: list[int]) -> Verdict:
        left = answers.get(offsets[0])
        return left.pop(0) if left else None

    async with ManualGroup(answer) as group:
        await group.send(6)
        await group.join()
        await group.until(lambda: len(group.calls_seen) == 9, 20)
        assert [offset for (offset,) in group.calls_seen] == [0, 1, 2, 3, 4, 2, 3, 4, 5]
        assert group.times[5] - group.times[4] == pytest.approx(rests_s, abs=0.01)
        assert set(group.reconsumed) == {0}
        await group.pass_time(6)
        assert group.offset == 5


async def test_a_failure_gives_its_own_messages_again_and_not_those_consumed_before() -> None:
    failed: list[int] = []

    def answer(offsets: list[int]) -> Verdict:
        if offsets == [2] and len(failed) < 2:
            failed.append(2)
            return Suspend()
        return COMMIT if offsets == [3] else None

    async with ManualGroup(answer) as group:
        await group.send(4)
        await group.join()
        await group.seen(0, 1, 2, 2, 2, 3)
        assert group.reconsumed == [0, 0, 0, 1, 2, 0]
        await group.pass_time(6)
        assert group.offset == 4


async def test_the_part_of_a_call_that_succeeded_waits_for_the_commit_too() -> None:
    answers: list[Verdict] = [Suspend(first=2), None, ROLLBACK, None, None, None]

    async with ManualGroup(lambda _: answers.pop(0), consume_batch_size=4) as group:
        await group.send(8)
        one = await group.join()
        await group.until(lambda: not answers, 20)
        # [2, 3] again after the failure; then all that was not committed, in the parts that it was consumed in
        assert group.calls_seen == [[0, 1, 2, 3], [2, 3], [4, 5, 6, 7], [0, 1], [2, 3], [4, 5, 6, 7]]
        await group.pass_time(6)
        assert group.offset == 0
        assert one.consumer.cached_count == 8
        answers[:] = [COMMIT]
        await group.send(1)
        await group.pass_time(6)
        assert group.offset == 9
        assert one.consumer.cached_count == 0


async def test_a_lost_lock_takes_back_what_was_not_committed() -> None:
    async with ManualGroup(lambda offsets: COMMIT if offsets == [0] else None) as group:
        await group.send(3)
        one = await group.join()
        await group.seen(0, 1, 2)
        await group.pass_time(6)
        one.clock.pause()
        await group.pass_time(40)
        group.calls_seen.clear()
        one.clock.resume()
        await group.seen(1, 2)


async def test_a_message_that_fails_too_often_is_a_dead_letter_without_a_commit() -> None:
    def answer(offsets: list[int]) -> Verdict:
        return ConsumeResult.RECONSUME_LATER if offsets == [0] else COMMIT

    async with ManualGroup(answer, max_reconsume_times=1) as group:
        await group.send(2)
        await group.join()
        await group.until(lambda: group.cluster.broker(0).store.queue(dlq_topic(group.name), 0).max_offset() == 1, 60)
        assert group.calls_seen == [[0], [0], [1]]
    async with ManualGroup(lambda offsets: Retry(delay_level=-1) if offsets == [0] else COMMIT) as group:
        await group.send(2)
        await group.join()
        await group.until(lambda: group.cluster.broker(0).store.queue(dlq_topic(group.name), 0).max_offset() == 1, 60)
        assert group.calls_seen == [[0], [1]]


async def test_a_listener_that_never_commits_is_told_why_nothing_more_comes(caplog: pytest.LogCaptureFixture) -> None:
    async with ManualGroup(lambda _: None, pull_threshold_for_queue=8) as group:
        await group.send(20)
        member = await group.join()
        await group.until(lambda: len(group.calls_seen) >= 8, 20)
        await group.pass_time(10)
        assert len(group.calls_seen) == 8
        assert member.consumer.cached_count == 8
    assert "the listener has not committed the last 8 messages" in caplog.text


def test_only_orderly_consumers_commit_themselves() -> None:
    with pytest.raises(ValueError, match="orderly=True"):
        PushConfig(auto_commit=False)


async def test_broadcasting_consumers_commit_themselves_too(
    server: Deployment, topic: str, group: str, tmp_path: Path
) -> None:
    seen: list[bytes] = []

    async def listener(messages: Sequence[MessageExt]) -> Verdict:
        seen.append(messages[0].body)
        return COMMIT if messages[0].body == b"1" else None

    async def consume() -> None:
        options = config(message_model=MessageModel.BROADCASTING, offset_store_dir=tmp_path)
        consumer = PushConsumer(group, listener, server.address, config=options)
        await consumer.subscribe(topic)
        async with consumer:
            await until(lambda: b"3" in seen)

    async with Producer("p", server.address) as producer:
        for number in range(4):
            await producer.send(Message(topic, b"%d" % number), sharding_key="one")
    await consume()
    assert seen == [b"0", b"1", b"2", b"3"]
    seen.clear()
    await consume()
    assert seen == [b"2", b"3"]


def test_a_plain_listener_commits_and_rolls_back(server: Deployment, group: str) -> None:
    topic = f"Manual-{group}"
    with SyncAdmin(server.address) as admin, SyncProducer("p", server.address) as producer:
        admin.create_topic(topic, queues=1)
        for number in range(6):
            producer.send(Message(topic, b"%d" % number))
        seen: list[int] = []
        enough = threading.Event()

        def listener(messages: Sequence[MessageExt]) -> Verdict:
            number = int(messages[0].body)
            seen.append(number)
            if len(seen) == 9:
                enough.set()
            if number == 4 and seen.count(4) == 1:
                return Rollback(seconds=0.01)
            return COMMIT if number in (1, 4) else None

        consumer = SyncPushConsumer(group, listener, server.address, config=config())
        consumer.subscribe(topic)
        with consumer:
            assert enough.wait(60), seen
        assert seen == [0, 1, 2, 3, 4, 2, 3, 4, 5]
        (queue,) = admin.queues(topic)
        assert admin.committed(group, queue) == 5


async def test_an_administrator_hands_a_message_to_a_listener_that_commits() -> None:
    answers: list[Verdict] = [COMMIT, ROLLBACK, Rollback(3.0), None]
    async with ManualGroup(lambda _: answers.pop(0)) as group:
        await group.send(1)
        member = await group.join()
        await group.seen(0)
        queue = MessageQueue(TOPIC, "broker-0", 0)
        async with PullConsumer("r", instance=group.cluster.client_instance()) as puller:
            (message,) = (await puller.pull(queue, 0)).messages
        said = [await member.consumer.consume_directly(message) for _ in range(3)]
        assert [result.consume_result for result in said] == ["CR_ROLLBACK", "CR_ROLLBACK", "CR_SUCCESS"]


def test_the_example_runs_as_written(server: Deployment, tmp_path: Path) -> None:
    with SyncAdmin(server.address) as admin:
        admin.create_topic("ledger-entries", queues=4)
    assert run("ordered_commit.py", tmp_path, server.address).splitlines() == [
        "not written: entry 1, entry 2, entry 3",
        "written: entry 1, entry 2, entry 3",
        "written: entry 4, entry 5, entry 6",
    ]
