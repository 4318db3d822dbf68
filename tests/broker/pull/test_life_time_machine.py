"""A state machine: sends with life times, pulls, pops, stops and crashes at any time, against a model.

The model knows of each message when its life ends. It checks that no consumer gets an expired message, that a living
one is never left out, and that each expired message becomes one dead letter of each group that reads past it.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.broker.admin.test_topic_attributes import change
from tests.broker.machine import BrokerMachine
from tests.broker.pop.popping import TOPIC, Popper
from tests.broker.wire import Wire, records
from tests.helpers.contents import stored

from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock

PULLERS, POPPERS = "pullers", "poppers"
TTLS_MS = st.sampled_from([None, None, 1, 50, 1_000, 20_000])
NEVER = 1 << 62


class LifeTimeMachine(BrokerMachine):
    """One queue; a group that pulls and may go back, and a group that pops."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.wire: Wire | None = None
        self.ends: dict[bytes, int] = {}
        self.offsets: dict[bytes, int] = {}
        self.makes_letters = False
        self.position = 0
        self.acked: set[bytes] = set()

    async def connected(self) -> Popper:
        if self.wire is not None and self.wire.reader.at_eof():  # it was idle for two minutes
            await self.leave()
        if self.wire is None:
            self.wire = Wire(*await asyncio.open_connection("127.0.0.1", self.running.server.port))
        return Popper(self.wire, self.clock, POPPERS)

    async def leave(self) -> None:
        if self.wire is not None:
            await self.wire.close()
            self.wire = None

    def letters(self, group: str) -> Counter[bytes]:
        return Counter(record.body for record in stored(self.running, f"%DLQ%{group}"))

    # --- rules ----------------------------------------------------------------------------------
    @precondition(lambda self: not self.ends)
    @rule()
    def make_letters(self) -> None:
        async def work() -> None:
            answer = await change((await self.connected()).wire, "+expired.messages=dead-letter", TOPIC)
            assert answer.code == 0

        self.makes_letters = True
        self.run(work())

    @rule(ttls=st.lists(TTLS_MS, min_size=1, max_size=40))
    def send(self, ttls: list[int | None]) -> None:
        async def work() -> None:
            wire = (await self.connected()).wire
            for ttl_ms in ttls:
                body = b"%d" % len(self.ends)
                now_ms = self.clock.now_ms()
                properties = "" if ttl_ms is None else f"COMETMQ_TTL_MS\x01{ttl_ms}"
                answer = await wire.send(TOPIC, body, properties=properties)
                assert answer.code == 0, answer
                self.offsets[body] = int(answer.ext_fields["queueOffset"])
                self.ends[body] = NEVER if ttl_ms is None else now_ms + ttl_ms

        self.run(work())

    @precondition(lambda self: self.ends)
    @rule(most=st.integers(1, 32))
    def pull(self, most: int) -> None:
        self.run(self.pulled(most))

    async def pulled(self, most: int) -> bool:
        """Pull once; return whether the consumer is at the end."""
        wire = (await self.connected()).wire
        before, now_ms = self.position, self.clock.now_ms()
        letters = self.letters(PULLERS)
        answer = await wire.pull(TOPIC, queue_offset=before, max_msg_nums=most, consumer_group=PULLERS)
        self.position = int(answer.ext_fields["nextBeginOffset"])
        got = {record.body for record in records(answer)}
        for body, offset in self.offsets.items():
            if not before <= offset < self.position:
                assert body not in got
            elif body in got:
                assert self.ends[body] > now_ms, f"{body!r} came {now_ms - self.ends[body]} ms after its end"
            else:
                assert self.ends[body] <= now_ms, f"{body!r} was left out {self.ends[body] - now_ms} ms before its end"
                assert letters[body] == self.makes_letters, f"{body!r} was passed over without its dead letter"
        is_answered = answer.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)
        assert is_answered, answer
        return self.position == len(self.ends)

    @precondition(lambda self: self.position)
    @rule(share=st.floats(0, 1))
    def go_back(self, share: float) -> None:
        self.position = int(self.position * share)

    @precondition(lambda self: self.ends)
    @rule(most=st.integers(1, 32), invisible_ms=st.sampled_from([50, 1_000, 30_000]), acks=st.booleans())
    def pop(self, most: int, invisible_ms: int, acks: bool) -> None:
        self.run(self.popped(most, invisible_ms, acks=acks))

    async def popped(self, most: int, invisible_ms: int, *, acks: bool) -> int:
        popper = await self.connected()
        now_ms = self.clock.now_ms()
        found = await popper.pop(max_msg_nums=most, invisible_time=invisible_ms, queue_id=0)
        for message in found:
            assert self.ends[message.body] > now_ms, f"{message} came after its end"
            assert message.body not in self.acked
            if acks:
                assert (await popper.ack(message)).code == 0
                self.acked.add(message.body)
        return len(found)

    @rule(seconds=st.sampled_from([0.001, 0.05, 1, 31]))
    def wait(self, seconds: float) -> None:
        self.run(self.clock.run_for(seconds))

    # --- the end --------------------------------------------------------------------------------
    async def read_all(self) -> None:
        """Read everything that lives, and compare the dead letters."""
        for _ in range(3 + len(self.ends)):
            if await self.pulled(32):
                break
        else:
            raise AssertionError(f"the pulls stay at offset {self.position}")
        quiet = 0
        while quiet < 4:
            quiet = 0 if await self.popped(32, 1_000, acks=True) else quiet + 1
            await self.clock.run_for(31)
        now_ms = self.clock.now_ms()
        expired = {body for body, end_ms in self.ends.items() if end_ms <= now_ms}
        for group, needed in ((POPPERS, self.ends.keys() - self.acked), (PULLERS, set[bytes]())):
            letters = self.letters(group)
            assert set(letters.values()) <= {1}, f"{group} have {letters - Counter(set(letters))} twice"
            assert letters.keys() <= (expired if self.makes_letters else set()), group
            assert needed <= expired, f"{needed - expired} did not come"
            if self.makes_letters:
                assert needed <= letters.keys(), f"{group} lack {needed - letters.keys()}"
        assert not self.letters(POPPERS).keys() & self.acked

    def teardown(self) -> None:
        try:
            if self.broker is not None and self.ends:
                self.run(self.read_all())
        finally:
            super().teardown()


LifeTimeMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLifeTimeMachine = LifeTimeMachine.TestCase
