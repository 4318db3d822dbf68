"""An orderly group under a clock that the test moves: members join, leave, pause and die; every call is judged.

What is judged, per queue: nobody begins a call while the broker has the lock for another; a message is not
begun before the one in front of it was done once, and never skips ahead of where its queue was; no two calls
run at a time, but for one that its process slept through.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

from cometmq.client import ClientInstance, ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer
from cometmq.client.consumer.listener import Verdict
from cometmq.clock import TimerHandle
from cometmq.message.names import retry_topic
from cometmq.remoting.bodies import MessageQueue, TopicConfig
from cometmq.testing import Cluster, VirtualClock

T = TypeVar("T")

TOPIC = "Ordered"


class PausableClock:
    """A member's view of the time: while it is paused its timers wait, as those of a stopped process do."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.awake = asyncio.Event()
        self.awake.set()
        self.pauses = 0
        self._late: list[Callable[[], object]] = []

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        return self._clock.call_later(delay_s, self._fire, callback, args)

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        return self._clock.call_at(when_ms, self._fire, callback, args)

    def _fire(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.awake.is_set():
            callback(*args)
        else:
            self._late.append(lambda: callback(*args))

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self.awake.wait()

    def pause(self) -> None:
        self.awake.clear()
        self.pauses += 1

    def resume(self) -> None:
        self.awake.set()
        late, self._late = self._late, []
        for callback in late:
            callback()


class Member:
    """One orderly consumer and what it is doing."""

    def __init__(self, group: OrderedGroup, name: str, config: PushConfig) -> None:
        self.name = name
        self.clock = PausableClock(group.clock)
        self.instance = ClientInstance(group.cluster.namesrv_address, client_id=name, clock=self.clock)
        self.consumer = PushConsumer(group.name, self.listen, config=config, instance=self.instance)
        self._group = group
        self._dead = asyncio.Event()

    async def listen(self, messages: Sequence[MessageExt]) -> Verdict:
        await self.clock.awake.wait()
        if self._dead.is_set():
            await asyncio.Event().wait()
        return await self._group.consumed(self, messages)

    async def kill(self) -> None:
        """End it as SIGKILL does: no offsets, no unlock, no goodbye, connections gone."""
        self._dead.set()
        await self.instance.release()


class OrderedGroup:
    """The group, its broker, and the judge."""

    def __init__(self, *, queues: int = 2, config: PushConfig | None = None) -> None:
        self.name = "orderly"
        self.clock = VirtualClock()
        self.cluster = Cluster(clock=self.clock)
        self.config = config or PushConfig(
            orderly=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, pull_batch_size=4
        )
        self.queues = queues
        self.members: dict[str, Member] = {}
        self.sent = 0
        self.call_takes_s = 0.0
        self.failures: list[Verdict | Exception] = []
        """The answers of the next calls, before all others succeed."""
        self.begun: dict[int, list[tuple[str, int]]] = defaultdict(list)
        """Per queue: which member began which offset, in order."""
        self.done: dict[int, set[int]] = defaultdict(set)
        self.calls: list[int] = []
        """The queue of each call, in order."""
        self.wrong: list[str] = []
        self._running: dict[int, tuple[Member, int]] = {}
        self._numbers = 0

    async def __aenter__(self) -> Self:
        await self.cluster.__aenter__()
        self.instance = ClientInstance(self.cluster.namesrv_address, clock=self.clock)
        self.producer = Producer("p", instance=self.instance)
        await self.producer.start()
        self.cluster.broker(0).topics.put(
            TopicConfig(topic_name=TOPIC, read_queue_nums=self.queues, write_queue_nums=self.queues)
        )
        await self.pass_time(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.failures.clear()
        for member in list(self.members.values()):
            member.clock.resume()
            await self.until_done(member.consumer.close())
        await self.until_done(self.producer.close())
        await self.cluster.__aexit__()

    # --- what happens ---

    async def send(self, count: int) -> None:
        """Send to the queues in turn."""
        for _ in range(count):
            queue = MessageQueue(TOPIC, "broker-0", self.sent % self.queues)
            await self.until_done(self.producer.send(Message(TOPIC, b"%d" % self.sent), queue=queue))
            self.sent += 1

    async def join(self) -> Member:
        self._numbers += 1
        member = self.members[f"member-{self._numbers}"] = Member(self, f"member-{self._numbers}", self.config)
        await member.consumer.subscribe(TOPIC)
        await self.until_done(member.consumer.start())
        return member

    async def leave(self, member: Member) -> None:
        del self.members[member.name]
        await self.until_done(member.consumer.close())

    async def kill(self, member: Member) -> None:
        del self.members[member.name]
        await member.kill()
        for queue in [queue for queue, running in self._running.items() if running[0] is member]:
            del self._running[queue]

    async def pass_time(self, seconds: float) -> None:
        """Move the clock; everybody does meanwhile what is due."""
        await self.clock.run_for(seconds)

    async def until_done(self, work: Awaitable[T]) -> T:
        """Move the clock until something has ended."""
        return await self.clock.run_until(work, 100.0)

    async def until(self, condition: Callable[[], object], within_s: float = 300.0) -> None:
        """Move the clock until a condition holds."""
        deadline = self.clock.monotonic() + within_s
        while not condition():
            assert self.clock.monotonic() < deadline, f"not within {within_s:g} s; {self.state()}"
            await self.pass_time(0.2)

    async def all_done(self, within_s: float = 300.0) -> None:
        """Everything sent was consumed."""
        await self.until(lambda: sum(map(len, self.done.values())) == self.sent, within_s)
        assert not self.wrong, "\n".join(self.wrong)

    def state(self) -> str:
        return f"{ {queue: len(done) for queue, done in self.done.items()} } of {self.sent}, {dict(self.begun)}"

    # --- the judge ---

    async def consumed(self, member: Member, messages: Sequence[MessageExt]) -> Verdict:
        first = messages[0]
        if first.stored_topic == retry_topic(self.name):
            return None
        queue = first.queue_id
        self.calls.append(queue)
        other, pauses = self._running.get(queue, (member, -1))
        if other.clock.pauses == pauses:
            self.wrong.append(f"{member.name} and {other.name} consume queue {queue} at a time")
        mine = self._running[queue] = (member, member.clock.pauses)
        try:
            self._judge(member, queue, [message.queue_offset for message in messages])
            if self.call_takes_s:
                await member.clock.sleep(self.call_takes_s)
            await member.clock.awake.wait()
            if self.failures:
                verdict = self.failures.pop(0)
                if isinstance(verdict, Exception):
                    raise verdict
                return verdict
            self.done[queue].update(message.queue_offset for message in messages)
            return None
        finally:
            if self._running.get(queue) is mine:
                del self._running[queue]

    def _judge(self, member: Member, queue: int, offsets: list[int]) -> None:
        begun, first = self.begun[queue], offsets[0]
        where = MessageQueue(TOPIC, "broker-0", queue)
        holder = next((broker.locks.holder(self.name, where) for broker in self.cluster.brokers), None)
        if holder not in (None, member.name):
            self.wrong.append(f"{member.name} begins {offsets} of queue {queue} although {holder} holds it")
        if first and first - 1 not in self.done[queue]:
            self.wrong.append(f"{member.name} begins {offsets} of queue {queue} before {first - 1} is done")
        if begun and first > begun[-1][1] + 1:
            self.wrong.append(f"{member.name} begins {offsets} of queue {queue} after {begun[-1]}")
        if offsets != list(range(first, first + len(offsets))):
            self.wrong.append(f"{member.name} begins {offsets} of queue {queue} in one call")
        begun += ((member.name, offset) for offset in offsets)
