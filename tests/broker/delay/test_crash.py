"""A crash at every write and flush of a broker with delay levels: none is lost, twice there, early or out of order."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import small_config
from tests.broker.delayed import fail_once, send_delayed
from tests.broker.snapshots import SnapshotDisk
from tests.broker.wire import Wire
from tests.helpers.contents import bodies, stored

from cometmq.broker.controller import Broker
from cometmq.testing import VirtualClock

pytestmark = pytest.mark.crash

DELAYS_MS = (1_000, 2_000, 4_000)
OPTIONS: dict[str, Any] = {
    "message_delay_level": "1s 2s 4s",
    "flush_delay_offset_interval": 1_500,
    "mapped_file_size_commit_log": 64 * 1024,
}
LEVELS = (1, 2, 1, 3, 2, 1, 1, 3)
RETRY_TOPIC = "%RETRY%workers"


async def test_at_every_write_and_flush(tmp_path: Path) -> None:
    clock = VirtualClock()
    acknowledged: set[bytes] = set()
    disk = SnapshotDisk(tmp_path / "store", lambda: frozenset(acknowledged))
    broker = Broker(small_config(tmp_path, **OPTIONS), clock=clock, disk=disk)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    levels: dict[bytes, int] = {}
    for number, level in enumerate(LEVELS):
        body = b"%d" % number
        levels[body] = level
        await send_delayed(wire, body, level, born_timestamp=clock.now_ms())
        acknowledged.add(body)
        if number % 3 == 2:
            await fail_once(wire, b"failed %d" % number)
            acknowledged.add(b"failed %d" % number)
            await clock.run_for(0.8)
    await clock.run_for(4)
    await wire.close()
    await broker.stop()
    assert len(disk.copies) > 60
    for directory, before in disk.copies:
        broker = Broker(small_config(directory, **OPTIONS), clock=clock)
        await broker.start()
        await clock.run_for(5)
        found, again = stored(broker, "Delayed"), bodies(broker, RETRY_TOPIC)
        await broker.stop()
        came = [record.body for record in found]
        assert len(came + again) == len({*came, *again}), (directory, "nothing comes twice")
        assert before <= {*came, *again}, (directory, "nothing is lost")
        for record in found:
            assert record.store_timestamp >= record.born_timestamp + DELAYS_MS[levels[record.body] - 1], directory
        for level in set(LEVELS):
            mine = [body for body in came if levels[body] == level]
            assert mine == sorted(mine), (directory, "a level keeps its order")
        shutil.rmtree(directory)
