"""Messages of delay levels outlive their log file, whether its time is over or the disk is full."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import small_config
from tests.broker.delayed import fail_once, send_delayed
from tests.broker.snapshots import SnapshotDisk, copy_store
from tests.broker.wire import Wire
from tests.helpers.contents import bodies, stored
from tests.helpers.waiting import until
from tests.store.disks import MeteredDisk

from cometmq.broker.controller import Broker
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.message.properties import TIMER_OUT_MS
from cometmq.testing import VirtualClock

FILE_BYTES = 64 * 1024
RETRY_TOPIC = "%RETRY%workers"
FULL, ROOMY = 0.87, 0.1
OPTIONS: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "message_delay_level": "1s 30s 2h 10d",
    "disk_space_clean_forcibly_ratio": 85,
}


class Site:
    """A broker whose disk is as full as a test says."""

    def __init__(self, directory: Path, clock: VirtualClock) -> None:
        self.directory = directory
        self.clock = clock
        self.disk = MeteredDisk()

    async def start(self, **options: Any) -> Broker:
        self.broker = Broker(small_config(self.directory, **(OPTIONS | options)), clock=self.clock, disk=self.disk)
        await self.broker.start()
        self.wire = Wire(*await asyncio.open_connection("127.0.0.1", self.broker.server.port))
        return self.broker

    async def stop(self) -> None:
        await self.wire.close()
        await self.broker.stop()

    async def fill_files(self, count: int = 3) -> None:
        """Fill so many log files with messages that nobody waits for."""
        for _ in range(count * 5):
            assert (await self.wire.send("Other", bytes(FILE_BYTES // 5))).code == 0

    async def until_gone(self, offset: int) -> None:
        """Let time pass, in steps of a look at the disk, until the log has nothing below ``offset``."""
        for _ in range(6):
            if self.broker.store.min_physical_offset > offset:
                return
            await self.clock.run_for(10)
        raise AssertionError(f"the log still begins at {self.broker.store.min_physical_offset}")


@pytest.fixture
async def site(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Site]:
    site = Site(tmp_path, clock)
    await site.start()
    yield site
    await site.stop()


async def test_on_a_full_disk_what_waits_comes_once_and_when_it_is_due(site: Site, clock: VirtualClock) -> None:
    """A message of 2 h, and one that failed and comes again in 30 s, in the first log file."""
    await send_delayed(site.wire, b"later", 3, flag=7)
    await fail_once(site.wire, b"failed")
    parked = stored(site.broker, SCHEDULE_TOPIC, 2)[0]
    due_ms = clock.now_ms() + 7_200_000
    await site.fill_files()
    site.disk.ratio = FULL
    await site.until_gone(parked.physical_offset)
    site.disk.ratio = ROOMY
    assert bodies(site.broker, "Delayed") == []
    await clock.skip(7_200 - 3_600)
    assert bodies(site.broker, RETRY_TOPIC) == [b"failed"]
    assert stored(site.broker, RETRY_TOPIC)[0].reconsume_times == 1
    assert bodies(site.broker, "Delayed") == []
    await clock.skip(3_600)
    await until(lambda: bodies(site.broker, "Delayed") == [b"later"])
    come = stored(site.broker, "Delayed")[0]
    assert 0 <= come.store_timestamp - due_ms < 1_000
    assert (come.flag, come.born_timestamp, come.born_host) == (7, parked.born_timestamp, parked.born_host)
    assert come.properties == {**parked.properties, TIMER_OUT_MS: str(due_ms)}
    await clock.skip(11 * 86_400)
    assert (bodies(site.broker, "Delayed"), bodies(site.broker, RETRY_TOPIC)) == ([b"later"], [b"failed"])


async def test_a_level_longer_than_files_are_kept_is_announced_and_comes(
    site: Site, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await site.stop()
    caplog.clear()
    await site.start(delete_when=";".join(f"{hour:02}" for hour in range(24)))
    assert "delay levels 4 of messageDelayLevel exceed the retention time" in caplog.text
    await send_delayed(site.wire, b"in ten days", 4)
    await site.fill_files()
    for segment in site.broker.store._log.segments:
        os.utime(segment.path, (clock.now_ms() / 1000 - 80 * 3600,) * 2)
    await site.until_gone(stored(site.broker, SCHEDULE_TOPIC, 3)[0].physical_offset)
    await clock.skip(10 * 86_400 - 3_600)
    assert bodies(site.broker, "Delayed") == []
    await clock.skip(3_600)
    await until(lambda: bodies(site.broker, "Delayed") == [b"in ten days"])


async def test_a_table_of_levels_shorter_than_files_are_kept_is_not_worth_a_word(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await site.stop()
    caplog.clear()
    await site.start(message_delay_level="1s 2h")
    assert "messageDelayLevel" not in caplog.text


async def test_only_what_stands_in_the_file_moves(site: Site, clock: VirtualClock) -> None:
    await send_delayed(site.wire, b"first file", 3)
    await site.fill_files(2)
    await send_delayed(site.wire, b"last file", 3)
    site.disk.ratio = FULL
    await site.until_gone(0)
    assert bodies(site.broker, TIMER_TOPIC) == [b"first file"]
    site.disk.ratio = ROOMY
    await clock.skip(7_300)
    await until(lambda: sorted(bodies(site.broker, "Delayed")) == [b"first file", b"last file"])


async def test_a_file_stays_until_the_files_say_that_its_messages_have_moved(site: Site, clock: VirtualClock) -> None:
    """A power cut may take back what the log has and no file says yet."""
    await send_delayed(site.wire, b"later", 3)
    await site.fill_files()
    await clock.run_for(9)  # all of it is flushed
    retention = site.broker.store._maintenance.retention
    assert retention.delete_files(force=True) == 0
    await until(lambda: bodies(site.broker, TIMER_TOPIC) == [b"later"])
    assert retention.delete_files(force=True) == 0
    await site.broker.schedule.save()
    site.broker.store._maintenance._flush.flush_now()
    assert retention.delete_files(force=True) > 0


async def test_a_message_without_room_for_another_property_comes_early_rather_than_never(
    site: Site, clock: VirtualClock
) -> None:
    await send_delayed(site.wire, b"first", 3)
    used = len(stored(site.broker, SCHEDULE_TOPIC, 2)[0].properties_text)
    filling = "x" * (MAX_PROPERTIES_BYTES - used - len("\x02fill\x01"))
    answer = await site.wire.send(
        "Delayed", b"full", properties=f"UNIQ_KEY\x01first\x02fill\x01{filling}\x02DELAY\x013"
    )
    assert answer.code == 0
    assert len(stored(site.broker, SCHEDULE_TOPIC, 2)[1].properties_text) == MAX_PROPERTIES_BYTES
    await site.fill_files()
    site.disk.ratio = FULL
    await site.until_gone(0)
    assert bodies(site.broker, TIMER_TOPIC) == [b"first"]
    assert bodies(site.broker, "Delayed") == [b"full"]


async def test_a_property_that_would_make_it_a_recall_is_left_out(site: Site, clock: VirtualClock) -> None:
    properties = "UNIQ_KEY\x01one\x02TIMER_DEL_UNIQKEY\x01other\x02DELAY\x013"
    assert (await site.wire.send("Delayed", b"later", properties=properties)).code == 0
    await site.fill_files()
    site.disk.ratio = FULL
    await site.until_gone(0)
    site.disk.ratio = ROOMY
    await clock.skip(7_300)
    await until(lambda: bodies(site.broker, "Delayed") == [b"later"])


def all_have_come(broker: Broker) -> bool:
    return len(bodies(broker, "Delayed")) >= 3 and bool(bodies(broker, RETRY_TOPIC))


@pytest.mark.crash
async def test_a_crash_at_every_write_while_messages_move_loses_and_doubles_none(
    tmp_path: Path, clock: VirtualClock
) -> None:
    site = Site(tmp_path, clock)
    await site.start()
    for number in range(3):
        await send_delayed(site.wire, b"%d" % number, 3)
    await fail_once(site.wire, b"failed")
    await site.fill_files(2)
    await clock.run_for(9)
    moments = SnapshotDisk(tmp_path / "store", lambda: site.broker.store.min_physical_offset)
    for name in ("write", "flush"):
        setattr(site.disk, name, getattr(moments, name))
    site.disk.ratio = FULL
    await site.until_gone(0)
    await clock.run_for(2)
    site.disk.ratio = ROOMY
    copy_store(tmp_path / "store", tmp_path / "end" / "store")
    await site.stop()
    assert len(moments.copies) > 10
    for directory in (*(directory for directory, _ in moments.copies), tmp_path / "end"):
        again = Site(directory, VirtualClock(clock.now_ms()))
        broker = await again.start()
        await again.clock.skip(7_300)
        await until(partial(all_have_come, broker))
        await again.clock.run_for(1)
        found = (sorted(bodies(broker, "Delayed")), bodies(broker, RETRY_TOPIC))
        await again.stop()
        assert found == ([b"0", b"1", b"2"], [b"failed"]), directory
        shutil.rmtree(directory)
