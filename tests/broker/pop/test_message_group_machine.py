"""A state machine: ordered pops by message group and by queue, acks, changes, stops and crashes, against a model.

The model knows the messages of each queue in their order. It checks that a group gets nothing behind a message that is
invisible, that what comes of a group comes in order and without a gap, and that no other group is held up.
"""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.broker.machine import BrokerMachine
from tests.broker.pop.popping import TOPIC, Got, Popper, got
from tests.broker.wire import Wire

from cometmq.testing import VirtualClock

TIMES_MS = st.sampled_from([50, 1_000, 30_000])
QUEUES = st.sampled_from([0, 1])


class Model:
    """A message as the consumers know it."""

    def __init__(self, body: bytes, group: str) -> None:
        self.body = body
        self.group = group
        self.visible_at = 0
        self.attempt = ""
        self.message: Got | None = None
        self.times = 0
        """How often it came before as the first one; the same attempt does not count."""

    def locks(self, now_ms: int, attempt: str) -> bool:
        return self.visible_at > now_ms and self.attempt != attempt


class MessageGroupMachine(BrokerMachine):
    """One topic of two queues, three message groups, one group of consumers."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.wire: Wire | None = None
        self.queues: dict[int, list[Model]] = {0: [], 1: []}
        """What is not acknowledged."""
        self.number = 0

    async def connected(self) -> Popper:
        if self.wire is None:
            self.wire = Wire(*await asyncio.open_connection("127.0.0.1", self.running.server.port))
        return Popper(self.wire, self.clock)

    async def leave(self) -> None:
        if self.wire is not None:
            await self.wire.close()
            self.wire = None

    @property
    def held(self) -> list[Model]:
        return [model for queue in self.queues.values() for model in queue if model.message is not None]

    # --- rules ----------------------------------------------------------------------------------
    @rule(groups=st.text("abc", min_size=1, max_size=6), queue_id=QUEUES)
    def send(self, groups: str, queue_id: int) -> None:
        async def work() -> None:
            popper = await self.connected()
            for group in groups:
                body = b"%d" % self.number
                self.number += 1
                properties = f"__SHARDINGKEY\x01{group}\x02"
                assert (await popper.wire.send(TOPIC, body, queue_id=queue_id, properties=properties)).code == 0
                self.queues[queue_id].append(Model(body, group))

        self.run(work())

    @precondition(lambda self: self.number)
    @rule(
        most=st.integers(1, 8), times=TIMES_MS, queue_id=QUEUES, attempt=st.sampled_from("xyz"), by_group=st.booleans()
    )
    def pop(self, most: int, times: int, queue_id: int, attempt: str, by_group: bool) -> None:
        self.run(self.popped(most, times, queue_id, attempt, by_group=by_group))

    async def popped(self, most: int, invisible_ms: int, queue_id: int, attempt: str, *, by_group: bool) -> int:
        popper = await self.connected()
        answer = await popper.answer(
            order=True,
            by_message_group=by_group or None,
            attempt_id=attempt,
            max_msg_nums=most,
            invisible_time=invisible_ms,
            queue_id=queue_id,
        )
        now_ms = self.clock.now_ms()
        found = got(answer)
        queue = self.queues[queue_id]
        locked = {model.group for model in queue if model.locks(now_ms, attempt)}
        if by_group:
            free = [model for model in queue if model.group not in locked]
        else:
            free = [] if locked else queue
        assert [message.body for message in found] == [model.body for model in free[:most]]
        counts = _counts(answer.ext_fields.get("orderCountInfo") or "")
        firsts = {model.group: model for model in reversed(queue)}.values() if by_group else queue[:1]
        for model, message in zip(free, found, strict=False):
            model.times += model.message is not None and model in firsts and attempt != model.attempt
            assert counts.get(message.handle.queue_offset, 0) == model.times
            model.visible_at, model.attempt, model.message = now_ms + invisible_ms, attempt, message
        return len(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        models = data.draw(st.lists(st.sampled_from(self.held), min_size=1, max_size=3, unique=True))

        async def work() -> None:
            popper = await self.connected()
            for model in models:
                assert model.message is not None
                assert (await popper.ack(model.message)).code == 0
                for queue in self.queues.values():
                    if model in queue:
                        queue.remove(model)

        self.run(work())

    @precondition(lambda self: self.held)
    @rule(data=st.data(), invisible_ms=TIMES_MS)
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        model = data.draw(st.sampled_from(self.held))

        async def work() -> None:
            assert model.message is not None
            await (await self.connected()).change(model.message, invisible_ms)
            model.visible_at = self.clock.now_ms() + invisible_ms

        self.run(work())

    @rule(ms=st.sampled_from([1, 49, 1_000, 31_000]))
    def move_clock(self, ms: int) -> None:
        self.run(self.clock.skip(ms / 1000))

    def teardown(self) -> None:
        """In the end everything that was not acknowledged comes once more, in order."""

        async def rest() -> None:
            await self.clock.skip(31)
            for queue_id, queue in self.queues.items():
                assert await self.popped(32, 60_000, queue_id, "last", by_group=True) == min(len(queue), 32)

        if self.broker is not None and self.number:
            self.run(rest())
        super().teardown()


def _counts(info: str) -> dict[int, int]:
    parts = [part.split(" ") for part in filter(None, info.split(";"))]
    return {int(place.partition("%")[2]): int(count) for _, place, count in parts if place.startswith("qo")}


MessageGroupMachine.TestCase.settings = settings(
    max_examples=10, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMessageGroups = MessageGroupMachine.TestCase
