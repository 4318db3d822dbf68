"""Handing back against a model: consuming fails, succeeds or takes long, the broker stops or crashes, in any order.

The model counts how often each message failed. Wherever a message is, it is there once: unread in its topic, on its way
back to the group, consumed, or among the dead letters, and the last exactly when it failed once more than its
maxReconsumeTimes allows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from tests.broker.machine import BrokerMachine
from tests.broker.send.retrying import DEAD, GROUP, RETRY, hand_back
from tests.broker.wire import Wire, records
from tests.helpers.contents import bodies

from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import StoredRecord
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock

TOPIC: Final = "T"
LEVELS: Final = 18
LONGEST_DELAY_S: Final = 7_200


@dataclass
class Fate:
    """The state that one message should have."""

    most: int
    """Its maxReconsumeTimes."""
    failures: int = 0
    is_consumed: bool = False
    is_dead: bool = False


class RetryMachine(BrokerMachine):
    """One broker, one consumer that keeps its offsets, and the fate of every message."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.fates: dict[bytes, Fate] = {}
        self.offsets = {TOPIC: 0, RETRY: 0}
        self.wire: Wire | None = None

    async def start(self) -> None:
        await super().start()
        await self._connect()

    async def _connect(self) -> None:
        if self.wire is not None:
            await self.wire.close()
        self.wire = Wire(*await asyncio.open_connection("127.0.0.1", self.running.server.port))

    async def _skip(self, seconds: float) -> None:
        """Let time pass, in which the broker closes idle connections."""
        await self.clock.skip(seconds)
        await self._connect()

    @property
    def consumer(self) -> Wire:
        assert self.wire is not None
        return self.wire

    # --- what may happen ------------------------------------------------------------------------
    @rule(mosts=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def send(self, mosts: list[int]) -> None:
        async def work() -> None:
            for most in mosts:
                body = b"%d" % len(self.fates)
                assert (await self.consumer.send(TOPIC, body)).code == ResponseCode.SUCCESS
                self.fates[body] = Fate(most)

        self.run(work())

    @rule(
        topic=st.sampled_from([TOPIC, RETRY]),
        verdicts=st.lists(st.sampled_from(["consumed", "failed", "failed", "given up"]), min_size=1, max_size=4),
        takes_s=st.sampled_from([0, 0, 0, 1, 1_000]),
        level=st.integers(0, 3),
    )
    def consume(self, topic: str, verdicts: list[str], takes_s: int, level: int) -> None:
        """Pull, and after a while say of each message what became of it."""
        self.run(self._consume(topic, verdicts, takes_s, level))

    async def _consume(self, topic: str, verdicts: list[str], takes_s: int, level: int) -> int:
        at = self.offsets[topic]
        answer = await self.consumer.pull(topic, consumer_group=GROUP, queue_offset=at, max_msg_nums=len(verdicts))
        found = records(answer) if answer.code == ResponseCode.SUCCESS else []
        await self._skip(takes_s)
        for record, verdict in zip(found, verdicts, strict=False):
            await self._settle(record, verdict, level)
            self.offsets[topic] = record.queue_offset + 1
        return len(found)

    async def _settle(self, record: StoredRecord, verdict: str, level: int) -> None:
        fate = self.fates[record.body]
        assert not fate.is_consumed
        assert not fate.is_dead
        assert record.reconsume_times == fate.failures
        if verdict == "consumed":
            fate.is_consumed = True
            return
        answer = await hand_back(
            self.consumer,
            record.physical_offset,
            delay_level=-1 if verdict == "given up" else level,
            origin_msg_id=record.msg_id,
            max_reconsume_times=fate.most,
        )
        assert answer.code == ResponseCode.SUCCESS, answer
        fate.is_dead = verdict == "given up" or fate.failures >= fate.most
        fate.failures += 1

    @rule(seconds=st.sampled_from([0.5, 1, 10, 60, LONGEST_DELAY_S]))
    def skip(self, seconds: float) -> None:
        self.run(self._skip(seconds))

    @rule(verdict=st.sampled_from(["consumed", "failed"]))
    def all_ends(self, verdict: str) -> None:
        """Everything comes to its end, whatever happened before."""

        async def work() -> None:
            for _ in range(5):
                for topic in (TOPIC, RETRY):
                    while await self._consume(topic, [verdict] * 32, 0, 0):
                        pass
                await self._skip(LONGEST_DELAY_S)

        self.run(work())
        assert all(fate.is_consumed or fate.is_dead for fate in self.fates.values())

    # --- what must hold -------------------------------------------------------------------------
    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if self.broker is None:
            return
        parked: Counter[bytes] = Counter()
        for level in range(LEVELS):
            parked.update(bodies(self.broker, SCHEDULE_TOPIC, level))
        come = bodies(self.broker, RETRY)
        assert Counter(come) <= parked
        unread = bodies(self.broker, TOPIC)[self.offsets[TOPIC] :]
        waiting = Counter(unread) + (parked - Counter(come[: self.offsets[RETRY]]))
        open_ones = [body for body, fate in self.fates.items() if not fate.is_consumed and not fate.is_dead]
        assert waiting == Counter(open_ones)
        assert Counter(bodies(self.broker, DEAD)) == Counter(body for body, fate in self.fates.items() if fate.is_dead)

    def teardown(self) -> None:
        if self.wire is not None:
            self.run(self.wire.close())
        super().teardown()


RetryMachine.TestCase.settings = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRetryMachine = RetryMachine.TestCase
