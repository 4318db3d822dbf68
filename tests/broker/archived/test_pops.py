"""Pops below a broker's first offset: handed out from the archive, acknowledged, and made visible again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.archived.archiving import MESSAGES, archive_store, is_readable
from tests.broker.archived.conftest import Archived, MakeArchived
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import Got, Popper, got
from tests.broker.wire import pull_header, records
from tests.helpers.waiting import until

from cometmq.broker.limits import POP_LOAD_SECONDS, POP_LOAD_SECONDS_MAX
from cometmq.broker.pop.entries import PoppedInOrder
from cometmq.message.names import POP_LOG_TOPIC
from cometmq.message.record import decode_record
from cometmq.remoting.admin_headers import CreateTopicRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.pop_headers import NotificationRequestHeader, PeekMessageRequestHeader

WAIT = {"poll_time": 15_000}
IN_ORDER: dict[str, Any] = {"order": True, "queue_id": 0, "invisible_time": 10_000}


def popper_of(archived: Archived) -> Popper:
    return Popper(archived.wire, archived.clock, topic="T")


def offsets(messages: list[Got]) -> list[int]:
    return [message.record.queue_offset for message in messages]


async def pop_all(archived: Archived, **fields: Any) -> list[Got]:
    """Pop and acknowledge until the end of the queue."""
    popper, found = popper_of(archived), list[Got]()
    store = archived.broker.store
    while archived.broker.offsets.query(popper.group, "T", 0) < store.extent("T", 0)[1]:
        messages = await popper.pop(**(WAIT | fields))
        assert (await popper.batch_ack(messages)).code == ResponseCode.SUCCESS
        found += messages
    return found


def unload(archived: Archived) -> None:
    """Forget the loaded messages, as the broker does when others need the memory."""
    archived.broker.pops.reads.forget("T")


async def test_a_group_gets_every_message_once_and_byte_for_byte(archived: Archived) -> None:
    messages = await pop_all(archived)
    assert offsets(messages) == list(range(MESSAGES))
    assert [message.record for message in messages] == [decode_record(record) for record in archived.stored]
    assert await popper_of(archived).pop() == []


@pytest.mark.parametrize(("exp", "exp_type"), [("tag-1", "TAG"), ("TAGS = 'tag-1'", "SQL92")])
async def test_filters_hold(make_archived: MakeArchived, exp: str, exp_type: str) -> None:
    archived = await make_archived(enable_property_filter=True)
    messages = await pop_all(archived, exp=exp, exp_type=exp_type)
    assert offsets(messages) == list(range(1, MESSAGES, 3))


async def test_in_order_nothing_follows_until_all_is_acknowledged(archived: Archived) -> None:
    popper, want = popper_of(archived), 0
    for _ in range(5):
        messages = await popper.pop(**IN_ORDER, **WAIT, max_msg_nums=3)
        assert offsets(messages) == [want, want + 1, want + 2]
        assert await popper.pop(**IN_ORDER) == []
        await popper.ack(messages[1])
        unload(archived)
        again = popper.command(**IN_ORDER, **WAIT, max_msg_nums=3)
        archived.wire.post(again)
        await archived.clock.run_for(11)
        redelivered = got(await archived.wire.answer(again.opaque), topic="T")
        assert offsets(redelivered) == [want, want + 2, want + 3], "no acknowledged one comes again"
        for message in redelivered:
            assert (await popper.ack(message)).code == ResponseCode.SUCCESS
        want += 4


async def test_in_message_group_order_a_waiting_message_is_handed_out_after_its_messages_were_unloaded(
    archived: Archived,
) -> None:
    popper = popper_of(archived)
    (first,) = await popper.pop(**IN_ORDER, **WAIT, by_message_group=True, max_msg_nums=1)
    assert await popper.pop(**IN_ORDER, by_message_group=True) == [], "all are in one message group"
    unload(archived)
    await popper.ack(first)
    second = await popper.pop(**IN_ORDER, **WAIT, by_message_group=True, max_msg_nums=2)
    assert (offsets([first]), offsets(second)) == ([0], [1, 2])


async def test_a_message_that_is_not_acknowledged_is_retried(archived: Archived) -> None:
    popper = popper_of(archived)
    messages = await popper.pop(**WAIT, invisible_time=10_000, max_msg_nums=3)
    await popper.ack(messages[1])
    unload(archived)
    archived.clock.advance(11)
    retried: list[Got] = []
    while len(retried) < 2:
        await archived.clock.run_for(POP_LOAD_SECONDS)
        retried += [message for message in await popper.pop(max_msg_nums=8) if message.times]
    assert sorted(message.body for message in retried) == [messages[0].body, messages[2].body]
    assert {message.times for message in retried} == {1}
    for message in retried:
        assert (await popper.ack(message)).code == ResponseCode.SUCCESS


async def test_messages_that_expire_together_are_loaded_together(archived: Archived) -> None:
    popper = popper_of(archived)
    messages = await popper.pop(**WAIT, invisible_time=10_000)
    assert len(messages) > 10
    unload(archived)
    before = archived.messages.records
    archived.clock.advance(11)
    retry = f"%RETRY%{popper.group}_T"
    while archived.broker.store.extent(retry, 0)[1] < len(messages):
        await archived.clock.run_for(POP_LOAD_SECONDS)
    assert archived.messages.records - before < 3 * len(messages) + 100


async def test_messages_that_expire_while_the_archive_cannot_be_read_are_asked_for_less_and_less_often(
    archived: Archived,
) -> None:
    popper = popper_of(archived)
    await popper.pop(**WAIT, invisible_time=10_000, max_msg_nums=4)
    unload(archived)
    log = archived.broker.store.queue(POP_LOG_TOPIC, 0)
    (file,) = [path for path in archived.lake.glob("topic=*/*/*.parquet") if "-00000000000000000000-" in path.name]
    content = file.read_bytes()
    file.write_bytes(b"damaged")
    os.kill(archived.messages.process.pid or 0, signal.SIGKILL)
    before = log.max_offset()
    await until(lambda: archived.broker.pops.reads.pause_seconds == POP_LOAD_SECONDS_MAX, clock=archived.clock)
    assert log.max_offset() - before < 20
    file.write_bytes(content)
    retry = f"%RETRY%{popper.group}_T"
    await until(lambda: archived.broker.store.extent(retry, 0)[1] == 4, clock=archived.clock)


async def test_an_invisible_time_is_changed_and_the_handle_stays_valid_while_the_message_loads(
    archived: Archived,
) -> None:
    popper = popper_of(archived)
    (message,) = await popper.pop(**WAIT, invisible_time=10_000, max_msg_nums=1)
    handle = await popper.change(message, 20_000)
    assert (await popper.ack(message)).code == ResponseCode.SUCCESS, "as for Apache's broker, and without effect"
    unload(archived)
    pid = archived.messages.process.pid or 0
    os.kill(pid, signal.SIGSTOP)
    try:
        archived.clock.advance(21)  # expired, and it cannot be read
        await archived.wire.pull("T", queue_offset=archived.low)
        assert (await popper.ack(message, handle)).code == ResponseCode.SUCCESS
    finally:
        os.kill(pid, signal.SIGCONT)
    await archived.clock.run_for(30)
    assert not [other for other in await popper.pop(**WAIT) if other.times]


async def test_a_pop_that_does_not_wait_finds_the_messages_next_time(archived: Archived) -> None:
    popper = popper_of(archived)
    assert await popper.pop() == []
    found: list[Got] = []
    while not found:
        await asyncio.sleep(0.01)
        found = await popper.pop()
    assert offsets(found)[0] == 0


async def test_a_handle_is_valid_after_a_restart_while_the_archive_is_being_opened(
    archived: Archived, start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    messages = await popper_of(archived).pop(**WAIT, max_msg_nums=4)
    await archived.broker.stop()
    broker = await start_broker(archive_read=str(archived.lake))
    popper = Popper(await connect_to(broker), archived.clock, topic="T")
    for message in messages:
        assert (await popper.ack(message)).code == ResponseCode.SUCCESS
    waiting = popper.command(**WAIT, max_msg_nums=4)
    popper.wire.post(waiting)
    await until(lambda: is_readable(broker))
    await archived.clock.run_for(2)
    assert offsets(got(await popper.wire.answer(waiting.opaque), topic="T")) == [4, 5, 6, 7]


async def test_the_reader_is_killed_and_the_pop_that_waits_gets_its_messages(archived: Archived) -> None:
    os.kill(archived.messages.process.pid or 0, signal.SIGKILL)
    await until(lambda: archived.messages.process.pid is None)
    found: list[Got] = []
    while not found:
        waiting = asyncio.ensure_future(popper_of(archived).pop(**WAIT))
        await until(waiting.done, clock=archived.clock)
        found = waiting.result()
    assert offsets(found)[0] == 0
    assert archived.messages.process.restarts == 1


async def test_a_group_that_is_set_back_starts_there(archived: Archived) -> None:
    back = {"consumerGroup": "poppers", "topic": "T", "queueId": "0", "commitOffset": "123"}
    await archived.wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext=back)
    await archived.wire.call(RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "0"})
    assert offsets(await popper_of(archived).pop(**WAIT, max_msg_nums=2)) == [123, 124]


def archive_first_file(root: Path) -> Callable[[Path], object]:
    """Archive only the first log file, so that there is a gap before the first message of the store."""

    def archive(lake: Path) -> None:
        copy = root / "copy" / "commitlog"
        copy.mkdir(parents=True)
        first = min((root / "store" / "commitlog").iterdir())
        (copy / first.name).write_bytes(first.read_bytes())
        archive_store(root / "copy", lake)

    return archive


async def test_after_a_gap_pops_continue_at_the_first_message_of_the_store(
    make_archived: MakeArchived, tmp_path: Path
) -> None:
    archived = await make_archived(archived=archive_first_file(tmp_path))
    found = offsets(await pop_all(archived))
    end = found.index(archived.low)
    assert found == [*range(end), *range(archived.low, MESSAGES)]
    assert 0 < end < archived.low


async def test_in_order_a_message_that_was_lost_while_it_was_handed_out_does_not_stop_its_queue(
    make_archived: MakeArchived, tmp_path: Path
) -> None:
    archived = await make_archived(archived=archive_first_file(tmp_path))
    popper, lost = popper_of(archived), archived.low - 3
    log = archived.broker.pops.log
    archived.broker.offsets.set_offset(popper.group, "T", 0, lost)
    log.check()
    log.add(PoppedInOrder("T", popper.group, 0, [lost], [0], lost + 1, archived.clock.now_ms(), 1_000, ""))
    log.when_stored(lambda _refusal: None)
    archived.clock.advance(2)
    assert offsets(await popper.pop(**IN_ORDER, **WAIT, max_msg_nums=1)) == [archived.low]


async def test_an_attribute_excludes_a_topic(archived: Archived) -> None:
    header = CreateTopicRequestHeader("T", "TBW102", 4, 4, 6, "SINGLE_TAG", order=False, attributes="+archive.read=off")
    assert (await archived.wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
    assert offsets(await popper_of(archived).pop())[0] == archived.low


async def test_a_peek_starts_at_the_first_message_of_the_store(archived: Archived) -> None:
    header = PeekMessageRequestHeader(topic="T", queue_id=0, max_msg_nums=1, consumer_group="poppers")
    answer = await archived.wire.call(RequestCode.PEEK_MESSAGE, header)
    assert [record.queue_offset for record in records(answer)] == [archived.low]


async def test_a_notification_says_that_there_may_be_archived_messages(archived: Archived) -> None:
    header = NotificationRequestHeader(
        topic="T", queue_id=0, consumer_group="poppers", poll_time=0, born_time=archived.clock.now_ms()
    )
    answer = await archived.wire.call(RequestCode.NOTIFICATION, header)
    assert answer.ext_fields["hasMsg"] == "true"


async def test_an_archive_that_is_missing_lets_pops_start_at_the_first_message_of_the_store(
    archived: Archived, start_broker: StartBroker, connect_to: ConnectTo, caplog: pytest.LogCaptureFixture
) -> None:
    await archived.broker.stop()
    broker = await start_broker(archive_read=str(archived.lake.parent / "absent"))
    await until(lambda: "create one: cometmq pipeline archive" in caplog.text)
    assert not is_readable(broker)
    popper = Popper(await connect_to(broker), archived.clock, topic="T")
    assert offsets(await popper.pop())[0] == archived.low


async def test_pops_and_pulls_of_one_group_share_the_offset(archived: Archived) -> None:
    popper = popper_of(archived)
    for message in await popper.pop(**WAIT, max_msg_nums=5):
        await popper.ack(message)
    answer = await archived.wire.call(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=5, max_msg_nums=1))
    assert answer.body == archived.stored[5]
