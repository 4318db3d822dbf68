"""Members of a group join, leave, subscribe and lose connections in every order that an event loop may choose.

Checked: an offset is committed only after the messages before it were consumed; nothing of a member runs after its
close; in the end every queue has one reader and every message was consumed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest
from tests.helpers.interleaving import interleaved
from tests.helpers.waiting import real_time, until

from cometmq.client import (
    ClientInstance,
    ClientStateError,
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    PushConfig,
    PushConsumer,
)
from cometmq.client.errors import RemotingError
from cometmq.message.names import retry_topic
from cometmq.remoting.client import ClientRpcHook
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import Cluster, VirtualClock

SEEDS = range(4)
TOPICS = ["play", "more"]
QUEUES = 3
MESSAGES = 12
"""In each queue."""
GROUP = "played"
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
Place = tuple[str, int]
OF_MEMBERS = ("read queue", "locks at", "reports of offsets")
"""The beginnings of the names of what members do in the background."""


class Judge:
    """The messages that the group has consumed."""

    def __init__(self) -> None:
        self.consumed: dict[Place, set[int]] = defaultdict(set)
        self.wrong: list[str] = []

    def count(self) -> int:
        return sum(map(len, self.consumed.values()))

    def add(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            self.consumed[message.topic, message.queue_id].add(message.queue_offset)

    def requested(self, _: str, request: RemotingCommand) -> None:
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            fields = request.ext_fields
            place, offset = (fields["topic"], int(fields["queueId"])), int(fields["commitOffset"])
            if place[0] != retry_topic(GROUP) and not self.consumed[place] >= set(range(offset)):
                self.wrong.append(f"{offset} of {place} is committed, {sorted(self.consumed[place])} are consumed")


class Member:
    """One consumer, which is closed at most once and may be started and closed at once."""

    def __init__(self, cluster: Cluster, clock: VirtualClock, kind: str, judge: Judge) -> None:
        hook = ClientRpcHook(before=judge.requested)
        self.instance = ClientInstance(cluster.namesrv_address, hooks=[hook], clock=clock)
        self._judge = judge
        self._is_closed = False
        self._polling: asyncio.Task[None] | None = None
        self.consumer: PushConsumer | LitePullConsumer
        if kind == "lite pull":
            config = LitePullConfig(
                consume_from_where=FIRST, pull_batch_size=2, auto_commit_interval_s=0.5, max_poll_messages=3
            )
            self.consumer = LitePullConsumer(GROUP, config=config, instance=self.instance)
        else:
            push = PushConfig(
                consume_from_where=FIRST, pull_batch_size=2, orderly=kind == "orderly push", persist_interval_s=0.5
            )
            self.consumer = PushConsumer(GROUP, self.listen, config=push, instance=self.instance)

    async def listen(self, messages: Sequence[MessageExt]) -> None:
        if self._is_closed:
            self._judge.wrong.append("a call begins after the close")
        await asyncio.sleep(0)
        self._judge.add(messages)

    async def start(self) -> None:
        await self.consumer.subscribe("play")
        with suppress(RemotingError):  # it was closed meanwhile
            await self.consumer.start()
        if isinstance(self.consumer, LitePullConsumer):
            self._polling = asyncio.create_task(self._poll(self.consumer))

    async def _poll(self, consumer: LitePullConsumer) -> None:
        with suppress(ClientStateError):
            while True:
                messages = await consumer.poll(1.0)
                self._judge.add(messages)

    async def close(self) -> None:
        await self.consumer.close()
        self._is_closed = True
        if self._polling is not None:
            await self._polling

    def lose_connections(self) -> None:
        for connection in list(self.instance.remoting.connections):
            connection.abort("the test cuts it")


class Group:
    """The members, and one thing after the other that may happen to them."""

    def __init__(self, cluster: Cluster, clock: VirtualClock, kind: str, random: Random) -> None:
        self.judge = Judge()
        self.members: list[Member] = []
        self._cluster = cluster
        self._clock = clock
        self._kind = kind
        self._random = random

    async def join(self) -> None:
        member = Member(self._cluster, self._clock, self._kind, self.judge)
        self.members.append(member)
        await member.start()

    async def play(self) -> None:
        random = self._random
        member = random.choice(self.members)
        match random.randrange(7):
            case 0 | 1 if len(self.members) < 3:
                await self.join()
            case 2 if len(self.members) > 1:
                self.members.remove(member)
                await member.close()
            case 3:
                stillborn = Member(self._cluster, self._clock, self._kind, self.judge)
                await asyncio.gather(stillborn.start(), stillborn.close())
                await stillborn.close()
            case 4:
                with suppress(ClientStateError, RemotingError):  # it is being closed
                    await member.consumer.subscribe("more")
            case 5:
                await member.consumer.unsubscribe("more")
            case _:
                member.lose_connections()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["lite pull", "push", "orderly push"])
async def test_a_group_loses_no_message_and_no_commit(
    cluster: Cluster, clock: VirtualClock, kind: str, seed: int
) -> None:
    for topic in TOPICS:
        await cluster.create_topic(topic, queues=QUEUES)
    with interleaved(seed) as random:
        group = Group(cluster, clock, kind, random)

        async def send() -> None:
            for number in range(QUEUES * MESSAGES):
                for topic in TOPICS:
                    await cluster.send(Message(topic, b"%d" % number))

        async def pass_time() -> None:
            while True:
                clock.advance(0.05)
                await real_time(0.001)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            passing = tasks.create_task(pass_time())
            sending = tasks.create_task(send())
            await group.join()
            for _ in range(8):
                await asyncio.gather(*(group.play() for _ in range(random.randint(1, 3))))
            await sending
            for member in group.members:
                await member.consumer.subscribe("more")
            await until(lambda: group.judge.count() == QUEUES * MESSAGES * len(TOPICS))
            await until(lambda: readers(TOPICS) == QUEUES * len(TOPICS))
            await asyncio.gather(*(member.close() for member in group.members))
            passing.cancel()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(OF_MEMBERS)]
    assert not group.judge.wrong
    offsets = cluster.broker(0).offsets
    committed = [offsets.query(GROUP, topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]
    assert committed == [MESSAGES] * QUEUES * len(TOPICS)


def readers(topics: Sequence[str]) -> int:
    """The number of tasks that read a queue, or are going to."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return sum(name.startswith("read queue") and any(f" of {topic} " in name for topic in topics) for name in names)
