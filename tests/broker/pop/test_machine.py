"""A state machine: sends, pops, acks, changes, admin resets, stops and crashes at any time, against a model.

The model knows of each message whether it is acknowledged and until when it is invisible by its last handle. It checks
that nothing is seen before its time, nothing after its acknowledgement, and that everything else is seen again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from tests.broker.machine import BrokerMachine
from tests.broker.pop.popping import GROUP, TOPIC, Got, Popper
from tests.broker.wire import Wire

from cometmq.message.pop_info import ReceiptHandle
from cometmq.testing import VirtualClock

TIMES_MS = st.sampled_from([0, 1, 50, 1_000, 30_000])
QUEUES = st.sampled_from([-1, 0, 1])


class Model:
    """A message as the consumers know it."""

    def __init__(self) -> None:
        self.visible_at = 0
        self.handle: ReceiptHandle | None = None
        self.acked = False
        self.deliveries = 0


class PopMachine(BrokerMachine):
    """One topic of two queues, one group, one consumer."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.wire: Wire | None = None
        self.models: dict[bytes, Model] = {}
        self.old: list[tuple[Got, ReceiptHandle]] = []
        self.current: dict[bytes, Got] = {}
        self.number = 0

    async def connected(self) -> Popper:
        if self.wire is None:
            server = self.running.server
            self.wire = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
        return Popper(self.wire, self.clock)

    async def leave(self) -> None:
        if self.wire is not None:
            await self.wire.close()
            self.wire = None

    # --- rules ----------------------------------------------------------------------------------
    @rule(count=st.integers(1, 4), queue_id=st.sampled_from([0, 1]))
    def send(self, count: int, queue_id: int) -> None:
        async def work() -> None:
            popper = await self.connected()
            for _ in range(count):
                body = b"%d" % self.number
                self.number += 1
                answer = await popper.wire.send(TOPIC, body, queue_id=queue_id)
                assert answer.code == 0
                self.models[body] = Model()

        self.run(work())

    @precondition(lambda self: self.models)
    @rule(most=st.integers(1, 8), invisible_ms=TIMES_MS, queue_id=QUEUES)
    def pop(self, most: int, invisible_ms: int, queue_id: int) -> None:
        self.run(self.popped(max_msg_nums=most, invisible_time=invisible_ms, queue_id=queue_id))

    async def popped(self, **fields: Any) -> list[Got]:
        popper = await self.connected()
        found = await popper.pop(**fields)
        now_ms = self.clock.now_ms()
        for message in found:
            model = self.models[message.body]
            assert not model.acked, f"{message} came after its acknowledgement"
            assert model.visible_at <= now_ms, f"{message} came {model.visible_at - now_ms} ms before its time"
            assert message.times == model.deliveries, f"{message} says {message.times}, not {model.deliveries}"
            if model.handle is not None:
                self.old.append((message, model.handle))
            model.deliveries += 1
            model.handle = message.handle
            model.visible_at = message.handle.pop_time + fields["invisible_time"]
            self.current[message.body] = message
        return found

    @precondition(lambda self: self.current)
    @rule(data=st.data(), batch=st.booleans())
    def ack(self, data: st.DataObject, batch: bool) -> None:
        bodies = data.draw(st.lists(st.sampled_from(sorted(self.current)), min_size=1, max_size=4, unique=True))

        async def work() -> None:
            popper = await self.connected()
            await self.clock.skip(0)
            held = [body for body in bodies if self.is_held(body)]
            messages = [self.current[body] for body in bodies]
            for message in messages:
                handle = self.models[message.body].handle
                assert handle is not None
                message.handle = handle
            if batch:
                assert (await popper.batch_ack(messages)).code == 0
            else:
                for message in messages:
                    assert (await popper.ack(message)).code == 0
            for body in held:
                self.models[body].acked = True

        self.run(work())

    def is_held(self, body: bytes) -> bool:
        """An acknowledgement counts before the time is over; at that moment the broker has ended it.

        The alarms of this moment must have rung: those of a pop with no time at all ring when the clock is next asked.
        """
        return self.clock.now_ms() < self.models[body].visible_at

    @precondition(lambda self: self.current)
    @rule(data=st.data(), invisible_ms=TIMES_MS, twice=st.booleans())
    def change(self, data: st.DataObject, invisible_ms: int, twice: bool) -> None:
        body = data.draw(st.sampled_from(sorted(self.current)))

        async def work() -> None:
            popper = await self.connected()
            await self.clock.skip(0)
            for _ in range(1 + twice):
                model, message = self.models[body], self.current[body]
                assert model.handle is not None
                held = self.is_held(body) and not model.acked
                fresh = await popper.change(message, invisible_ms, model.handle)
                if held:
                    self.old.append((message, model.handle))
                    model.handle = fresh
                    model.visible_at = fresh.pop_time + invisible_ms

        self.run(work())

    @precondition(lambda self: self.old)
    @rule(data=st.data(), change=st.booleans())
    def use_an_old_handle(self, data: st.DataObject, change: bool) -> None:
        message, handle = data.draw(st.sampled_from(self.old))

        async def work() -> None:
            popper = await self.connected()
            if change:
                await popper.change(message, 0, handle)
            else:
                assert (await popper.ack(message, handle)).code == 0

        self.run(work())

    @rule(ms=st.sampled_from([1, 49, 1_000, 31_000]))
    def move_clock(self, ms: int) -> None:
        self.run(self.clock.skip(ms / 1000))

    # --- what always holds ----------------------------------------------------------------------
    @invariant()
    def the_broker_counts_what_is_in_flight(self) -> None:
        if self.broker is None:
            return
        now_ms = self.clock.now_ms()
        held = sum(not m.acked and m.handle is not None and m.visible_at > now_ms for m in self.models.values())
        retry = f"%RETRY%{GROUP}_{TOPIC}"
        state = self.broker.pops.state
        assert state.in_flight(TOPIC, GROUP) + state.in_flight(retry, GROUP) >= held

    def teardown(self) -> None:
        """In the end everything that was not acknowledged comes once more."""

        async def rest() -> None:
            await self.clock.skip(31)
            left = {body for body, model in self.models.items() if not model.acked}
            seen: set[bytes] = set()
            for _ in range(len(self.models) + 2):
                seen |= {m.body for m in await self.popped(max_msg_nums=32, invisible_time=60_000, queue_id=-1)}
            assert seen == left, f"lost: {left - seen}, too many: {seen - left}"

        if self.broker is not None and self.models:
            self.run(rest())
        super().teardown()


PopMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestPops = PopMachine.TestCase
