"""Any delay: when messages are delivered, what is refused, what restarts and crashes leave."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import StartBroker, small_config
from tests.broker.delayed import TurnedBackClock
from tests.broker.disks import FailingDisk
from tests.broker.wire import Wire, records, send_header
from tests.helpers.contents import bodies as all_bodies

from cometmq.broker.controller import Broker
from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.names import TIMER_TOPIC
from cometmq.message.record import StoredRecord
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import RecallMessageRequestHeader
from cometmq.testing import VirtualClock

DAY_S = 86_400


async def delivered(wire: Wire, topic: str, queue_id: int = 0) -> list[StoredRecord]:
    return records(await wire.pull(topic, queue_id=queue_id))


async def bodies(wire: Wire, topic: str) -> list[bytes]:
    return [record.body for record in await delivered(wire, topic)]


async def test_a_message_is_delivered_at_its_millisecond(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    due_ms = clock.now_ms() + 1_500
    answer = await wire.send("Later", b"x", properties=f"TAGS\x01a\x02TIMER_DELIVER_MS\x01{due_ms}")
    assert answer.code == 0
    await clock.skip(1.499)
    assert await delivered(wire, "Later") == []
    await clock.skip(0.001)
    (record,) = await delivered(wire, "Later")
    assert record.body == b"x"
    assert record.store_timestamp == due_ms
    assert record.properties["TAGS"] == "a"
    assert record.properties["TIMER_OUT_MS"] == str(due_ms)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        ("TIMER_DELAY_SEC\x013", 3_000),
        ("TIMER_DELAY_MS\x0120", 20),
        ("TIMER_DELAY_SEC\x012\x02TIMER_DELAY_MS\x0120\x02TIMER_DELIVER_MS\x0199", 2_000),
        ("TIMER_DELAY_MS\x0120\x02TIMER_DELIVER_MS\x0199", 20),
        (f"TIMER_DELAY_SEC\x01{400 * DAY_S}", 400 * DAY_S * 1000),
        ("MY_TIMER_OUT_MS\x011\x02TIMER_DELAY_MS\x0120", 20),
    ],
)
async def test_which_property_counts(broker: Broker, wire: Wire, clock: VirtualClock, text: str, delay_ms: int) -> None:
    await wire.send("Later", b"x", properties=text)
    await clock.skip((delay_ms - 1) / 1000)
    assert await delivered(wire, "Later") == []
    await clock.skip(0.002)
    assert len(await delivered(wire, "Later")) == 1


@pytest.mark.parametrize("text", ["TIMER_DELAY_MS\x010", "TIMER_DELAY_SEC\x01-5", "TIMER_DELIVER_MS\x0112345"])
async def test_what_is_due_already_is_delivered_at_once(wire: Wire, text: str) -> None:
    await wire.send("Later", b"x", properties=text)
    (record,) = await delivered(wire, "Later")
    assert record.properties_text.startswith(text)


@pytest.mark.parametrize(
    "text", ["TIMER_DELAY_SEC\x01soon", "TIMER_DELAY_MS\x011.5", "TIMER_DELIVER_MS\x01" + "9" * 30]
)
async def test_garbage_is_refused(wire: Wire, text: str) -> None:
    answer = await wire.send("Later", b"x", properties=text)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert text.split("\x01")[0] in (answer.remark or "")


async def test_longer_than_the_maximum_is_refused(
    start_broker: StartBroker, connect_to: Callable[[Broker], Any]
) -> None:
    wire = await connect_to(await start_broker(timer_max_delay_sec=60))
    answer = await wire.send("Later", b"x", properties="TIMER_DELAY_SEC\x0161")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "bigger than the max delay 60000ms" in (answer.remark or "")
    assert (await wire.send("Later", b"x", properties="TIMER_DELAY_SEC\x0160")).code == 0


async def test_switched_off(start_broker: StartBroker, connect_to: Callable[[Broker], Any]) -> None:
    wire = await connect_to(await start_broker(timer_wheel_enable=False))
    answer = await wire.send("Later", b"x", properties="TIMER_DELAY_SEC\x0161")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "timerWheelEnable is false" in (answer.remark or "")


async def test_what_has_waited_before_does_not_wait_again(wire: Wire) -> None:
    await wire.send("Later", b"x", properties="TIMER_DELAY_SEC\x0160\x02TIMER_OUT_MS\x011")
    assert await bodies(wire, "Later") == [b"x"]


async def test_they_come_in_the_order_of_their_times(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    for number in (5, 3, 9, 1, 7):
        await wire.send("Later", b"%d" % number, properties=f"TIMER_DELAY_SEC\x01{number}")
    await clock.skip(10)
    assert await bodies(wire, "Later") == [b"1", b"3", b"5", b"7", b"9"]


async def test_they_go_to_their_queue_as_they_were_sent(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await wire.send("Later", b"now", queue_id=3)
    (now,) = await delivered(wire, "Later", 3)
    await wire.send("Later", b"x", queue_id=2, flag=7, properties="KEYS\x01k\x02TIMER_DELAY_MS\x0150")
    await clock.skip(0.05)
    (record,) = await delivered(wire, "Later", 2)
    assert (record.topic, record.queue_id, record.flag, record.body) == ("Later", 2, 7, b"x")
    assert (record.born_timestamp, record.born_host) == (now.born_timestamp, now.born_host)
    assert len(broker.store.query("Later", "k", 8, 0, 1 << 62).records) == 1


async def test_near_and_far_ones_survive_restarts(
    tmp_path: Path, clock: VirtualClock, start_broker: StartBroker, connect_to: Callable[[Broker], Any]
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    for seconds in (10, 200, 40 * DAY_S, 800 * DAY_S):
        await wire.send("Later", b"%d" % seconds, properties=f"TIMER_DELAY_SEC\x01{seconds}")
    await clock.skip(11)
    assert await bodies(wire, "Later") == [b"10"]
    await first.stop()
    await clock.skip(300)

    second = await start_broker()
    wire = await connect_to(second)
    await clock.skip(0)
    assert await bodies(wire, "Later") == [b"10", b"200"]
    await second.stop()

    third = await start_broker()
    wire = await connect_to(third)
    await clock.skip(40 * DAY_S)
    assert await bodies(wire, "Later") == [b"10", b"200", b"3456000"]
    await clock.skip(800 * DAY_S)
    assert (await bodies(wire, "Later"))[3:] == [b"69120000"]
    await clock.skip(DAY_S)
    await third.stop()
    assert not list((tmp_path / "store/comet/timer").glob("*.data")), "days that are over are deleted"


@pytest.mark.parametrize("level", ["0", "-1", "00"])
async def test_a_delay_level_below_one_is_none(broker: Broker, wire: Wire, clock: VirtualClock, level: str) -> None:
    await wire.send("Later", b"x", properties=f"DELAY\x01{level}\x02TIMER_DELAY_MS\x0110")
    assert await bodies(wire, "Later") == []
    await clock.skip(0.01)
    assert await bodies(wire, "Later") == [b"x"]


async def test_the_log_is_kept_until_messages_that_wait_are_in_the_timer_log_and_no_longer(
    broker: Broker, wire: Wire, clock: VirtualClock, tmp_path: Path
) -> None:
    await wire.send("Later", b"x", properties=f"TIMER_DELAY_SEC\x01{30 * DAY_S}")
    for _ in range(9):
        await wire.send("Other", bytes(4_000_000))
    for path in (tmp_path / "store/commitlog").iterdir():
        os.utime(path, (0, 0))
    await clock.run_for(0.6)
    assert broker.store.flushed_position == broker.store.max_physical_offset
    assert broker.store.delete_expired_files() == 0
    await clock.run_for(2)
    assert broker.store.delete_expired_files() > 0
    assert broker.store.min_physical_offset > 0
    await clock.skip(31 * DAY_S)
    assert await bodies(wire, "Later") == [b"x"]


async def test_a_delay_level_comes_first(wire: Wire, clock: VirtualClock) -> None:
    await wire.send("Later", b"x", properties="DELAY\x011\x02TIMER_DELAY_SEC\x01500")
    assert await bodies(wire, "Later") == []
    await clock.skip(1)
    assert await bodies(wire, "Later") == [b"x"]


async def test_nobody_sends_to_the_topic_where_messages_wait(wire: Wire) -> None:
    assert (await wire.send(TIMER_TOPIC, b"x")).code == ResponseCode.NO_PERMISSION


async def test_a_batch_has_no_delay(wire: Wire) -> None:
    body = encode_batch([BatchPiece(0, b"x", "TIMER_DELAY_SEC\x015")])
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header("Later", batch=True), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_store_of_apache_goes_on_where_its_timer_stood(
    tmp_path: Path, clock: VirtualClock, start_broker: StartBroker, connect_to: Callable[[Broker], Any]
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    for seconds in (5, 50, 500):
        await wire.send("Later", b"%d" % seconds, properties=f"TIMER_DELAY_SEC\x01{seconds}")
    began_ms = clock.now_ms()
    await clock.skip(10)
    await first.stop()
    shutil.rmtree(tmp_path / "store/comet/timer")
    check = struct.pack(">qqqqqqq", began_ms + 10_000, 156, 3, 3, 0, 0, 0)
    (tmp_path / "store/config/timercheck").write_bytes(check.ljust(4096, b"\0"))
    second = await start_broker()
    await clock.skip(1000)
    assert await bodies(await connect_to(second), "Later") == [b"5", b"50", b"500"]


async def send_later(wire: Wire, body: bytes, delay_ms: int) -> None:
    answer = await wire.send("Later", body, properties=f"TIMER_DELAY_MS\x01{delay_ms}")
    assert answer.code == ResponseCode.SUCCESS, answer


def back_to(store: Path, backup: Path) -> None:
    """The log as it was once, beside the timer log as it is."""
    shutil.rmtree(backup / "comet" / "timer")
    shutil.copytree(store / "comet" / "timer", backup / "comet" / "timer")
    shutil.rmtree(store)
    shutil.copytree(backup, store)


async def test_waiting_messages_that_a_log_from_a_backup_does_not_have_come_all_the_same(
    start_broker: StartBroker, connect_to: Callable[[Broker], Any], clock: VirtualClock, tmp_path: Path
) -> None:
    """The timer log knows more than the log; new messages get the queue offsets that the lost ones had."""
    store, backup = tmp_path / "store", tmp_path / "backup"
    first = await start_broker()
    await send_later(await connect_to(first), b"kept", 3_600_000)
    await first.stop()
    shutil.copytree(store, backup)
    second = await start_broker()
    wire = await connect_to(second)
    for number in range(3):
        await send_later(wire, b"lost %d" % number, 3_600_000 + number)
    recalled = await wire.send("Later", b"no", properties="UNIQ_KEY\x01K\x02TIMER_DELAY_MS\x013600000")
    async with asyncio.timeout(60):
        while second.timer.log.position.serial < 5:
            await clock.run_for(1)
    await second.stop()
    back_to(store, backup)
    third = await start_broker()
    wire = await connect_to(third)
    await send_later(wire, b"new", 1_800_000)
    await send_later(wire, b"newer", 5_400_000)
    header = RecallMessageRequestHeader(topic="Later", recall_handle=recalled.ext_fields["recallHandle"])
    assert (await wire.call(RequestCode.RECALL_MESSAGE, header)).code == ResponseCode.SUCCESS
    await clock.skip(3_000)
    assert all_bodies(third, "Later") == [b"new"]
    await third.stop()
    fourth = await start_broker()
    await clock.skip(7_200)
    expected = [b"kept", b"lost 0", b"lost 1", b"lost 2", b"new", b"newer"]
    assert sorted(all_bodies(fourth, "Later")) == expected
    assert (await page_of_waiting(await connect_to(fourth)))["messages"] == []
    await fourth.stop()
    assert sorted(all_bodies(await start_broker(), "Later")) == expected


async def page_of_waiting(wire: Wire) -> dict[str, Any]:
    answer = await wire.call(RequestCode.GET_WAITING_MESSAGES)
    body: dict[str, Any] = json.loads(answer.body)
    return body


async def test_what_was_delivered_behind_the_end_of_a_damaged_log_is_delivered_again(
    start_broker: StartBroker, connect_to: Callable[[Broker], Any], clock: VirtualClock, tmp_path: Path
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    for seconds in (10, 20, 30, 4_000):
        await send_later(wire, b"%d" % seconds, seconds * 1000)
    await clock.run_for(11)
    await wire.send("Other", b"x")
    damaged_from = first.store.max_physical_offset
    await clock.run_for(10)
    await send_later(wire, b"60", 39_000)
    await clock.run_for(2)
    assert all_bodies(first, "Later") == [b"10", b"20"]
    await first.stop()
    (log,) = (tmp_path / "store/commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(damaged_from)
        file.write(bytes(log.stat().st_size - damaged_from))
    (tmp_path / "store/abort").touch()
    second = await start_broker()
    assert second.store.lost_from == damaged_from
    assert second.store.max_physical_offset > damaged_from
    await clock.run_for(1)
    assert all_bodies(second, "Later") == [b"10", b"20"], "once in what is left of the log"
    await send_later(await connect_to(second), b"50", 27_000)
    await clock.skip(5_000)
    assert all_bodies(second, "Later") == [b"10", b"20", b"30", b"50", b"60", b"4000"]


async def test_large_messages_are_read_again_in_small_parts(
    start_broker: StartBroker,
    connect_to: Callable[[Broker], Any],
    clock: VirtualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    sent = [b"%d" % number + bytes(1_000_000) for number in range(20)]
    for body in sent:
        await send_later(wire, body, 3_600_000)
    await first.stop()
    shutil.rmtree(tmp_path / "store" / "comet" / "timer")
    taken: list[int] = []
    take_in = TimerMessageService._read_new

    def counted(timer: TimerMessageService) -> None:
        before = timer._read
        take_in(timer)
        taken.append(timer._read - before)

    monkeypatch.setattr(TimerMessageService, "_read_new", counted)
    second = await start_broker()
    await clock.skip(7_200)
    assert all_bodies(second, "Later") == sent
    assert sum(taken) == 20
    assert max(taken) <= 5


async def test_the_runtime_information_tells_how_far_the_delivery_is_behind(
    tmp_path: Path, clock: VirtualClock, connect_to: Callable[[Broker], Any]
) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    wire = await connect_to(broker)

    async def behind() -> tuple[str, str]:
        table = json.loads((await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
        return table["timerReadBehind"], table["timerOffsetBehind"]

    await wire.send("Later", b"x", properties="TIMER_DELAY_SEC\x015")
    await clock.run_for(1)
    assert await behind() == ("0", "0")
    disk.write_error = errno.ENOSPC
    await clock.run_for(10)
    assert await behind() == ("6", "0")
    disk.write_error = None
    await clock.run_for(1)
    assert await behind() == ("0", "0")
    await broker.stop()


async def timers(wire: Wire) -> dict[str, str]:
    table = json.loads((await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    return {name: value for name, value in table.items() if name.startswith("timer")}


async def test_the_runtime_information_counts_what_waits_comes_and_goes(
    start_broker: StartBroker, connect_to: Callable[[Broker], Any], clock: VirtualClock
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    assert (await timers(wire))["timerCongestNum"] == "0"
    for seconds in (1, 2, 500, 40 * DAY_S, 41 * DAY_S):
        await send_later(wire, b"%d" % seconds, seconds * 1000)
    sent = await wire.send("Later", b"no", properties="UNIQ_KEY\x01K\x02TIMER_DELAY_MS\x01600000")
    assert (await timers(wire))["timerCongestNum"] == "6"
    header = RecallMessageRequestHeader(topic="Later", recall_handle=sent.ext_fields["recallHandle"])
    await wire.call(RequestCode.RECALL_MESSAGE, header)
    assert (await timers(wire))["timerCongestNum"] == "5"
    await clock.run_for(20)
    counted = await timers(wire)
    assert counted["timerCongestNum"] == "3"
    assert float(counted["timerEnqueueTps"]) > float(counted["timerDequeueTps"]) > 0
    await first.stop()
    second = await start_broker()
    wire = await connect_to(second)
    await becomes(wire, clock, "3")
    await clock.skip(1_000)
    await becomes(await connect_to(second), clock, "2")


async def becomes(wire: Wire, clock: VirtualClock, waiting: str) -> None:
    """Give the thread of the timer log time until so many wait."""
    async with asyncio.timeout(60):
        while (await timers(wire))["timerCongestNum"] != waiting:
            await clock.run_for(1)


class CrowdedDisk(FailingDisk):
    """So full that the oldest files go before their time."""

    def used_ratio(self, path: Path) -> float:
        return 0.88


async def test_a_full_disk_does_not_take_the_log_that_waiting_messages_pin(
    tmp_path: Path, clock: VirtualClock, connect_to: Callable[[Broker], Any]
) -> None:
    """While the timer log cannot be written, not even force deletes what it was not copied from; with room it goes."""
    disk = CrowdedDisk()
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    wire = await connect_to(broker)
    await send_later(wire, b"far", 30 * DAY_S * 1000)
    await send_later(wire, b"near", 3_000)
    for _ in range(9):
        assert (await wire.send("Other", bytes(4_000_000))).code == ResponseCode.SUCCESS
    disk.write_error = errno.ENOSPC
    await clock.run_for(30)
    assert (await wire.send("Other", b"x")).code != ResponseCode.SUCCESS
    assert broker.store.min_physical_offset == 0
    assert all_bodies(broker, "Later") == []
    disk.write_error = None
    async with asyncio.timeout(60):
        while not broker.store.min_physical_offset:
            await clock.run_for(10)
    assert all_bodies(broker, "Later") == [b"near"]
    await broker.stop()
    again = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await again.start()
    await clock.skip(31 * DAY_S)
    async with asyncio.timeout(60):
        while all_bodies(again, "Later")[-1:] != [b"far"]:
            await clock.run_for(1)
    await again.stop()


async def test_a_timer_log_that_fails_in_whatever_way_is_tried_again_and_loses_nothing(
    start_broker: StartBroker, connect_to: Callable[[Broker], Any], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start_broker()
    log = first.timer.log
    append, failures = log.append, [RuntimeError("on purpose"), OSError(errno.EIO, "on purpose")]

    def failing(entries: Any) -> None:
        if failures:
            raise failures.pop()
        append(entries)

    monkeypatch.setattr(log, "append", failing)
    await send_later(await connect_to(first), b"x", 3_600_000)
    async with asyncio.timeout(60):
        while log.position.serial < 1:
            await clock.run_for(1)
    assert not failures
    await first.stop()
    second = await start_broker()
    await clock.skip(3_600)
    assert all_bodies(second, "Later") == [b"x"]


async def test_after_the_date_was_set_back_only_what_is_near_is_in_memory(
    connect_to: Callable[[Broker], Any], tmp_path: Path
) -> None:
    clock = TurnedBackClock(1_700_000_000_000 // (DAY_S * 1000) * (DAY_S * 1000))
    first = Broker(small_config(tmp_path), clock=clock)
    await first.start()
    wire = await connect_to(first)
    await send_later(wire, b"came", 36_000_000)
    await send_later(wire, b"waits", 50_000_000)
    await clock.skip(40_000)
    await clock.run_for(2)
    assert all_bodies(first, "Later") == [b"came"]
    clock.set_by_ms = -40_000_000
    handles = []
    for minutes in range(1, 300):
        text = f"UNIQ_KEY\x01{minutes}\x02TIMER_DELAY_MS\x01{minutes * 60_000 + 30_000}"
        handles.append((await wire.send("Later", b"%d" % minutes, properties=text)).ext_fields["recallHandle"])
    for handle in handles[1:]:
        header = RecallMessageRequestHeader(topic="Later", recall_handle=handle)
        assert (await wire.call(RequestCode.RECALL_MESSAGE, header)).code == ResponseCode.SUCCESS
    timer = first.timer
    async with asyncio.timeout(60):
        while timer.log.position.serial < 2 + 299 + 298:
            await clock.run_for(1)
    assert len(timer.due) == 0
    assert not timer.due._recalled
    assert timer.log.position.late == []
    await clock.skip(3_600)
    assert all_bodies(first, "Later") == [b"came", b"1"]
    await clock.run_for(2)
    await first.stop()
    second = Broker(small_config(tmp_path), clock=clock)
    await second.start()
    try:
        await clock.skip(60_000)
        assert all_bodies(second, "Later") == [b"came", b"1", b"waits"], "each once"
        await clock.run_for(2)
        assert second.timer.log.position.set_back == []
    finally:
        await second.stop()
