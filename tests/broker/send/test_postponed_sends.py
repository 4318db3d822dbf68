"""Sends to a topic that is not on the disk yet are postponed: in their order, answered once, and limited in size."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.disks import HeldDisk
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, records, send_header
from tests.helpers.waiting import real_time, until

import cometmq.remoting.server
from cometmq.broker.controller import Broker
from cometmq.broker.limits import TABLE_RETRY_SECONDS
from cometmq.broker.tables import table_writer
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.turn import targets
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.remoting.admin_headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from cometmq.remoting.bodies import SubscriptionGroupConfig, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.store.recovery.known_topics import DELETED_TOPICS
from cometmq.testing import VirtualClock


def post(wire: Wire, topic: str, body: bytes, *, flag: int = 0, **fields: object) -> RemotingCommand:
    """Send a message and do not wait."""
    command = wire.command(RequestCode.SEND_MESSAGE_V2, send_header(topic, **fields), body, flag=flag)
    wire.post(command)
    return command


def post_create(wire: Wire, topic: str) -> RemotingCommand:
    header = CreateTopicRequestHeader(topic, "TBW102", 4, 4, 6, "SINGLE_TAG", order=False)
    command = wire.command(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    wire.post(command)
    return command


def post_delete(wire: Wire, topic: str) -> RemotingCommand:
    command = wire.command(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))
    wire.post(command)
    return command


async def handled(wire: Wire) -> None:
    """Return when the broker has handled everything that this connection sent before."""
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)


async def bodies(wire: Wire, topic: str) -> list[bytes]:
    return [record.body for record in records(await wire.pull(topic))]


@pytest.fixture
async def wire(broker: Broker, connect_to: ConnectTo) -> Wire:
    """A connection to a broker that has made its own topics."""
    wire = await connect_to(broker)
    assert (await wire.send("Earlier")).code == 0
    assert (await wire.answer(post_delete(wire, "Earlier").opaque)).code == 0
    assert (await wire.send("Old", b"old")).code == 0
    return wire


async def test_sends_keep_their_order_though_the_next_write_begins_when_their_topic_is_there(
    tables_disk: HeldDisk, wire: Wire
) -> None:
    before = tables_disk.flushes
    tables_disk.hold()
    sends = [post(wire, "New", b"1")]
    await until(lambda: tables_disk.flushes > before)
    sends.append(post(wire, "New", b"2"))
    created = post_create(wire, "Other")
    await handled(wire)
    tables_disk.hold_next()
    await wire.answer(sends[0].opaque)
    sends.append(post(wire, "New", b"3"))
    batch = encode_batch([BatchPiece(0, b"4", ""), BatchPiece(0, b"5", "")])
    sends.append(post(wire, "New", batch, batch=True))
    for send in sends[1:]:
        assert (await wire.answer(send.opaque)).code == 0, "while the other topic is written"
    assert created.opaque not in wire.answers
    tables_disk.go_on()
    assert (await wire.answer(created.opaque)).code == 0
    assert await bodies(wire, "New") == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_deletion_and_the_sends_after_it_are_handled_in_their_order(broker: Broker, wire: Wire) -> None:
    asked = [post_delete(wire, "Old"), post(wire, "Old", b"1"), post(wire, "Old", b"2")]
    for one in asked:
        assert (await wire.answer(one.opaque)).code == 0
    assert broker.topics.get("Old") is not None
    assert await bodies(wire, "Old") == [b"1", b"2"]


async def test_sends_keep_their_order_though_each_round_has_time_for_one_of_those_that_waited(
    tables_disk: HeldDisk, wire: Wire, connect_to: ConnectTo, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "SLICES_SECONDS", 0)
    monkeypatch.setattr(targets, "SLICES_SECONDS", 0)
    later = await connect_to(broker)
    tables_disk.hold()
    sends = [post(wire, "New", b"%d" % number) for number in range(30)]
    created = [post_create(wire, f"Other{number}") for number in range(100)]
    await handled(wire)
    tables_disk.go_on()
    await wire.answer(sends[0].opaque)
    assert sends[29].opaque not in wire.answers, "others are served in between"
    assert (await later.send("New", b"later")).code == 0
    for one in (*sends[1:], *created):
        assert (await wire.answer(one.opaque)).code == 0
    assert await bodies(wire, "New") == [*(b"%d" % number for number in range(30)), b"later"]


@pytest.mark.parametrize("is_saved_again", [False, True])
async def test_a_deletion_that_was_not_answered_leaves_the_messages_after_a_kill(
    tables_disk: HeldDisk,
    broker: Broker,
    wire: Wire,
    start_broker: StartBroker,
    connect_to: ConnectTo,
    tmp_path: Path,
    clock: VirtualClock,
    *,
    is_saved_again: bool,
) -> None:
    directory = tmp_path / "store" / "consumequeue" / "Old"
    clock.advance(2)
    await until(directory.exists)
    tables_disk.write_error = errno.ENOSPC
    assert (await wire.answer(post_delete(wire, "Old").opaque)).code == ResponseCode.SYSTEM_ERROR
    assert (await wire.pull("Old")).code == ResponseCode.TOPIC_NOT_EXIST
    clock.advance(2)  # to a checkpoint that would not know the queue
    await real_time(0.05)
    if is_saved_again:
        tables_disk.write_error = None
        clock.advance(TABLE_RETRY_SECONDS)
        await until(lambda: not directory.exists())
    copy_store(tmp_path / "store", tmp_path / "copy" / "store")
    tables_disk.write_error = None
    killed = await connect_to(await start_broker(store_path_root_dir=str(tmp_path / "copy" / "store")))
    if is_saved_again:
        assert (await killed.pull("Old")).code == ResponseCode.TOPIC_NOT_EXIST
    else:
        assert await bodies(killed, "Old") == [b"old"]


async def test_batches_and_oneway_sends_to_a_new_topic_keep_their_order(tables_disk: HeldDisk, wire: Wire) -> None:
    tables_disk.hold()
    sends = [
        post(wire, "New", b"1", flag=FLAG_ONEWAY),
        post(wire, "New", encode_batch([BatchPiece(0, b"2", ""), BatchPiece(0, b"3", "")]), batch=True),
        post(wire, "New", b"4"),
    ]
    await handled(wire)
    tables_disk.go_on()
    for send in sends[1:]:
        assert (await wire.answer(send.opaque)).code == 0
    await handled(wire)
    assert not wire.answers, "each was answered once, and the oneway one never"
    assert await bodies(wire, "New") == [b"1", b"2", b"3", b"4"]


async def test_sends_that_wait_while_their_topic_is_deleted_are_in_its_next_life(
    tables_disk: HeldDisk, broker: Broker, wire: Wire, start_broker: StartBroker, tmp_path: Path
) -> None:
    before = tables_disk.flushes
    tables_disk.hold()
    asked = [post(wire, "New", b"1")]
    await until(lambda: tables_disk.flushes > before)
    asked.append(post_delete(wire, "New"))
    await until(lambda: broker.topics.get("New") is None)
    asked.append(post(wire, "New", b"2"))
    asked.append(post_delete(wire, "New"))
    await until(lambda: broker.topics.get("New") is None)
    asked.append(post(wire, "New", b"3"))
    await handled(wire)
    assert not wire.answers
    tables_disk.go_on()
    for one in asked:
        assert (await wire.answer(one.opaque)).code == 0
    assert await bodies(wire, "New") == [b"1", b"2", b"3"]
    copy_store(tmp_path / "store", tmp_path / "copy" / "store")
    killed = await start_broker(store_path_root_dir=str(tmp_path / "copy" / "store"))
    assert killed.store.queue("New", 0).max_offset() == 3


async def test_sends_that_wait_for_a_topic_that_cannot_be_written_are_refused_and_not_stored(
    tables_disk: HeldDisk, broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    tables_disk.hold()
    sends = [post(wire, "New", b"%d" % number) for number in range(3)]
    await handled(wire)
    end = broker.store.max_physical_offset
    tables_disk.flush_error = errno.EIO
    tables_disk.go_on()
    for send in sends:
        assert (await wire.answer(send.opaque)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.store.max_physical_offset == end
    tables_disk.flush_error = None
    clock.advance(TABLE_RETRY_SECONDS)
    await until(lambda: not broker.topics.cannot_be_saved)
    assert (await wire.send("New", b"later")).code == 0
    assert await bodies(wire, "New") == [b"later"]


async def test_sends_are_refused_while_the_postponed_ones_are_too_large(
    tables_disk: HeldDisk, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.remoting.server, "MAX_POSTPONED_BYTES", 100_000)
    for topic in ("New", "Next"):
        tables_disk.hold()
        sends = [post(wire, topic, b"", properties=f"a\x01{'p' * 30_000}") for _ in range(3)]
        answers = [await wire.answer(post(wire, topic, b"x" * 30_000).opaque) for _ in range(2)]
        assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_BUSY}
        assert (await wire.send("Old", b"x" * 30_000)).code == 0, "others are served"
        tables_disk.go_on()
        for send in sends:
            assert (await wire.answer(send.opaque)).code == 0


async def test_a_connection_that_closes_meanwhile_loses_answers_and_nothing_else(
    tables_disk: HeldDisk, broker: Broker, wire: Wire, connect_to: ConnectTo
) -> None:
    tables_disk.hold()
    gone = await connect_to(broker)
    post(gone, "New", b"1")
    await handled(gone)
    await gone.close()
    await until(lambda: len(broker.server.connections) == 1)
    second = post(wire, "New", b"2")
    await handled(wire)
    tables_disk.go_on()
    assert (await wire.answer(second.opaque)).code == 0
    assert await bodies(wire, "New") == [b"1", b"2"]
    assert not broker.server._postponed_bytes


async def test_a_broker_that_stops_answers_sends_that_wait_once(
    tables_disk: HeldDisk, broker: Broker, wire: Wire, start_broker: StartBroker
) -> None:
    tables_disk.hold()
    sends = [post(wire, "New", b"1"), post(wire, "New", b"2")]
    created = post_create(wire, "Other")
    await handled(wire)
    stopping = asyncio.create_task(broker.stop())
    await real_time(0.05)
    assert not stopping.done()
    tables_disk.go_on()
    await wire.read_to_the_end()
    await stopping
    assert wire.answers.pop(created.opaque).code == 0
    codes = [wire.answers.pop(send.opaque).code for send in sends]
    assert not wire.answers
    assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    again = await start_broker()
    assert again.topics.get("Other") is not None
    assert again.store.queue("New", 0).max_offset() == 0


async def test_a_message_that_is_handed_back_waits_for_its_topic_and_holds_up_nobody(
    tables_disk: HeldDisk, broker: Broker, wire: Wire
) -> None:
    group = encode_body(SubscriptionGroupConfig(group_name="g"))
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)).code == 0
    failed = int((await wire.send("Old", b"failed")).ext_fields["msgId"][16:], 16)
    header = ConsumerSendMsgBackRequestHeader(offset=failed, group="g", delay_level=-1)
    tables_disk.hold()
    back = wire.command(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    wire.post(back)
    assert (await wire.send("Old")).code == 0
    assert back.opaque not in wire.answers
    tables_disk.go_on()
    assert (await wire.answer(back.opaque)).code == 0
    assert await bodies(wire, "%DLQ%g") == [b"failed"]


async def test_a_topic_is_not_written_anew_without_the_deletion_of_its_earlier_life(
    tables_disk: HeldDisk,
    broker: Broker,
    wire: Wire,
    start_broker: StartBroker,
    connect_to: ConnectTo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = JournaledFile.append

    def fail(file: JournaledFile, changes: Iterable[bytes]) -> bool:
        if file.path.name == DELETED_TOPICS:
            raise OSError(errno.EIO, "the deletions cannot be written")
        return append(file, changes)

    monkeypatch.setattr(JournaledFile, "append", fail)
    tables_disk.hold()
    asked = [post_delete(wire, "Old")]
    await until(lambda: broker.topics.get("Old") is None)
    asked.append(post(wire, "Old", b"new"))
    await handled(wire)
    tables_disk.go_on()
    codes = [(await wire.answer(one.opaque)).code for one in asked]
    assert codes == [ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE]
    monkeypatch.undo()
    copy_store(tmp_path / "store", tmp_path / "copy" / "store")
    killed = await connect_to(await start_broker(store_path_root_dir=str(tmp_path / "copy" / "store")))
    assert await bodies(killed, "Old") == [b"old"], "nobody was told that it is deleted"
    assert (await wire.answer(post_delete(wire, "Old").opaque)).code == 0
    assert (await wire.send("Old", b"new")).code == 0
    assert await bodies(wire, "Old") == [b"new"]
