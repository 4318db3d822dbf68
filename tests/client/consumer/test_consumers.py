from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.client.conftest import visible
from tests.helpers.waiting import answered, real_time, until
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PullStatus,
    PushConfig,
    PushConsumer,
    Retry,
)
from cometmq.client.consumer.failures import Failures
from cometmq.client.consumer.rebalance import ConsistentHash
from cometmq.client.errors import BrokerError, ClientStateError, RouteNotFoundError
from cometmq.message.message import split_records

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def produce(server: Deployment, topic: str, numbers: Sequence[int], tags: str | None = None) -> None:
    async with Producer("p", server.address) as producer:
        await producer.send_many([Message(topic, b"%d" % number, tags=tags) for number in numbers])


class Log:
    """A listener that remembers what it got; its calls may come from any thread."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.threads: set[str] = set()

    def __call__(self, messages: Sequence[MessageExt]) -> None:
        self.threads.add(threading.current_thread().name)
        self.seen += [int(message.body) for message in messages]

    async def listen(self, messages: Sequence[MessageExt]) -> None:
        self(messages)


# --- pull -----------------------------------------------------------------------------------------


async def test_pulls_read_a_queue_from_any_offset(server: Deployment, topic: str, group: str) -> None:
    async with Producer("p", server.address) as producer, PullConsumer(group, server.address) as consumer:
        queue = (await consumer.queues(topic))[0]
        assert (await consumer.pull(queue, 0)).status is PullStatus.NO_NEW_MSG
        for number in range(5):
            await producer.send(Message(topic, b"%d" % number), queue=queue)
        await visible(server.address, topic, 5)
        pulled = await consumer.pull(queue, 2, 2)
        assert [message.body for message in pulled.messages] == [b"2", b"3"]
        assert (pulled.status, pulled.next_offset, pulled.min_offset, pulled.max_offset) == (PullStatus.FOUND, 4, 0, 5)
        beyond = await consumer.pull(queue, 99)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 5)
        raw = await consumer.pull_raw(queue, 1, 2)
        assert [message.body for message in split_records(raw.body)] == [b"1", b"2"]


async def test_offsets_that_a_group_commits_side_by_side_are_all_kept(
    server: Deployment, topic: str, group: str
) -> None:
    async with Admin(server.address) as admin:
        await admin.create_topic(topic, queues=64)
    for number in range(10):
        async with PullConsumer(f"{group}-{number}", server.address) as consumer:
            queues = await consumer.queues(topic)
            assert len(queues) == 64
            await asyncio.gather(*(consumer.commit(queue, 7) for queue in queues))
            assert [await consumer.committed(queue) for queue in queues] == [7] * len(queues)


async def test_a_waiting_pull_gets_the_message_that_arrives(server: Deployment, topic: str, group: str) -> None:
    async with Producer("p", server.address) as producer, PullConsumer(group, server.address) as consumer:
        queue = (await consumer.queues(topic))[0]
        await producer.send(Message(topic, b"first"), queue=queue)
        assert (await consumer.pull(queue, 0, wait_s=15)).max_offset == 1
        waiting = asyncio.create_task(consumer.pull(queue, 1, wait_s=15))
        await asyncio.sleep(0)
        await producer.send(Message(topic, b"second"), queue=queue)
        pulled = await waiting
        assert [message.body for message in pulled.messages] == [b"second"]


async def test_tags_are_filtered_exactly(server: Deployment, topic: str, group: str) -> None:
    # "Aa" and "BB" have the same Java hash: the broker cannot tell them apart, the client must.
    async with Producer("p", server.address) as producer, PullConsumer(group, server.address) as consumer:
        queue = (await consumer.queues(topic))[0]
        for tag in ("Aa", "BB", "C", None):
            await producer.send(Message(topic, b"x", tags=tag), queue=queue)
        await visible(server.address, topic, 4)
        pulled = await consumer.pull(queue, 0, expression="Aa || C")
        assert [message.tags for message in pulled.messages] == ["Aa", "C"]
        raw = await consumer.pull_raw(queue, 0, expression="Aa || C")
        assert [message.tags for message in split_records(raw.body)] == ["Aa", "BB", "C"]
        nothing = await consumer.pull(queue, 0, expression="D")
        assert (nothing.status, nothing.next_offset) == (PullStatus.NO_MATCHED_MSG, 4)


async def test_offsets_are_committed_and_found_again(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(40))
    async with PullConsumer(group, server.address) as consumer:
        queue = (await consumer.queues(topic))[1]
        await consumer.commit(queue, 3)
        assert await consumer.committed(queue) == 3
        await visible(server.address, topic, 40)
        assert (await consumer.offsets.min(queue), await consumer.offsets.max(queue)) == (0, 10)
        assert await consumer.offsets.at_time(queue, 0) == 0
        assert await consumer.offsets.earliest_store_time(queue) > 0


async def test_a_topic_that_does_not_exist_has_no_queues(server: Deployment, group: str) -> None:
    async with PullConsumer(group, server.address) as consumer:
        with pytest.raises(RouteNotFoundError):
            await consumer.queues("NoSuchTopic")


# --- lite pull --------------------------------------------------------------------------------------


async def test_polls_give_every_message_of_subscribed_topics(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(1000))
    seen: list[int] = []
    config = LitePullConfig(consume_from_where=FIRST, max_poll_messages=37)
    async with LitePullConsumer(group, server.address, config=config) as consumer:
        await consumer.subscribe(topic)
        while messages := await consumer.poll(60):
            assert len(messages) <= 37
            seen += [int(message.body) for message in messages]
            if len(seen) >= 1000:
                break
        assert len(consumer.assignment) == 4
    assert sorted(seen) == list(range(1000))
    async with Admin(server.address) as admin:
        assert (await admin.consume_progress(group, topic)).lag == 0


async def test_a_topic_that_a_message_has_just_made_can_be_consumed_at_once(server: Deployment, group: str) -> None:
    config = LitePullConfig(consume_from_where=FIRST)
    async with Producer("p", server.address) as producer:
        for number in range(5):
            fresh = f"Fresh-{group}-{number}"
            await producer.send(Message(fresh, b"first"))
            async with LitePullConsumer(f"{group}-{number}", server.address, config=config) as consumer:
                await consumer.subscribe(fresh)
                assert [message.body for message in await consumer.poll(60)] == [b"first"]


async def test_messages_of_the_last_poll_come_again_after_a_failure(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(20))
    config = LitePullConfig(consume_from_where=FIRST, max_poll_messages=5)
    polls: list[list[MessageExt]] = []

    async def crash_after_the_second_poll() -> None:
        async with LitePullConsumer(group, server.address, config=config) as consumer:
            await consumer.subscribe(topic)
            polls.append(await consumer.poll(60))
            polls.append(await consumer.poll(60))
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        await crash_after_the_second_poll()
    done = {int(message.body) for message in polls[0]}
    assert polls[1]
    again: set[int] = set()
    async with LitePullConsumer(group, server.address, config=config) as consumer:
        await consumer.subscribe(topic)
        while len(again) < 20 - len(done):
            again |= {int(message.body) for message in await consumer.poll(60)}
    assert again == set(range(20)) - done


async def test_a_loop_that_fails_has_consumed_all_but_its_last_message(
    server: Deployment, topic: str, group: str
) -> None:
    await produce(server, topic, range(20))
    config = LitePullConfig(consume_from_where=FIRST)
    seen: list[int] = []

    async def crash_at_the_seventh_message() -> None:
        async with LitePullConsumer(group, server.address, config=config) as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 7:
                    raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        await crash_at_the_seventh_message()
    again: set[int] = set()
    async with LitePullConsumer(group, server.address, config=config) as consumer:
        await consumer.subscribe(topic)
        async for message in consumer:
            again.add(int(message.body))
            if len(again) == 14:
                break
    assert again == set(range(20)) - set(seen[:6])


async def test_seek_pause_and_resume(server: Deployment, topic: str, group: str) -> None:
    async with Producer("p", server.address) as producer, LitePullConsumer(group, server.address) as consumer:
        queues = await consumer.queues(topic)
        for number in range(10):
            await producer.send(Message(topic, b"%d" % number), queue=queues[0])
        await consumer.assign(queues[:2])
        with pytest.raises(ClientStateError, match="not assigned"):
            await consumer.seek(queues[2], 0)

        async def at_the_end() -> bool:  # Apache's queues follow its log
            await consumer.seek_to_end(queues[0])
            return consumer.position(queues[0]) == 10

        await answered(at_the_end)
        with pytest.raises(ValueError, match="not between 0 and 10"):
            await consumer.seek(queues[0], 11)

        async def first() -> bytes:
            return (await consumer.poll(60, max_messages=1))[0].body

        await consumer.seek(queues[0], 4)
        assert await first() == b"4"
        assert consumer.position(queues[0]) == 5
        await consumer.seek_to_begin(queues[0])
        assert await first() == b"0"
        await consumer.seek_to_time(queues[0], 0)
        assert await first() == b"0"
        await consumer.seek_to_end(queues[0])
        await producer.send(Message(topic, b"new"), queue=queues[0])
        assert await first() == b"new"
        consumer.pause([queues[0]])
        await producer.send(Message(topic, b"paused"), queue=queues[0])
        await producer.send(Message(topic, b"other"), queue=queues[1])
        assert await first() == b"other"
        assert await consumer.poll(0.2) == []
        consumer.resume([queues[0]])
        assert await first() == b"paused"
        await consumer.commit()
        assert await consumer.committed(queues[0]) == 12
        with pytest.raises(ClientStateError, match="manually"):
            await consumer.subscribe(topic)


# --- push -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_listeners_get_every_message_once(
    server: Deployment, topic: str, group: str, kind: str, batch: int
) -> None:
    await produce(server, topic, range(500))
    log = Log()
    config = PushConfig(consume_from_where=FIRST, consume_batch_size=batch)
    consumer = PushConsumer(group, log if kind == "plain" else log.listen, server.address, config=config)
    await consumer.subscribe(topic)
    async with consumer, Admin(server.address) as admin:
        await until(lambda: len(log.seen) >= 500)
        connection = await admin.consumer_connection(group)
        assert connection.message_model == "CLUSTERING"
        assert topic in connection.subscription_table
        await produce(server, topic, range(500, 600))
        await until(lambda: len(log.seen) >= 600)
    assert sorted(log.seen) == list(range(600))
    assert all(("cometmq-consume" in name) == (kind == "plain") for name in log.threads)
    async with Admin(server.address) as admin:
        assert (await admin.consume_progress(group, topic)).lag == 0
        assert await admin.consumer_ids(group) == []


async def test_a_new_member_takes_its_share_and_nothing_is_lost_or_repeated(
    server: Deployment, topic: str, group: str
) -> None:
    config = PushConfig(consume_from_where=FIRST, handover_delay_s=3.0)
    first, second = Log(), Log()
    one = PushConsumer(group, first.listen, server.address, config=config)
    two = PushConsumer(group, second.listen, server.address, config=config)
    for consumer in (one, two):
        await consumer.subscribe(topic)
    await one.start()
    await produce(server, topic, range(300))
    await until(lambda: len(first.seen) >= 300)
    await two.start()
    await until(lambda: len(one.assignment) == len(two.assignment) == 2)
    assert one.assignment.isdisjoint(two.assignment)
    await produce(server, topic, range(300, 600))
    await until(lambda: len(first.seen) + len(second.seen) >= 600)
    await one.close()
    await until(lambda: len(two.assignment) == 4)
    await produce(server, topic, range(600, 900))
    await until(lambda: len(first.seen) + len(second.seen) >= 900)
    await two.close()
    assert Counter(first.seen + second.seen) == Counter(range(900))


async def test_a_hand_over_under_load_repeats_at_most_what_was_in_consumption(
    server: Deployment, topic: str, group: str
) -> None:
    seen: Counter[int] = Counter()
    running = 0
    most = 0

    async def listener(messages: Sequence[MessageExt]) -> None:
        nonlocal running, most
        running += len(messages)
        most = max(most, running)
        await real_time(0.001)  # what consuming takes: others run meanwhile
        seen.update(int(message.body) for message in messages)
        running -= len(messages)

    config = PushConfig(
        consume_from_where=FIRST, consume_concurrency=4, allocate_strategy=ConsistentHash(), handover_delay_s=3.0
    )
    members = [PushConsumer(group, listener, server.address, config=config) for _ in range(3)]
    for member in members:
        await member.subscribe(topic)
    await members[0].start()
    async with Producer("p", server.address) as producer:
        for start in range(0, 3000, 500):
            await producer.send_many([Message(topic, b"%d" % number) for number in range(start, start + 500)])
            if start == 500:
                await members[1].start()
            elif start == 1500:
                await members[0].close()
            elif start == 2000:
                await members[2].start()
        await until(lambda: len(seen) >= 3000)
    for member in members:
        await member.close()
    assert set(seen) == set(range(3000))
    assert sum(seen.values()) - 3000 <= 4 * most


async def test_closing_waits_for_what_is_in_consumption(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(4))
    began = threading.Event()
    go_on = threading.Event()
    seen: list[int] = []

    def listener(messages: Sequence[MessageExt]) -> None:
        began.set()
        assert go_on.wait(60)
        seen.extend(int(message.body) for message in messages)

    config = PushConfig(consume_from_where=FIRST, consume_batch_size=100)
    consumer = PushConsumer(group, listener, server.address, config=config)
    await consumer.subscribe(topic)
    await consumer.start()
    await until(began.is_set)
    closing = asyncio.create_task(consumer.close())
    await real_time(0.05)  # it may not end, and nothing tells that it does not
    assert not closing.done()
    go_on.set()
    await closing
    async with Admin(server.address) as admin:
        progress = await admin.consume_progress(group, topic)
        assert sum(queue.consumer_offset for queue in progress.queues) == len(seen)


async def test_failed_messages_come_again(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(6))
    tries: Counter[int] = Counter()
    topics: set[str] = set()

    async def listener(messages: Sequence[MessageExt]) -> ConsumeResult | Retry | None:
        numbers = [int(message.body) for message in messages]
        tries.update(numbers)
        topics.update(message.topic for message in messages)
        if numbers[0] == 3 and tries[3] == 1:
            raise RuntimeError("three fails once")
        if numbers[0] == 4 and tries[4] == 1:
            return Retry(delay_level=1)
        if numbers[0] == 5 and tries[5] == 1:
            return ConsumeResult.RECONSUME_LATER
        return None

    config = PushConfig(consume_from_where=FIRST, retry_delay_s=0.2)
    consumer = PushConsumer(group, listener, server.address, config=config)
    await consumer.subscribe(topic)
    async with consumer:
        await until(lambda: all(tries[number] >= (2 if number > 2 else 1) for number in range(6)), timeout_s=90)
    assert topics == {topic}
    assert {number: tries[number] for number in range(6)} == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2}


async def test_what_the_broker_does_not_take_back_is_tried_again_here(
    server: Deployment, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce(server, topic, range(3))
    tries: Counter[int] = Counter()

    async def listener(messages: Sequence[MessageExt]) -> None:
        tries.update(int(message.body) for message in messages)
        if tries[1] == 1:
            raise RuntimeError("fails at first")

    async def refuse(_: Failures, message: MessageExt, delay_level: int) -> None:
        raise BrokerError("broker", 3, "not supported", "handing back")

    monkeypatch.setattr(Failures, "send_back", refuse)
    monkeypatch.setattr(Failures, "send_again", refuse)
    config = PushConfig(consume_from_where=FIRST, retry_delay_s=0.1)
    consumer = PushConsumer(group, listener, server.address, config=config)
    await consumer.subscribe(topic)
    async with consumer, Admin(server.address) as admin:
        await until(lambda: tries[1] >= 2 and set(tries) == {0, 1, 2})
        await until(lambda: consumer.cached_count == 0)
        assert consumer.positions(topic)
    async with Admin(server.address) as admin:
        assert (await admin.consume_progress(group, topic)).lag == 0


async def test_a_blocked_listener_stops_reading_ahead(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(2000))
    go_on = asyncio.Event()
    seen = 0

    async def listener(messages: Sequence[MessageExt]) -> None:
        nonlocal seen
        await go_on.wait()
        seen += len(messages)

    config = PushConfig(consume_from_where=FIRST, pull_batch_size=16, pull_threshold_for_queue=64)
    consumer = PushConsumer(group, listener, server.address, config=config)
    await consumer.subscribe(topic)
    async with consumer:
        await until(lambda: consumer.cached_count >= 4 * 64)
        await real_time(0.3)  # nothing more may come, and nothing tells that it does not
        assert consumer.cached_count < 4 * (64 + 16)
        go_on.set()
        await until(lambda: seen >= 2000)


async def test_slow_listeners_run_side_by_side(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(8))
    together = threading.Barrier(8)

    def listener(messages: Sequence[MessageExt]) -> None:
        together.wait(60)

    consumer = PushConsumer(group, listener, server.address, config=PushConfig(consume_from_where=FIRST))
    await consumer.subscribe(topic)
    async with consumer:
        await until(lambda: consumer.positions(topic) and consumer.cached_count == 0 and together.n_waiting == 0)
        await until(lambda: sum(consumer.positions(topic).values()) == 8)


async def test_broadcasting_gives_everything_to_everyone_and_keeps_offsets_in_a_file(
    server: Deployment, topic: str, group: str, tmp_path: Path
) -> None:
    @contextlib.asynccontextmanager
    async def member(name: str, log: Log) -> AsyncIterator[None]:
        config = PushConfig(
            message_model=MessageModel.BROADCASTING, consume_from_where=FIRST, offset_store_dir=tmp_path / name
        )
        consumer = PushConsumer(group, log.listen, server.address, config=config)
        await consumer.subscribe(topic)
        async with consumer:
            yield

    await produce(server, topic, range(50))
    one, two = Log(), Log()
    async with member("one", one), member("two", two):
        await until(lambda: len(one.seen) >= 50 and len(two.seen) >= 50)
    assert sorted(one.seen) == sorted(two.seen) == list(range(50))
    (file,) = (tmp_path / "one").glob(f"*@DEFAULT/{group}/offsets.json")
    assert '"offsetTable"' in file.read_text()
    await produce(server, topic, range(50, 60))
    again = Log()
    async with member("one", again):
        await until(lambda: len(again.seen) >= 10)
    assert sorted(again.seen) == list(range(50, 60))


async def test_a_group_without_offsets_begins_where_it_is_told(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(20))
    async with Admin(server.address) as admin:
        await admin.create_group(group)
        queue = (await admin.queues(topic))[0]
        await admin.offsets.commit(group, queue, 5)
    log = Log()
    consumer = PushConsumer(group, log.listen, server.address, config=PushConfig(consume_from_where=FIRST))
    await consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(log.seen) >= 15)
    assert len(log.seen) == 15


async def test_a_queue_whose_offset_is_gone_goes_on_at_the_nearest(server: Deployment, topic: str, group: str) -> None:
    async with Admin(server.address) as admin, Producer("p", server.address) as producer:
        await admin.create_group(group)
        queue = (await admin.queues(topic))[0]
        await producer.send(Message(topic, b"1"), queue=queue)
        await visible(server.address, topic, 1)
        await admin.offsets.commit(group, queue, 1000)
        log = Log()
        consumer = PushConsumer(group, log.listen, server.address, config=PushConfig(consume_from_where=FIRST))
        await consumer.subscribe(topic)
        async with consumer:
            await until(lambda: consumer.positions(topic).get(queue) == 1)
            await producer.send(Message(topic, b"2"), queue=queue)
            await until(lambda: log.seen == [2])


async def test_an_administrator_moves_a_running_group(server: Deployment, topic: str, group: str) -> None:
    await produce(server, topic, range(20))
    log = Log()
    consumer = PushConsumer(group, log.listen, server.address, config=PushConfig(consume_from_where=FIRST))
    await consumer.subscribe(topic)
    async with consumer, Admin(server.address) as admin:
        await until(lambda: len(log.seen) >= 20)
        await until(lambda: sum(consumer.positions(topic).values()) == 20)
        await admin.reset_offset(group, topic, 0)
        await until(lambda: len(log.seen) >= 40)
    assert Counter(log.seen) == Counter(dict.fromkeys(range(20), 2))


async def test_a_topic_can_be_subscribed_later(server: Deployment, topic: str, group: str) -> None:
    async with Admin(server.address) as admin:
        await admin.create_topic(f"{topic}-later", queues=2)
    log = Log()
    consumer = PushConsumer(group, log.listen, server.address, config=PushConfig(consume_from_where=FIRST))
    await consumer.subscribe(topic)
    async with consumer:
        await consumer.subscribe(f"{topic}-later", "A")
        await produce(server, f"{topic}-later", range(10), tags="A")
        await produce(server, f"{topic}-later", range(10, 20), tags="B")
        await until(lambda: len(log.seen) >= 10)
        await consumer.unsubscribe(f"{topic}-later")
        await until(lambda: len(consumer.assignment) == 4)
    assert sorted(log.seen) == list(range(10))


async def test_wrong_use_is_refused_with_the_next_step(server: Deployment, group: str) -> None:
    consumer = PushConsumer(group, Log(), server.address)
    with pytest.raises(ClientStateError, match="call subscribe before start"):
        await consumer.start()
    await consumer.subscribe("NoSuchTopic")
    with pytest.raises(RouteNotFoundError, match="NoSuchTopic"):
        await consumer.start()
    with pytest.raises(ValueError, match="no tag"):
        await consumer.subscribe("T", "||")
