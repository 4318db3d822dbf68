"""A crash at every write and flush of a broker with messages that wait: none is lost, twice there, or early."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.clock import SYSTEM_CLOCK, VirtualClock
from cometmq.message.record import iter_records
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import RecallMessageRequestHeader
from cometmq.store.disk import Disk
from cometmq.testing import wait_until

pytestmark = pytest.mark.crash

DAY_S = 86_400
RECALLED = 5
DELAYS_S = (0.5, 1.5, 1.5, 2.5, 30, 90, DAY_S, 3 * DAY_S)


class SnapshotDisk(Disk):
    """Before each write, in the middle of it and before each flush, it asks whether to keep a copy of the store."""

    def __init__(self, at: Callable[[], None]) -> None:
        self._at = at
        self._lock = threading.Lock()

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        with self._lock:
            self._at()
            super().write(fd, memoryview(data)[: len(data) // 2], at)
            self._at()
            super().write(fd, data, at)

    def flush(self, fd: int) -> None:
        with self._lock:
            self._at()
            super().flush(fd)


class Scenario:
    """Sends, a recall, deliveries and saves; how many moments it had, and the store at one of them."""

    def __init__(self, directory: Path, moment: int) -> None:
        self.directory = directory
        self.copy = directory / "copy"
        self.moments = 0
        self.acknowledged: set[bytes] = set()
        self.is_recalled = False
        self.at_copy: tuple[frozenset[bytes], bool] = (frozenset(), False)
        self._wanted = moment
        self.clock = VirtualClock()

    def _moment(self) -> None:
        self.moments += 1
        if self.moments == self._wanted:
            shutil.copytree(self.directory / "store", self.copy / "store")
            self.at_copy = frozenset(self.acknowledged), self.is_recalled

    async def run(self) -> None:
        broker = Broker(small_config(self.directory), clock=self.clock, disk=SnapshotDisk(self._moment))
        await broker.start()
        wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
        handles = []
        for number, seconds in enumerate(DELAYS_S):
            body = b"%d" % number
            due_ms = self.clock.now_ms() + int(seconds * 1000)
            text = f"UNIQ_KEY\x01u{number}\x02TIMER_DELIVER_MS\x01{due_ms}"
            answer = await wire.send("Later", body, properties=text)
            self.acknowledged.add(body)
            handles.append(answer.ext_fields["recallHandle"])
            if number % 3 == 2:
                await self.clock.run_for(0.4)
        header = RecallMessageRequestHeader(topic="Later", recall_handle=handles[RECALLED])
        await wire.call(RequestCode.RECALL_MESSAGE, header)
        self.is_recalled = True
        await self.clock.run_for(3.5)
        await wire.close()
        await broker.stop()

    async def after_crash(self) -> Counter[bytes]:
        """What is delivered in the end by a broker that opens the copy."""
        broker = Broker(small_config(self.copy), clock=self.clock)
        await broker.start()
        await self.clock.skip(4 * DAY_S)
        found = delivered(broker)
        await broker.stop()
        return found


def delivered(broker: Broker) -> Counter[bytes]:
    """How often each message is in its topic."""
    queue = broker.store.queue("Later", 0)
    found: Counter[bytes] = Counter()
    offset = queue.min_offset()
    while offset < queue.max_offset():
        result = broker.store.get_message(queue, offset, 64)
        for record in (record for chunk in result.chunks for record in iter_records(chunk)):
            found[record.body] += 1
            assert record.store_timestamp >= int(record.properties["TIMER_OUT_MS"])
        offset = result.next_begin_offset
    return found


async def test_at_every_write_and_flush(tmp_path: Path) -> None:
    whole = Scenario(tmp_path / "whole", 0)
    await whole.run()
    assert whole.moments > 60
    for moment in range(1, whole.moments + 1):
        scenario = Scenario(tmp_path / "at", moment)
        await scenario.run()
        if not scenario.copy.exists():
            continue  # threads took another order this time, with fewer moments
        acknowledged, is_recalled = scenario.at_copy
        found = await scenario.after_crash()
        assert all(count == 1 for count in found.values()), (moment, found)
        taken_back = {b"%d" % RECALLED}
        assert acknowledged - found.keys() <= taken_back, moment
        assert not is_recalled or not found.keys() & taken_back, moment
        shutil.rmtree(tmp_path / "at")


async def test_a_recall_far_behind_its_message_holds_when_both_are_read_after_their_time(tmp_path: Path) -> None:
    scenario = Scenario(tmp_path, 0)
    broker = Broker(small_config(tmp_path), clock=scenario.clock)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    due_ms = scenario.clock.now_ms() + 5_000
    first = await wire.send("Later", b"first", properties=f"UNIQ_KEY\x01first\x02TIMER_DELIVER_MS\x01{due_ms}")
    for number in range(600):
        await wire.send("Later", b"%d" % number, properties=f"UNIQ_KEY\x01u{number}\x02TIMER_DELIVER_MS\x01{due_ms}")
    header = RecallMessageRequestHeader(topic="Later", recall_handle=first.ext_fields["recallHandle"])
    assert (await wire.call(RequestCode.RECALL_MESSAGE, header)).code == 0
    shutil.copytree(tmp_path / "store", scenario.copy / "store")
    shutil.rmtree(scenario.copy / "store" / "comet" / "timer", ignore_errors=True)  # as before its first write
    await wire.close()
    await broker.stop()
    broker = Broker(small_config(scenario.copy))  # by a clock that does not wait for the loop: all is long due
    await broker.start()
    assert await wait_until(SYSTEM_CLOCK, lambda: broker.store.queue("Later", 0).max_offset() >= 600, 10)
    assert delivered(broker) == Counter(b"%d" % number for number in range(600))
    await broker.stop()
