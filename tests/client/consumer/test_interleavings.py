"""Polls, seeks, pauses, assignments, commits and closes in every order that an event loop may choose."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest
from tests.helpers.interleaving import interleaved
from tests.helpers.waiting import until

from cometmq.client import ClientStateError, ConsumeFromWhere, LitePullConfig, LitePullConsumer, Message, MessageExt
from cometmq.remoting.bodies import MessageQueue
from cometmq.testing import Cluster

SEEDS = range(20)
QUEUES = 4
MESSAGES = 40
"""In each queue."""
CONFIG = LitePullConfig(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, pull_batch_size=3, auto_commit_interval_s=0
)


class Witness:
    """Checks the messages of one consumer, queue by queue.

    The next offset follows the last one, or a seek that was called names it, or the queue was assigned again: then it
    is not before the messages that were consumed when it was left.
    """

    def __init__(self, queues: list[MessageQueue]) -> None:
        self.next: dict[MessageQueue, int | None] = dict.fromkeys(queues)
        self.consumed = dict.fromkeys(queues, 0)
        self.sought: dict[MessageQueue, list[int]] = {queue: [] for queue in queues}
        self.left: dict[MessageQueue, int] = {}
        """Queues that may have been left, and the offset before which all was consumed."""
        self.seen = 0

    def poll_begins(self) -> None:
        self.consumed = {queue: at or 0 for queue, at in self.next.items()}

    def assigning(self) -> None:
        for queue, at in self.consumed.items():
            self.left[queue] = min(at, self.left.get(queue, at))

    def got(self, messages: list[MessageExt]) -> None:
        for message in messages:
            queue, offset = MessageQueue(message.topic, message.broker_name, message.queue_id), message.queue_offset
            due = self.next[queue]
            if due is not None and offset != due:
                if self.left.get(queue, due + 1) <= offset <= due:
                    del self.left[queue]
                else:
                    assert offset in self.sought[queue], f"{queue}: {offset} instead of {due}"
                    self.sought[queue].remove(offset)
            self.next[queue] = offset + 1
            self.seen += 1


def readers(queue: MessageQueue) -> list[asyncio.Task[object]]:
    """The tasks that read a queue, or are going to."""
    return [task for task in asyncio.all_tasks() if task.get_name() == f"read {queue}"]


async def filled(cluster: Cluster) -> list[MessageQueue]:
    await cluster.create_topic("play", queues=QUEUES)
    for number in range(QUEUES * MESSAGES):
        await cluster.send(Message("play", b"%d" % number))
    return [MessageQueue("play", cluster.broker(0).config.broker_name, number) for number in range(QUEUES)]


async def play(consumer: LitePullConsumer, witness: Witness, queues: list[MessageQueue], random: Random) -> None:
    """Do one thing, while others are being done."""
    queue = random.choice(queues)
    try:
        match random.randrange(7):
            case 0 | 1:
                offset = random.randrange(MESSAGES)
                witness.sought[queue].append(offset)
                await consumer.seek(queue, offset)
            case 2:
                witness.sought[queue].append(0)
                await consumer.seek_to_begin(queue)
            case 3:
                consumer.pause([queue])
                await asyncio.sleep(0)
                consumer.resume([queue])
            case 4:
                chosen = random.sample(queues, random.randint(1, len(queues)))
                witness.assigning()
                await consumer.assign(chosen)
            case 5:
                await consumer.commit()
            case 6:
                consumer.reset_offsets("play", {queue: (offset := random.randrange(MESSAGES))})
                witness.sought[queue].append(offset)
    except ClientStateError as error:
        if "not assigned" not in str(error):
            raise


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_message_comes_twice_between_two_seeks(cluster: Cluster, seed: int) -> None:
    queues = await filled(cluster)
    witness = Witness(queues)
    with interleaved(seed) as random:
        consumer = LitePullConsumer("played", config=CONFIG, instance=cluster.client_instance())
        async with asyncio.timeout(30), consumer, asyncio.TaskGroup() as group:
            await consumer.assign(queues)

            async def poll() -> None:
                with suppress(ClientStateError):  # it is closed
                    while True:
                        witness.poll_begins()
                        witness.got(await consumer.poll(0.0, max_messages=random.randint(1, 5)))
                        await asyncio.sleep(0)

            group.create_task(poll())
            for _ in range(15):
                await asyncio.gather(*(play(consumer, witness, queues, random) for _ in range(random.randint(1, 4))))
            witness.assigning()
            await consumer.assign(queues)
            for queue in queues:
                witness.sought[queue].append(0)
                await consumer.seek_to_begin(queue)
            await until(lambda: all(len(readers(queue)) == 1 for queue in queues))
            await until(lambda: all(witness.next[queue] == MESSAGES for queue in queues))
            await consumer.close()
        assert not any(map(readers, queues))
    committed = [cluster.broker(0).offsets.query("played", "play", queue.queue_id) for queue in queues]
    assert committed == [MESSAGES] * QUEUES


async def read_twice(consumer: LitePullConsumer, count: int) -> list[int]:
    """The offsets of the next messages, and of as many again if they come."""
    messages = await consumer.poll(5.0, max_messages=count)
    while len(messages) < count:
        messages += await consumer.poll(5.0, max_messages=count - len(messages))
    await until(lambda: len(readers(next(iter(consumer.assignment)))) == 1)
    return [message.queue_offset for message in messages + await consumer.poll(0.0)]


async def test_two_seeks_at_once_are_one_after_the_other(cluster: Cluster) -> None:
    queues = await filled(cluster)
    async with LitePullConsumer("sought", config=CONFIG, instance=cluster.client_instance()) as consumer:
        await consumer.assign(queues[:1])
        await asyncio.gather(consumer.seek(queues[0], 10), consumer.seek(queues[0], 20))
        assert await read_twice(consumer, MESSAGES - 20) == list(range(20, MESSAGES))
        # A seek that needs two answers and is called first is not the last one to act.
        await asyncio.gather(consumer.seek(queues[0], 30), consumer.seek_to_begin(queues[0]))
        assert await read_twice(consumer, MESSAGES) == list(range(MESSAGES))


async def test_a_new_expression_is_for_the_queues_that_are_read_already(cluster: Cluster) -> None:
    await cluster.create_topic("tagged", queues=1)
    queue = MessageQueue("tagged", cluster.broker(0).config.broker_name, 0)
    for number in range(20):
        await cluster.send(Message("tagged", b"x", tags="AB"[number % 2]))
    async with LitePullConsumer("by-hand", config=CONFIG, instance=cluster.client_instance()) as consumer:
        await consumer.assign([queue], "A")
        assert [message.tags for message in await consumer.poll(5.0, max_messages=2)] == ["A", "A"]
        await consumer.assign([queue], "B")
        assert [message.queue_offset for message in await consumer.poll(5.0, max_messages=2)] == [5, 7]
    async with LitePullConsumer("member", config=CONFIG, instance=cluster.client_instance()) as consumer:
        await consumer.subscribe("tagged", "A")
        assert [message.queue_offset for message in await consumer.poll(5.0, max_messages=2)] == [0, 2]
        await consumer.subscribe("tagged", "B")
        assert [message.queue_offset for message in await consumer.poll(5.0, max_messages=2)] == [5, 7]
