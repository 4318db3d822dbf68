"""A state machine of a topic of type PRIORITY: what is visible comes by level, whatever happened to it before.

It is the machine of :mod:`tests.broker.pop.test_machine`, with levels: messages are sent, popped, acknowledged, changed
and retried, and the broker is stopped and crashes at any time. In each pop, levels descend, each begins with its new
messages in the order of their sends, and no message of a higher level is left behind.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.broker.pop.popping import TOPIC, Got
from tests.broker.pop.test_machine import Model, PopMachine

from cometmq.message.properties import PRIORITY
from cometmq.remoting.bodies import TopicConfig

LEVELS = 3


class PriorityMachine(PopMachine):
    """One topic of three levels, one group, one consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: dict[bytes, int] = {}

    async def start(self) -> None:
        await super().start()
        if self.running.topics.get(TOPIC) is None:
            attributes = {"message.type": "PRIORITY"}
            self.running.topics.put(
                TopicConfig(topic_name=TOPIC, read_queue_nums=LEVELS, write_queue_nums=LEVELS, attributes=attributes)
            )

    @rule(levels=st.lists(st.integers(0, LEVELS + 1), min_size=1, max_size=4), delayed=st.booleans())
    def send(self, levels: list[int], delayed: bool) -> None:
        """Send messages; what is delayed is there when the send ends."""

        async def work() -> None:
            popper = await self.connected()
            for level in levels:
                body = b"%d" % self.number
                self.number += 1
                delay = "\x02TIMER_DELAY_MS\x0110" if delayed else ""
                answer = await popper.wire.send(TOPIC, body, queue_id=0, properties=f"{PRIORITY}\x01{level}{delay}")
                assert answer.code == 0
                self.models[body] = Model()
                self.levels[body] = min(level, LEVELS - 1)
            if delayed:
                await self.clock.skip(1)

        self.run(work())

    async def popped(self, **fields: Any) -> list[Got]:
        await self.clock.skip(0)
        now_ms = self.clock.now_ms()
        visible = {
            body
            for body, model in self.models.items()
            if not model.acked and (model.handle is None or model.visible_at <= now_ms)
        }
        fresh = [body for body, model in self.models.items() if model.handle is None]
        found = await super().popped(**fields)
        order = [(self.levels[message.body], message.times == 0) for message in found]
        assert order == sorted(order, reverse=True), f"not by level, new ones first: {order}"
        for level in range(LEVELS):
            new = [message.body for message in found if message.times == 0 and self.levels[message.body] == level]
            assert new == [body for body in fresh if self.levels[body] == level][: len(new)]
        left = visible - {message.body for message in found}
        if fields["queue_id"] < 0 and left:
            assert len(found) == fields["max_msg_nums"], f"{left} are left by a pop of {found}"
            assert max(self.levels[body] for body in left) <= order[-1][0], f"{left} are left"
        return found


PriorityMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLevels = PriorityMachine.TestCase
