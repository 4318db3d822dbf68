"""Delay levels: where delayed messages wait, when they come, and in which order."""

from __future__ import annotations

import asyncio
import errno
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.conftest import StartBroker, small_config
from tests.broker.delayed import TurnedBackClock, pulled, send_delayed
from tests.broker.disks import FailingDisk
from tests.broker.wire import Connect, Wire, pull_header, records
from tests.helpers.contents import bodies, stored
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.delay.parked_message import delay_level
from cometmq.broker.limits import DELAY_BATCH_MESSAGES, DELAY_RECHECK_SECONDS
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.fastjson import loads
from cometmq.message.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from cometmq.options import ConfigError, options_of, parse_value
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store.config import StoreConfig
from cometmq.testing import VirtualClock

LEVELS = {1: 1, 2: 5, 3: 10, 4: 30, 18: 7200}


# --- parked ---------------------------------------------------------------------------------------
async def test_a_delayed_message_waits_in_the_queue_of_its_level(broker: Broker, wire: Wire) -> None:
    await send_delayed(wire, b"first", 3)
    answer = await wire.send(
        "Delayed", b"second", properties="WAIT\x01true\x02DELAY\x013\x02E\x01\x02A\x01b", queue_id=2
    )
    assert answer.code == ResponseCode.SUCCESS
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("2", "1")
    _, parked = stored(broker, SCHEDULE_TOPIC, 2)
    assert parked.properties == {
        "WAIT": "true",
        "DELAY": "3",
        "A": "b",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "Delayed",
        "REAL_QID": "2",
    }
    assert answer.ext_fields["msgId"] == parked.msg_id
    unit = broker.store.queue(SCHEDULE_TOPIC, 2).unit(1)
    assert unit is not None
    assert unit[2] == parked.store_timestamp + 10_000
    assert bodies(broker, "Delayed") == []


async def test_a_level_above_the_last_is_the_last(broker: Broker, wire: Wire) -> None:
    await send_delayed(wire, b"far", 2_147_483_647)
    (parked,) = stored(broker, SCHEDULE_TOPIC, 17)
    assert parked.properties["DELAY"] == "18"


@pytest.mark.parametrize("level", ["0", "-1", "-2147483648", "+0", "-0"])
async def test_level_zero_and_below_do_not_wait(broker: Broker, wire: Wire, level: str) -> None:
    await send_delayed(wire, b"now", level)
    (record,) = stored(broker, "Delayed")
    assert record.properties["DELAY"] == level


@pytest.mark.parametrize("level", ["x", "1.5", " 1", "1_0", "2147483648", "-2147483649", "9" * 5000, "3٣x", "+", "1e3"])
async def test_a_level_that_is_no_number_is_refused_in_javas_words(broker: Broker, wire: Wire, level: str) -> None:
    answer = await wire.send("Delayed", b"never", properties=f"DELAY\x01{level}")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f'java.lang.NumberFormatException: For input string: "{level[:64]}"'
    assert broker.store.max_physical_offset == 0


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from(["", "+"]), st.integers(0, 20))
def test_levels_are_read_as_java_reads_numbers(number: int, sign: str, zeros: int) -> None:
    text = f"-{'0' * zeros}{-number}" if number < 0 else f"{sign}{'0' * zeros}{number}"
    assert delay_level(text) == number


def test_digits_of_a_level_may_be_of_any_script() -> None:
    assert [delay_level(text) for text in ("٣", "-٣", "\uff11\uff12")] == [3, -3, 12]


async def test_a_level_that_is_no_number_is_refused_beside_another_delay_too(broker: Broker, wire: Wire) -> None:
    answer = await wire.send("Delayed", b"never", properties="DELAY\x01x\x02TIMER_DELAY_SEC\x011")
    assert answer.remark == 'java.lang.NumberFormatException: For input string: "x"'
    assert broker.store.max_physical_offset == 0


async def test_a_batch_with_a_delayed_message_is_refused(broker: Broker, wire: Wire) -> None:
    properties = b"DELAY\x011"
    piece = (
        struct.pack(">iiiii", 22 + len(properties) + 1, 0, 0, 0, 1)
        + b"x"
        + struct.pack(">h", len(properties))
        + properties
    )
    answer = await wire.send("Delayed", piece, batch=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "delayed" in str(answer.remark)


# --- delivered ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("level", "seconds"), LEVELS.items())
async def test_it_comes_when_it_is_due_and_not_before(
    broker: Broker, wire: Wire, clock: VirtualClock, level: int, seconds: int
) -> None:
    await send_delayed(wire, b"later", level)
    await clock.skip(seconds - 0.001)
    assert bodies(broker, "Delayed") == []
    await clock.skip(0.001)
    await until(lambda: bodies(broker, "Delayed") == [b"later"])
    assert stored(broker, "Delayed")[0].store_timestamp == clock.now_ms()


async def test_the_delivered_record_is_the_parked_one_in_its_real_place(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    properties = "KEYS\x01k\x02TAGS\x01TagA\x02WAIT\x01false\x02DELAY\x011\x02UNIQ_KEY\x01u"
    await wire.send("Delayed", b"body", properties=properties, queue_id=1, flag=-7, reconsume_times=2, sys_flag=1)
    await clock.run_for(1)
    await until(lambda: bool(stored(broker, "Delayed", 1)))
    (parked,) = stored(broker, SCHEDULE_TOPIC, 0)
    (record,) = stored(broker, "Delayed", 1)
    for name in ("body", "properties_text", "flag", "sys_flag", "born_timestamp", "born_host", "reconsume_times"):
        assert getattr(record, name) == getattr(parked, name), name
    assert record.properties.keys() >= {"DELAY", "REAL_TOPIC", "REAL_QID"}
    assert (record.queue_offset, record.prepared_transaction_offset) == (0, 0)
    answer = await wire.pull("Delayed", queue_id=1, subscription="TagA")
    assert [found.body for found in records(answer)] == [b"body"], "its unit has the code of its tag"
    assert len(broker.store.query("Delayed", "u", 1, 0, 1 << 62).records) == 1


async def test_messages_of_a_level_come_in_their_order(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    count = 3 * DELAY_BATCH_MESSAGES + 1
    sent = [b"%d" % number for number in range(count)]
    for number, body in enumerate(sent):
        await send_delayed(wire, body, 1)
        if number % 50 == 0:
            await clock.run_for(0.007)
    await clock.run_for(1)
    await until(lambda: len(bodies(broker, "Delayed")) == count)
    assert bodies(broker, "Delayed") == sent


async def test_a_waiting_pull_gets_it_at_once(
    broker: Broker, wire: Wire, connect: Connect, clock: VirtualClock
) -> None:
    await send_delayed(wire, b"later", 2)
    await wire.send("Delayed", b"now")
    reader = await connect()
    ask = reader.command(RequestCode.PULL_MESSAGE, pull_header("Delayed", queue_offset=1, wait_ms=15_000))
    reader.post(ask)
    await until(lambda: len(broker.hold) == 1)
    await clock.run_for(5)
    assert [record.body for record in records(await reader.answer(ask.opaque))] == [b"later"]


async def test_others_are_answered_while_many_fall_due(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    assert (await wire.send("Other", b"creates the topic")).code == ResponseCode.SUCCESS
    count = 20 * DELAY_BATCH_MESSAGES
    for number in range(count):
        broker.turn.put_inner(broker.schedule.park(_message(b"%d" % number), 1), lambda _: None)
    broker.turn.end()
    clock.advance(1)
    assert (await wire.send("Other", b"x")).code == ResponseCode.SUCCESS
    assert len(bodies(broker, "Delayed")) < count, "a send is answered between two batches"
    await until(lambda: len(bodies(broker, "Delayed")) == count)


async def test_a_message_that_is_parked_just_after_a_level_is_drained_is_delivered(
    broker: Broker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is parked before the level looks for further messages, and is stored after that."""
    broker.turn.put_inner(broker.schedule.park(_message(b"first"), 1), lambda _: None)
    broker.turn.end()
    level = broker.schedule._running[1]
    drained = level._delivered

    def park_another(next_offset: int) -> None:
        monkeypatch.undo()
        drained(next_offset)
        message = broker.schedule.park(_message(b"second"), 1)
        asyncio.get_running_loop().call_soon(lambda: broker.turn.put_inner(message, lambda _: None))

    monkeypatch.setattr(level, "_delivered", park_another)
    await clock.run_for(1)
    assert bodies(broker, "Delayed") == [b"first"]
    await clock.run_for(1)
    assert bodies(broker, "Delayed") == [b"first", b"second"]


def _message(body: bytes, topic: str = "Delayed") -> InnerMessage:
    return InnerMessage(topic, 0, body, f"UNIQ_KEY\x01{body.decode()}", 0, 0, 1, bytes(8))


# --- odd times, odd messages ----------------------------------------------------------------------
async def test_after_the_clock_was_turned_back_messages_are_due_at_once(tmp_path: Path) -> None:
    clock = TurnedBackClock()
    broker = Broker(small_config(tmp_path), clock=clock)
    await broker.start()
    try:
        broker.turn.put_inner(broker.schedule.park(_message(b"before"), 3), lambda _: None)
        broker.turn.end()
        clock.set_by_ms = -3_600_000
        await clock.run_for(DELAY_RECHECK_SECONDS - 0.001)
        assert bodies(broker, "Delayed") == []
        await clock.run_for(0.001)
        await until(lambda: bodies(broker, "Delayed") == [b"before"])
        broker.turn.put_inner(broker.schedule.park(_message(b"after"), 3), lambda _: None)
        broker.turn.end()
        await clock.run_for(9)
        assert bodies(broker, "Delayed") == [b"before"], "what is sent afterwards waits as long as ever"
        await clock.run_for(1)
        await until(lambda: bodies(broker, "Delayed") == [b"before", b"after"])
    finally:
        await broker.stop()


async def test_after_the_date_has_leapt_messages_do_not_wait_for_it_again(broker: Broker, clock: VirtualClock) -> None:
    broker.turn.put_inner(broker.schedule.park(_message(b"hours"), 18), lambda _: None)
    broker.turn.end()
    await clock.skip(7_200)
    assert bodies(broker, "Delayed") == [b"hours"]


async def test_half_messages_and_what_has_no_place_are_dropped(
    broker: Broker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    park = broker.schedule.park
    for message in (
        park(_message(b"half", TRANS_HALF_TOPIC), 1),
        park(_message(b"outside", "../../etc"), 1),
        _message(b"nowhere", SCHEDULE_TOPIC),
        park(_message(b"good"), 1),
    ):
        broker.turn.put_inner(message, lambda _: None)
    broker.turn.end()
    await clock.run_for(1)
    await until(lambda: bodies(broker, "Delayed") == [b"good"])
    assert bodies(broker, TRANS_HALF_TOPIC) == []
    assert caplog.text.count("cannot be delivered") == 2
    assert broker.schedule.offsets()[1] == (4, 4)


async def test_a_disk_that_is_full_delays_delivery_and_loses_nothing(tmp_path: Path, clock: VirtualClock) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    try:
        for number in range(3):
            broker.turn.put_inner(broker.schedule.park(_message(b"%d" % number), 1), lambda _: None)
        broker.turn.end()
        disk.write_error = errno.ENOSPC
        await clock.run_for(3)
        assert bodies(broker, "Delayed") == []
        disk.write_error = None
        await clock.run_for(0.2)
        await until(lambda: len(bodies(broker, "Delayed")) == 3)
        assert bodies(broker, "Delayed") == [b"0", b"1", b"2"]
    finally:
        await broker.stop()


# --- the table ------------------------------------------------------------------------------------
async def test_the_table_is_what_the_configuration_says(start_broker: StartBroker, clock: VirtualClock) -> None:
    broker = await start_broker(message_delay_level="3s 1h")
    park = broker.schedule.park
    broker.turn.put_inner(park(_message(b"short"), 1), lambda _: None)
    broker.turn.put_inner(park(_message(b"hour"), 9), lambda _: None)
    broker.turn.end()
    await clock.run_for(3)
    await until(lambda: bodies(broker, "Delayed") == [b"short"])
    await clock.skip(3_596.999)
    assert bodies(broker, "Delayed") == [b"short"]
    await clock.skip(0.001)
    await until(lambda: bodies(broker, "Delayed") == [b"short", b"hour"])


@pytest.mark.parametrize("text", ["1x", "", "s", "1 s", "1s,2s", "--1s", "99999999999d", "1s  "])
def test_a_table_that_cannot_be_read_is_refused_with_what_is_allowed(text: str) -> None:
    option = options_of(StoreConfig)["messageDelayLevel"]
    if text == "1s  ":
        assert parse_value(option, text) == "1s"
    else:
        with pytest.raises(ConfigError, match="delays such as 10s 5m 2h 1d"):
            parse_value(option, text)


async def test_a_shorter_table_makes_longer_waits_due_and_loses_no_level(
    start_broker: StartBroker, clock: VirtualClock
) -> None:
    broker = await start_broker()
    park = broker.schedule.park
    for level in (1, 4, 5):
        broker.turn.put_inner(park(_message(b"%d" % level), level), lambda _: None)
    broker.turn.end()
    await broker.stop()
    broker = await start_broker(message_delay_level="1s 5s 10s 2s")
    await until(lambda: bodies(broker, "Delayed") == [b"4"])
    await clock.run_for(1)
    await until(lambda: bodies(broker, "Delayed") == [b"4", b"1"])
    await clock.run_for(58.9)
    assert bodies(broker, "Delayed") == [b"4", b"1"]
    await clock.run_for(0.1)
    await until(lambda: bodies(broker, "Delayed") == [b"4", b"1", b"5"])


async def test_a_level_that_the_table_no_longer_has_is_due_after_a_second_when_its_queue_is_written_again(
    start_broker: StartBroker, clock: VirtualClock, tmp_path: Path
) -> None:
    """As in Apache; its tag's hash is no due time (1970)."""
    broker = await start_broker()
    broker.turn.put_inner(broker.schedule.park(_message(b"2h"), 18), lambda _: None)
    broker.turn.end()
    await broker.stop()
    shutil.rmtree(tmp_path / "store" / "consumequeue" / SCHEDULE_TOPIC)
    broker = await start_broker(message_delay_level="1s 5s")
    (parked,) = stored(broker, SCHEDULE_TOPIC, 17)
    unit = broker.store.queue(SCHEDULE_TOPIC, 17).unit(0)
    assert unit is not None
    assert unit[2] == parked.store_timestamp + 1_000
    assert bodies(broker, "Delayed") == []
    await clock.run_for(1)
    await until(lambda: bodies(broker, "Delayed") == [b"2h"])


async def test_the_topic_has_a_queue_for_each_level_also_where_a_table_was_stored_before(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = await start_broker()
    assert broker.topics.table[SCHEDULE_TOPIC].read_queue_nums == 18
    broker.topics.save()
    await broker.stop()
    broker = await start_broker(message_delay_level=" ".join(f"{number}m" for number in range(1, 26)))
    topic = broker.topics.table[SCHEDULE_TOPIC]
    assert (topic.read_queue_nums, topic.write_queue_nums) == (25, 25)
    broker.turn.put_inner(broker.schedule.park(_message(b"last"), 25), lambda _: None)
    broker.turn.end()
    assert bodies(broker, SCHEDULE_TOPIC, 24) == [b"last"]


async def test_only_levels_that_are_used_have_directories(broker: Broker, wire: Wire, tmp_path: Path) -> None:
    directory = tmp_path / "store" / "consumequeue" / SCHEDULE_TOPIC
    assert not directory.exists()
    await send_delayed(wire, b"one", 3)
    await broker.stop()
    assert [entry.name for entry in directory.iterdir()] == ["2"]


# --- questions ------------------------------------------------------------------------------------
async def test_tools_see_how_far_the_levels_are(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await send_delayed(wire, b"one", 1)
    await send_delayed(wire, b"two", 2)
    await clock.run_for(1)
    assert await pulled(wire) == [b"one"]
    assert (await wire.call(RequestCode.GET_ALL_DELAY_OFFSET)).body == b'{"offsetTable":{1:1}}'
    runtime = loads((await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert (runtime["scheduleMessageOffset_1"], runtime["scheduleMessageOffset_2"]) == ("1,1", "0,1")
