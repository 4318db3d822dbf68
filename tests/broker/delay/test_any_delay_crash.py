"""A crash at every write and flush of a broker with messages that wait: none is lost, twice there, or early."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.broker.snapshots import SnapshotDisk, copy_store
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.record import iter_records
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import RecallMessageRequestHeader
from cometmq.testing import VirtualClock, wait_until

pytestmark = pytest.mark.crash

DAY_S = 86_400
RECALLED = 5
DELAYS_S = (0.5, 1.5, 1.5, 2.5, 30, 90, DAY_S, 3 * DAY_S)


def delivered(broker: Broker) -> Counter[bytes]:
    """Count each message in its topic."""
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
    clock = VirtualClock()
    acknowledged: set[bytes] = set()
    is_recalled = False
    disk = SnapshotDisk(tmp_path / "store", lambda: (frozenset(acknowledged), is_recalled))
    broker = Broker(small_config(tmp_path, mapped_file_size_commit_log=64 * 1024), clock=clock, disk=disk)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    handles = []
    for number, seconds in enumerate(DELAYS_S):
        body = b"%d" % number
        due_ms = clock.now_ms() + int(seconds * 1000)
        text = f"UNIQ_KEY\x01u{number}\x02TIMER_DELIVER_MS\x01{due_ms}"
        answer = await wire.send("Later", body, properties=text)
        acknowledged.add(body)
        handles.append(answer.ext_fields["recallHandle"])
        if number % 3 == 2:
            await clock.run_for(0.4)
    header = RecallMessageRequestHeader(topic="Later", recall_handle=handles[RECALLED])
    await wire.call(RequestCode.RECALL_MESSAGE, header)
    is_recalled = True
    await clock.run_for(3.5)
    await wire.close()
    await broker.stop()
    assert len(disk.copies) > 60
    taken_back = {b"%d" % RECALLED}
    for directory, (before, was_recalled) in disk.copies:
        broker = Broker(small_config(directory, mapped_file_size_commit_log=64 * 1024), clock=clock)
        await broker.start()
        await clock.skip(4 * DAY_S)
        found = delivered(broker)
        await broker.stop()
        assert all(count == 1 for count in found.values()), (directory, found)
        assert before - found.keys() <= taken_back, directory
        assert not was_recalled or not found.keys() & taken_back, directory
        shutil.rmtree(directory)


async def test_a_recall_far_behind_its_message_holds_when_both_are_read_after_their_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    broker = Broker(small_config(tmp_path), clock=clock)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    due_ms = clock.now_ms() + 5_000
    first = await wire.send("Later", b"first", properties=f"UNIQ_KEY\x01first\x02TIMER_DELIVER_MS\x01{due_ms}")
    for number in range(600):
        await wire.send("Later", b"%d" % number, properties=f"UNIQ_KEY\x01u{number}\x02TIMER_DELIVER_MS\x01{due_ms}")
    header = RecallMessageRequestHeader(topic="Later", recall_handle=first.ext_fields["recallHandle"])
    assert (await wire.call(RequestCode.RECALL_MESSAGE, header)).code == 0
    copy_store(tmp_path / "store", tmp_path / "copy" / "store")
    shutil.rmtree(tmp_path / "copy" / "store" / "comet" / "timer", ignore_errors=True)  # as before its first write
    await wire.close()
    await broker.stop()
    broker = Broker(small_config(tmp_path / "copy"))  # by a clock that does not wait for the loop: all is long due
    await broker.start()
    assert await wait_until(SYSTEM_CLOCK, lambda: broker.store.queue("Later", 0).max_offset() >= 600, 10)
    assert delivered(broker) == Counter(b"%d" % number for number in range(600))
    await broker.stop()
