"""Any delay against a model: sends, recalls, time, stops, crashes, full disks, dates set back in any order.

The model is a table of messages with their due times. After each step every message whose time has come
is in its topic, once, and no other is.
"""

from __future__ import annotations

import errno
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from tests.broker.delayed import TurnedBackClock
from tests.broker.machine import BrokerMachine

from cometmq.broker.delay.parked_message import parked
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.record import iter_records
from cometmq.store.disk import Disk
from cometmq.store.timer.unit import recall_key, text_hash
from cometmq.testing import settle

DAY_S = 86_400
DELAYS_MS = st.one_of(
    st.sampled_from([1, 2, 5, 1000, 59_999, 60_000, 60_001]),
    st.integers(1, 200_000),
    st.integers(1, 4 * DAY_S * 1000),
)


class MoodyDisk(Disk):
    """Writes fail while it is full, half done."""

    def __init__(self) -> None:
        self.full = False

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        if self.full:
            super().write(fd, memoryview(data)[: len(data) // 2], at)
            raise OSError(errno.ENOSPC, "on purpose")
        super().write(fd, data, at)


class TimerMachine(BrokerMachine):
    """One broker, its clock and its disk, and what should have been delivered."""

    def __init__(self) -> None:
        self.back_clock, self.moody_disk = TurnedBackClock(), MoodyDisk()
        super().__init__(self.back_clock, self.moody_disk)
        self.due: dict[bytes, int] = {}
        self.was_due: set[bytes] = set()
        """Those whose time had come before the date was set back."""
        self.came: set[bytes] = set()
        self.count = 0

    async def start(self) -> None:
        await super().start()
        await self.clock.skip(0)

    async def leave(self) -> None:
        self.moody_disk.full = False

    # --- what may happen ------------------------------------------------------------------------
    @rule(delays=st.lists(DELAYS_MS, min_size=1, max_size=5))
    def send(self, delays: list[int]) -> None:
        self.run(self._send(delays))

    async def _send(self, delays: list[int]) -> None:
        for delay_ms in delays:
            self.count += 1
            body = b"%d" % self.count
            due_ms = self.clock.now_ms() + delay_ms
            outcomes: list[Stored | RefusedError] = []
            message = InnerMessage("Later", 0, body, f"UNIQ_KEY\x01{self.count}", 0, 0, 1, bytes(8))
            try:
                self.running.turn.put_inner(parked(message, due_ms), outcomes.append)
            except RefusedError:
                continue
            self.running.turn.end()
            if isinstance(outcomes[0], Stored):
                self.due[body] = due_ms
        self.running.server.schedule_round()
        await settle()

    @rule(choice=st.integers(0, 100))
    def recall(self, choice: int) -> None:
        now_ms = self.clock.now_ms()
        waiting = [body for body, due_ms in self.due.items() if due_ms > now_ms and body not in self.was_due]
        if waiting:
            self.run(self._recall(waiting[choice % len(waiting)]))

    async def _recall(self, body: bytes) -> None:
        due_ms = self.due[body]
        outcomes: list[Stored | RefusedError] = []
        text = f"TIMER_DEL_UNIQKEY\x01{recall_key('Later', body.decode())}"
        message = parked(InnerMessage("Later", 0, b"0", text, 0, 0, 1, bytes(8)), due_ms)
        key = text_hash(recall_key("Later", body.decode()))
        try:
            self.running.timer.recall(message, due_ms, key, outcomes.append)
        except RefusedError:
            return
        self.running.turn.end()
        if isinstance(outcomes[0], Stored):
            del self.due[body]
        self.running.server.schedule_round()
        await settle()

    @rule(seconds=st.one_of(st.floats(0, 3), st.floats(0, 400), st.integers(0, 2 * DAY_S)))
    def skip(self, seconds: float) -> None:
        self.run(self.clock.skip(seconds))

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.run(self.clock.run_for(seconds))

    @rule(seconds=st.one_of(st.integers(1, 200), st.integers(1, 4 * DAY_S)))
    def set_date_back(self, seconds: int) -> None:
        self.back_clock.set_by_ms -= seconds * 1000

    @rule()
    def disk_fills(self) -> None:
        self.moody_disk.full = True

    @rule()
    def disk_has_room(self) -> None:
        self.moody_disk.full = False
        self.run(self.clock.run_for(2))

    # --- what must hold -------------------------------------------------------------------------
    @invariant()
    def what_is_due_is_there_once(self) -> None:
        if self.broker is None:
            return
        store = self.running.store
        queue = store.queue("Later", 0)
        found: Counter[bytes] = Counter()
        offset = queue.min_offset()
        while offset < queue.max_offset():
            result = store.get_message(queue, offset, 64)
            for chunk in result.chunks:
                found.update(record.body for record in iter_records(chunk))
            offset = result.next_begin_offset
        now_ms = self.clock.now_ms()
        self.was_due |= {body for body, due_ms in self.due.items() if due_ms <= now_ms}
        due_now = {body for body in self.was_due if self.due[body] <= now_ms}
        assert found <= Counter(self.was_due)
        assert found >= Counter(self.came if self.moody_disk.full else self.came | due_now)
        self.came = set(found)


TimerMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTimerMachine = TimerMachine.TestCase
