"""Pops, acknowledgements and changes over the wire, on a clock that moves; also after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import GROUP, TOPIC, Popper, got
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.broker.pop.entries import decode_entries
from cometmq.remoting.admin_bodies import ConsumeStats, OffsetWrapper
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.pop_headers import AckMessageRequestHeader, NotificationRequestHeader
from cometmq.testing import VirtualClock


@pytest.fixture
def popper(wire: Wire, clock: VirtualClock) -> Popper:
    return Popper(wire, clock)


async def send(wire: Wire, *bodies: bytes, queue_id: int = 0, properties: str = "", **fields: Any) -> None:
    for body in bodies:
        answer = await wire.send(TOPIC, body, queue_id=queue_id, properties=properties, **fields)
        assert answer.code == 0, answer


async def test_a_popped_message_is_seen_by_nobody_until_its_time_is_over(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"a", b"b")
    first = await popper.pop(invisible_time=10_000)
    assert [(m.body, m.times) for m in first] == [(b"a", 0), (b"b", 0)]
    await clock.run_for(9.999)
    assert await popper.pop() == []
    await clock.run_for(0.001)
    again = await popper.pop()
    assert [(m.body, m.times, m.record.topic) for m in again] == [(b"a", 1, TOPIC), (b"b", 1, TOPIC)]
    assert {m.record.properties["1ST_POP_TIME"] for m in again} == {str(first[0].handle.pop_time)}


async def test_what_is_acknowledged_never_comes_again(wire: Wire, popper: Popper, clock: VirtualClock) -> None:
    await send(wire, b"a", b"b", b"c")
    a, _, c = await popper.pop(invisible_time=10_000)
    assert (await popper.ack(a)).code == 0
    assert (await popper.ack(a)).code == 0
    assert (await popper.batch_ack([c])).code == 0
    await clock.run_for(10)
    again = await popper.pop(invisible_time=10_000)
    assert [m.body for m in again] == [b"b"]
    assert (await popper.batch_ack(again)).code == 0
    await clock.run_for(60)
    assert await popper.pop() == []


async def test_a_change_gives_a_new_handle_and_the_old_one_does_nothing(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"a")
    (message,) = await popper.pop(invisible_time=10_000)
    first = await popper.change(message, 20_000)
    second = await popper.change(message, 30_000, first)
    assert message.handle.pop_time < first.pop_time < second.pop_time
    assert (await popper.ack(message)).code == 0
    assert (await popper.ack(message, first)).code == 0
    await popper.change(message, 1, first)
    await clock.run_for(30)
    assert await popper.pop() == []
    await clock.run_for(0.002)
    (again,) = await popper.pop()
    assert (again.body, again.times) == (b"a", 1)
    assert (await popper.ack(message, second)).code == 0
    await popper.change(again, 5)
    await clock.run_for(0.01)
    assert [m.times for m in await popper.pop()] == [2]


async def test_a_waiting_pop_is_woken_by_a_message_and_by_one_that_is_visible_again(
    wire: Wire, popper: Popper, connect_to: ConnectTo, broker: Broker, clock: VirtualClock
) -> None:
    await send(wire, b"a")
    await popper.pop(invisible_time=5_000)
    waiting = Popper(await connect_to(broker), clock)
    command = waiting.command(poll_time=15_000)
    waiting.wire.post(command)
    await clock.run_for(4)
    assert command.opaque not in waiting.wire.answers
    await clock.run_for(1)
    answer = await waiting.wire.answer(command.opaque)
    assert [record.reconsume_times for record in records(answer)] == [1]
    command = waiting.command(poll_time=15_000)
    waiting.wire.post(command)
    await clock.run_for(1)
    await send(wire, b"new", queue_id=1)
    assert [record.body for record in records(await waiting.wire.answer(command.opaque))] == [b"new"]
    command = waiting.command(poll_time=15_000)
    waiting.wire.post(command)
    await clock.run_for(15)
    assert (await waiting.wire.answer(command.opaque)).code == ResponseCode.POLLING_TIMEOUT


async def test_a_queue_with_enough_messages_in_flight_gives_more_once_some_are_acknowledged(
    wire: Wire, popper: Popper, connect_to: ConnectTo, broker: Broker, clock: VirtualClock
) -> None:
    for number in range(5):
        await send(wire, b"%d" % number)
    keys = b"enablePopMessageThreshold=true\npopInflightMessageThreshold=3"
    assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=keys)).code == 0
    found = await popper.pop(max_msg_nums=3)
    assert await popper.pop() == []
    assert len(await Popper(wire, clock, "others").pop(max_msg_nums=3)) == 3
    waiting = Popper(await connect_to(broker), clock)
    command = waiting.command(poll_time=15_000)
    waiting.wire.post(command)
    await clock.run_for(1)
    assert command.opaque not in waiting.wire.answers
    await popper.ack(found[0])
    assert [record.body for record in records(await waiting.wire.answer(command.opaque))] == [b"3", b"4"]


async def test_after_the_maximum_of_retries_a_message_is_a_dead_letter(
    wire: Wire, popper: Popper, broker: Broker, clock: VirtualClock
) -> None:
    await send(wire, b"bad", properties="KEYS\x01k\x02TAGS\x01t")
    group = broker.groups.find(GROUP)
    assert group is not None
    times = 0
    while await popper.pop(invisible_time=1_000):
        times += 1
        await clock.run_for(1)
    assert times == group.retry_max_times + 1
    (dead,) = records(await wire.pull(f"%DLQ%{GROUP}"))
    assert (dead.body, dead.properties["RETRY_TOPIC"], dead.properties["KEYS"]) == (
        b"bad",
        TOPIC,
        "k",
    )
    assert broker.pops.state.in_flight(TOPIC, GROUP) == 0


async def test_a_message_with_the_largest_number_of_retries_does_not_hold_up_its_queue(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"often", reconsume_times=2**31 - 1)
    await send(wire, b"good")
    assert len(await popper.pop(invisible_time=1_000)) == 2
    await clock.run_for(2)
    (dead,) = records(await wire.pull(f"%DLQ%{GROUP}"))
    assert (dead.body, dead.reconsume_times) == (b"often", 2**31 - 1)
    assert [found.body for found in await popper.pop()] == [b"good"]


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_kill_forgets_nothing(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path, snapshot: bool
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    await send(popper.wire, *(b"%d" % n for n in range(20)))
    await popper.pop(invisible_time=10_000, max_msg_nums=5)
    if snapshot:
        await broker.pops.save()
    second = await popper.pop(invisible_time=20_000, max_msg_nums=5)
    for message in second[:3]:
        await popper.ack(message)
    changed = await popper.change(second[4], 30_000)
    root, left = tmp_path / "store", tmp_path / "left"
    copy_store(root, left)
    await broker.cut_off()
    await broker.stop()
    shutil.rmtree(root)
    left.rename(root)
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    assert [m.body for m in await popper.pop(max_msg_nums=1)] == [b"10"]
    await clock.run_for(10)
    assert sorted(m.body for m in await popper.pop() if m.times) == [b"0", b"1", b"2", b"3", b"4"]
    await popper.ack(second[4], changed)
    await clock.run_for(10)
    assert [m.body for m in await popper.pop() if m.times] == [b"8"]
    await clock.run_for(10)
    assert [m.body for m in await popper.pop() if m.times] == []


async def test_bad_pops(wire: Wire, popper: Popper, clock: VirtualClock) -> None:
    await send(wire, b"a")
    assert (await popper.answer(max_msg_nums=33)).code == ResponseCode.INVALID_PARAMETER
    assert (await popper.answer(queue_id=8)).code == ResponseCode.INVALID_PARAMETER
    assert (await popper.answer(invisible_time=-1)).code == ResponseCode.INVALID_PARAMETER
    assert (await popper.answer(invisible_time=2**62)).code == ResponseCode.INVALID_PARAMETER
    assert (await popper.answer(born_time=clock.now_ms() - 1_000)).code == ResponseCode.POLLING_TIMEOUT
    assert (await popper.answer(topic="Nope")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await wire.call(RequestCode.ACK_MESSAGE)).code == ResponseCode.SYSTEM_ERROR
    (message,) = await popper.pop()
    assert (await popper.ack(message, message.handle._replace(queue_offset=99))).code == ResponseCode.NO_MESSAGE
    named = AckMessageRequestHeader(consumer_group="g", topic="Nope", queue_id=0, extra_info="no handle", offset=0)
    refused = await wire.call(RequestCode.ACK_MESSAGE, named)
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST, "the topic is checked before the handle is read"
    assert (await wire.call(RequestCode.POP_ROLLBACK)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_without_a_time_of_birth_the_time_of_the_broker_counts(
    wire: Wire, popper: Popper, connect_to: ConnectTo, broker: Broker, clock: VirtualClock
) -> None:
    await send(wire, b"first")
    await popper.pop()
    waiting = Popper(await connect_to(broker), clock)
    asked = NotificationRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=-1, poll_time=5_000, born_time=0)
    commands = (
        waiting.command(poll_time=5_000, born_time=0, max_msg_nums=1),
        waiting.wire.command(RequestCode.NOTIFICATION, asked),
    )
    for command in commands:
        waiting.wire.post(command)
        await clock.run_for(4)
        assert command.opaque not in waiting.wire.answers
        await send(wire, b"a", b"b")
        assert (await waiting.wire.answer(command.opaque)).code == 0


async def test_progress_shows_what_is_in_flight(wire: Wire, popper: Popper, clock: VirtualClock) -> None:
    await send(wire, b"a", b"b", b"c")
    a, b = await popper.pop(max_msg_nums=2, invisible_time=60_000)
    await popper.ack(a)

    async def progress() -> OffsetWrapper:
        answer = await wire.call(RequestCode.GET_CONSUME_STATS, ext={"consumerGroup": GROUP, "topic": TOPIC})
        table = decode_body(ConsumeStats, answer.body).offset_table
        (found,) = [wrapper for queue, wrapper in table.items() if queue.queue_id == 0]
        return found

    found = await progress()
    assert (found.broker_offset, found.consumer_offset, found.pull_offset) == (3, 2, 3)
    assert found.visible_again == clock.now_ms() + 60_000
    await popper.ack(b)
    assert (await progress()).visible_again is UNSET


async def test_progress_shows_when_an_ordered_message_is_visible_again(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"a")
    await popper.pop(order=True, invisible_time=30_000)
    answer = await wire.call(RequestCode.GET_CONSUME_STATS, ext={"consumerGroup": GROUP, "topic": TOPIC})
    table = decode_body(ConsumeStats, answer.body).offset_table
    (found,) = [wrapper for queue, wrapper in table.items() if queue.queue_id == 0]
    assert found.visible_again == clock.now_ms() + 30_000


async def test_in_order_nothing_follows_until_all_is_acknowledged_and_no_acknowledged_one_comes_again(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    await send(popper.wire, *(b"%d" % n for n in range(6)))
    first = await popper.pop(order=True, max_msg_nums=3, invisible_time=10_000, queue_id=0)
    assert [m.body for m in first] == [b"0", b"1", b"2"]
    await popper.ack(first[1])
    assert await popper.pop(order=True, queue_id=0) == []
    root, left = tmp_path / "store", tmp_path / "left"
    copy_store(root, left)
    await broker.cut_off()
    await broker.stop()
    shutil.rmtree(root)
    left.rename(root)
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    assert await popper.pop(order=True, queue_id=0) == []
    waiting = popper.command(order=True, queue_id=0, max_msg_nums=3, poll_time=15_000)
    popper.wire.post(waiting)
    await clock.run_for(10)
    answer = await popper.wire.answer(waiting.opaque)
    assert [m.body for m in got(answer)] == [b"0", b"2", b"3"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 0 0", "only the first one used an attempt"
    for message in got(answer):
        await popper.ack(message)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 4
    assert [m.body for m in await popper.pop(order=True, queue_id=0)] == [b"4", b"5"]


async def test_a_group_that_is_set_back_gets_its_messages_again_also_after_a_kill(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    await send(popper.wire, b"0", b"1", b"2")
    for message in await popper.pop():
        await popper.ack(message)
    back = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
    await popper.wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext=back)
    await popper.wire.call(RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "0"})
    root, left = tmp_path / "store", tmp_path / "left"
    copy_store(root, left)
    await broker.cut_off()
    await broker.stop()
    shutil.rmtree(root)
    left.rename(root)
    broker = await start_broker()
    assert [m.body for m in await Popper(await connect_to(broker), clock).pop()] == [b"1", b"2"]


async def killed(
    broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> tuple[Broker, Popper]:
    """The broker that starts after a kill."""
    root, left = tmp_path / "store", tmp_path / "left"
    copy_store(root, left)
    await broker.cut_off()
    await broker.stop()
    shutil.rmtree(root)
    left.rename(root)
    broker = await start_broker()
    return broker, Popper(await connect_to(broker), clock)


async def test_in_order_a_message_handed_out_for_the_last_time_is_a_dead_letter_and_the_queue_goes_on(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    group = broker.groups.find(GROUP)
    assert group is not None
    group.retry_max_times = 2
    await send(popper.wire, b"bad", b"good", b"next")
    pop = {"order": True, "invisible_time": 1_000, "queue_id": 0}
    _, good = await popper.pop(max_msg_nums=2, **pop)
    await popper.ack(good)
    for _ in range(2):
        await clock.run_for(1)
        assert [m.body for m in await popper.pop(max_msg_nums=1, **pop)] == [b"bad"]
    waiting = popper.command(max_msg_nums=1, poll_time=15_000, **pop)
    popper.wire.post(waiting)
    await clock.run_for(1)
    (follows,) = got(await popper.wire.answer(waiting.opaque))
    assert follows.body == b"next"
    assert broker.offsets.query(GROUP, TOPIC, 0) == 2
    broker, popper = await killed(broker, start_broker, connect_to, clock, tmp_path)
    (dead,) = records(await popper.wire.pull(f"%DLQ%{GROUP}"))
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"bad", TOPIC)
    assert await popper.pop(**pop) == [], "the next one is still invisible"
    await clock.run_for(1)
    assert [m.body for m in await popper.pop(**pop)] == [b"next"]


@pytest.mark.parametrize("saved", [True, False])
async def test_in_order_only_the_first_message_dies_and_the_next_one_has_all_its_attempts_also_after_a_kill(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path, saved: bool
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    group = broker.groups.find(GROUP)
    assert group is not None
    group.retry_max_times = 1
    bodies = [b"a", b"b", b"c"]
    await send(popper.wire, *bodies)
    for first in range(3):
        for attempt in range(2):
            found = await popper.answer(order=True, invisible_time=1_000, queue_id=0)
            assert [m.body for m in got(found)] == bodies[first:]
            counts = f"0 qo0%{first} 1;" if attempt else ""
            least = 1 if first == 2 and attempt else 0
            assert found.ext_fields["orderCountInfo"] == f"{counts}0 0 {least}"
            await clock.run_for(1)
        dead = records(await popper.wire.pull(f"%DLQ%{GROUP}"))
        assert [record.body for record in dead] == bodies[: first + 1]
        if saved:
            await broker.pops.save()
        broker, popper = await killed(broker, start_broker, connect_to, clock, tmp_path)
    assert await popper.pop(order=True, queue_id=0) == []
    assert broker.offsets.query(GROUP, TOPIC, 0) == 3


async def test_in_order_without_retries_each_message_has_one_attempt_of_its_own(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    group = broker.groups.find(GROUP)
    assert group is not None
    group.retry_max_times = 0
    await send(popper.wire, b"bad", b"good", b"also bad", b"last")
    pop = {"order": True, "invisible_time": 1_000, "queue_id": 0}
    await popper.pop(max_msg_nums=2, **pop)
    await clock.run_for(1)
    good, _, last = await popper.pop(**pop)
    await popper.ack(good)
    await popper.ack(last)
    await clock.run_for(1)
    dead = records(await popper.wire.pull(f"%DLQ%{GROUP}"))
    assert [record.body for record in dead] == [b"bad", b"also bad"]
    assert await popper.pop(**pop) == []


async def test_a_pop_with_sql92_takes_what_fits_now_and_when_it_comes_again(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    popper = Popper(await connect_to(await start_broker(enable_property_filter=True)), clock)
    for n in range(6):
        await send(popper.wire, b"%d" % n, properties=f"a\x01{n}\x02")
    wanted = {"exp": "a BETWEEN 2 AND 4", "exp_type": "SQL92", "invisible_time": 1_000}
    popped = await popper.pop(**wanted)
    assert [m.body for m in popped] == [b"2", b"3", b"4"]
    await popper.ack(popped[1])
    await clock.run_for(1)
    again = await popper.pop(**wanted)
    assert [(m.body, m.times) for m in again] == [(b"2", 1), (b"4", 1)]
    waiting = popper.command(**(wanted | {"poll_time": 15_000}))
    popper.wire.post(waiting)
    await send(popper.wire, b"9", properties="a\x019\x02")
    await send(popper.wire, b"3", properties="a\x013\x02")
    assert [m.body for m in got(await popper.wire.answer(waiting.opaque))] == [b"3"]
    wrong = await popper.answer(exp="a >", exp_type="SQL92")
    assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_record_that_stands_for_a_lost_one_has_no_entries_and_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    assert decode_entries(bytes(100)) == []
    assert not caplog.records
    assert decode_entries(b"\x01") == []
    assert "cannot read a record" in caplog.text


async def test_names_that_are_too_long_for_a_retry_topic_are_refused_unless_the_pop_is_in_order(
    wire: Wire, clock: VirtualClock
) -> None:
    topic = "T" * 60
    assert (await wire.send(topic, b"m")).code == 0
    fits, long = (Popper(wire, clock, "G" * size, topic) for size in (59, 60))
    assert len(await fits.pop()) == 1
    answer = await long.answer()
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "128 characters, the maximum is 127" in str(answer.remark)
    (message,) = await long.pop(order=True)
    await long.ack(message)
    assert await long.pop(order=True) == []


async def test_a_broker_that_stops_says_so_to_those_that_want_to_wait(
    wire: Wire, popper: Popper, clock: VirtualClock, broker: Broker
) -> None:
    """And not that too many wait."""
    await send(wire, b"a")
    assert len(await popper.pop()) == 1
    broker.pops.polling.stop()
    waits = NotificationRequestHeader(GROUP, TOPIC, -1, 10_000, clock.now_ms())
    for answer in (await popper.answer(poll_time=10_000), await wire.call(RequestCode.NOTIFICATION, waits)):
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark == "service not available now: the broker stops"


@pytest.mark.parametrize("saved", [False, True])
async def test_in_order_a_message_behind_one_that_is_redelivered_alone_has_all_its_attempts_also_after_a_kill(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path, saved: bool
) -> None:
    """A consumer that keeps the order did not begin the others of the first delivery."""
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    await send(popper.wire, b"a", b"b", b"c")
    pop = {"order": True, "invisible_time": 1_000, "queue_id": 0}
    assert len(await popper.pop(**pop)) == 3
    for _ in range(2):
        await clock.run_for(1)
        (first,) = await popper.pop(max_msg_nums=1, **pop)
    if saved:
        await broker.pops.save()
    broker, popper = await killed(broker, start_broker, connect_to, clock, tmp_path)
    await popper.ack(first)
    for count in range(2):
        found = await popper.answer(**pop)
        assert [m.body for m in got(found)] == [b"b", b"c"]
        assert found.ext_fields["orderCountInfo"] == ("0 qo0%1 1;0 0 0" if count else "0 0 0")
        await clock.run_for(1)
