"""Work by what changed: rows and bytes that are written after one change, however many rows there are."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.disks import FailingDisk
from tests.broker.snapshots import copy_store
from tests.broker.wire import send_header

import cometmq.broker.tables.journaled_file
from cometmq.broker.config import LiveConfig
from cometmq.broker.controller import Broker
from cometmq.broker.limits import TABLE_WRITE_BYTES_PER_SECOND, TABLE_WRITE_SECONDS
from cometmq.broker.pop.request_modes import MessageRequestModeManager, RequestMode, RequestModeTable
from cometmq.broker.pull.consumer_filters import ConsumerFilterManager
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.tables.row_writer import RowWriter
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.remoting.bodies import SubscriptionData, SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.store.disk import Disk
from cometmq.testing import VirtualClock

FEW, MANY = 10, 5_000
CREATIONS = 1_000


class CountingDisk(Disk):
    """Counts bytes and flushes."""

    def __init__(self) -> None:
        self.written_bytes = 0
        self.flushes = 0

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        self.written_bytes += len(data)
        super().write(fd, data, at)

    def flush(self, fd: int) -> None:
        self.flushes += 1
        super().flush(fd)


Change = Callable[[Path, VirtualClock, CountingDisk, int], Awaitable[Callable[[], Awaitable[None]]]]
"""Makes a table of so many rows, and returns a change of one of them that is on the disk once it is awaited."""


async def topics(directory: Path, clock: VirtualClock, disk: CountingDisk, rows: int) -> Callable[[], Awaitable[None]]:
    table = TopicConfigManager(
        LiveConfig(small_config(directory)), directory / "config" / "topics.json", clock=clock, disk=disk
    )
    table.load()
    table.on_due, save = lambda: None, table.on_due
    for number in range(rows):
        table.put(TopicConfig(topic_name=f"T{number:06}"))
    table.on_due = save
    save()

    async def change() -> None:
        table.put(TopicConfig(topic_name="T000001", perm=4 if disk.flushes % 2 else 6))

    return change


async def groups(directory: Path, clock: VirtualClock, disk: CountingDisk, rows: int) -> Callable[[], Awaitable[None]]:
    path = directory / "config" / "subscriptionGroup.json"
    table = SubscriptionGroupManager(LiveConfig(small_config(directory)), path, clock=clock, disk=disk)
    table.load()
    table.on_due, save = lambda: None, table.on_due
    for number in range(rows):
        table.put(SubscriptionGroupConfig(group_name=f"g{number:06}"))
    table.on_due = save
    save()

    async def change() -> None:
        table.put(SubscriptionGroupConfig(group_name="g000001", retry_max_times=10 + disk.flushes % 9))

    return change


async def offsets(directory: Path, clock: VirtualClock, disk: CountingDisk, rows: int) -> Callable[[], Awaitable[None]]:
    table = ConsumerOffsetManager(directory / "config" / "consumerOffset.json", clock=clock, disk=disk)
    for number in range(rows):
        table.commit("g", f"T{number:06}", 3, 1_000)
    await table.save_in_background()
    table.commit("g", "T000001", 3, 1_001)
    clock.advance(1)
    await table.save_in_background()  # the journal is there now, and the file is whole

    async def change() -> None:
        table.commit("g", "T000001", 3, 2_000 + disk.flushes)
        await table.save_in_background()

    return change


async def filters(directory: Path, clock: VirtualClock, disk: CountingDisk, rows: int) -> Callable[[], Awaitable[None]]:
    config = LiveConfig(small_config(directory))
    table = ConsumerFilterManager(config, directory / "config" / "consumerFilter.json", clock=clock)
    version = itertools.count(1)

    def register(group: str) -> None:
        subscription = SubscriptionData(
            topic="T", sub_string="a = 1", expression_type="SQL92", sub_version=next(version)
        )
        table.register(group, [subscription])

    for number in range(rows):
        register(f"g{number:06}")
    await table.save_in_background()

    async def change() -> None:
        register("g000001")
        await table.save_in_background()

    return change


async def modes(directory: Path, clock: VirtualClock, disk: CountingDisk, rows: int) -> Callable[[], Awaitable[None]]:
    path = directory / "config" / "messageRequestMode.json"
    whole = {f"g{number:06}": RequestMode(topic="T", consumer_group=f"g{number:06}") for number in range(rows)}
    table = MessageRequestModeManager(path, clock=clock)
    table.take_over(RequestModeTable(message_request_mode_map={"T": whole}))

    async def change() -> None:
        assert table.put(RequestMode(topic="T", consumer_group="g000001", mode="POP"))

    return change


@pytest.mark.parametrize("make", [topics, groups, offsets, filters, modes])
async def test_one_change_writes_its_own_row(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, make: Change
) -> None:
    written: list[tuple[int, int]] = []
    for rows in (FEW, MANY):
        disk = CountingDisk()
        monkeypatch.setattr(cometmq.broker.tables.journaled_file, "Disk", lambda disk=disk: disk)
        change = await make(tmp_path / str(rows), clock, disk, rows)
        await change()
        before = disk.written_bytes, disk.flushes
        await change()
        written.append((disk.written_bytes - before[0], disk.flushes - before[1]))
    (few_bytes, few_flushes), (many_bytes, many_flushes) = written
    assert 0 < few_bytes <= 500
    assert abs(many_bytes - few_bytes) <= 10, "digits of the version"
    assert (few_flushes, many_flushes) == (1, 1)


@pytest.mark.parametrize(("size", "wait"), [(100, TABLE_WRITE_SECONDS), (20 * TABLE_WRITE_BYTES_PER_SECOND, 20)])
async def test_a_file_is_written_whole_soon_or_later_where_it_is_large(
    tmp_path: Path, clock: VirtualClock, size: int, wait: float
) -> None:
    whole = json.dumps({"table": {"a": "x" * size}}).encode()
    file = JournaledFile(tmp_path / "config" / "things.json", depth=2, clock=clock)
    file.write_text(whole)
    waits: list[float] = []
    for _ in range(2):
        file.append([b'{"table":{"b":1}}'])
        began = clock.monotonic()
        while not file.whole_is_due:
            clock.advance(0.05)
        waits.append(clock.monotonic() - began)
        assert await file.write_in_background(iter([whole]))
        assert not file.whole_is_due, "nothing changed since"
    assert waits == pytest.approx([wait] * 2, abs=0.1)


async def test_a_journal_has_at_most_twice_the_bytes_of_its_table(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.tables.journaled_file, "JOURNAL_BYTES", 0)
    change = await offsets(tmp_path, clock, CountingDisk(), FEW)
    whole = tmp_path / "config" / "consumerOffset.json"
    most = 0
    for _ in range(30):
        await change()
        most = max(most, sum(path.stat().st_size for path in (tmp_path / "comet" / "tables").glob("*.journal")))
    assert whole.stat().st_size < most < 2 * whole.stat().st_size + 200


async def test_a_thousand_topics_at_once_share_their_flushes_and_are_on_the_disk_when_answered(
    tmp_path: Path, clock: VirtualClock, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = CountingDisk()
    monkeypatch.setattr(cometmq.broker.tables.journaled_file, "Disk", lambda: disk)
    broker = Broker(small_config(tmp_path / "one"), clock=clock)
    await broker.start()
    wire = await connect_to(broker)
    await wire.send("First")
    before = disk.flushes
    sends = [
        wire.command(RequestCode.SEND_MESSAGE_V2, send_header(f"T{number}"), b"body") for number in range(CREATIONS)
    ]
    for one in sends:
        wire.post(one)
    for one in sends:
        assert (await wire.answer(one.opaque)).code == 0
    assert 0 < disk.flushes - before < CREATIONS / 10
    copy_store(tmp_path / "one" / "store", tmp_path / "two" / "store")
    await broker.stop()
    killed = Broker(small_config(tmp_path / "two"), clock=clock)
    await killed.start()
    assert {f"T{number}" for number in range(CREATIONS)} <= killed.topics.table.keys()
    assert all(killed.store.queue(f"T{number}", 0).max_offset() == 1 for number in range(CREATIONS))
    await killed.stop()


async def test_a_row_whose_whole_file_could_not_be_written_is_in_the_next_change(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path, disk, rows = tmp_path / "config" / "things.json", FailingDisk(), {"a": 1}

    def changed_rows(keys: Iterable[str]) -> bytes:
        return json.dumps({"things": {key: rows.get(key) for key in keys}}).encode()

    def writer_of(file: JournaledFile) -> RowWriter[str]:
        return RowWriter(file, changed_rows, lambda: iter([json.dumps({"things": rows}).encode()]))

    writer = writer_of(JournaledFile(path, depth=2, clock=clock, disk=disk))
    writer.changed("a")
    writer.save()
    writer.changed("a")
    writer.save()
    clock.advance(10)
    disk.write_error = errno.ENOSPC
    rows["b"] = 2
    writer.changed("b")
    await writer.save_in_thread()
    disk.write_error = None
    await writer.save_in_thread()  # a change only: the whole file has its pause
    found = JournaledFile(path, depth=2, clock=clock).load(lambda loaded: dict(loaded["things"]))
    assert found == {"a": 1, "b": 2}


async def test_after_a_damage_on_a_full_disk_the_file_is_written_by_one_writer_at_a_time(
    tmp_path: Path, clock: VirtualClock
) -> None:
    live, path, disk = LiveConfig(small_config(tmp_path)), tmp_path / "config" / "topics.json", FailingDisk()
    before = TopicConfigManager(live, path, clock=clock)
    before.load()
    on_due, before.on_due = before.on_due, lambda: None
    for number in range(MANY):
        before.put(TopicConfig(topic_name=f"T{number}"))
    before.on_due = on_due
    for number in range(4):
        before.put(TopicConfig(topic_name=f"more-{number}"))
    (journal,) = (tmp_path / "comet" / "tables").glob("topics.*.journal")
    journal.write_bytes(journal.read_bytes().replace(b"[", b"{", 1))
    table = TopicConfigManager(live, path, clock=clock, disk=disk)
    disk.write_error = errno.ENOSPC
    table.load()
    table.save()
    assert table.cannot_be_saved
    disk.write_error = None
    clock.advance(60)
    writing = asyncio.create_task(table.writer.save_in_background())
    for _ in range(4):
        await asyncio.sleep(0)
    table.put(TopicConfig(topic_name="last"))
    await writing
    again = TopicConfigManager(live, path, clock=clock)
    assert again.load() == []
    assert again.table == table.table
