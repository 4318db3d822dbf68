"""A disk whose flush hangs, with SYNC_FLUSH: whatever a request has stored, it is answered in time, once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.delayed import send_later
from tests.broker.send.replying import beat, post_reply, pushed, take
from tests.broker.transacting import COMMIT, ROLLBACK, end_header, send_half
from tests.broker.wire import Wire, send_header
from tests.helpers.contents import bodies, stored
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.message.names import TRANS_OP_HALF_TOPIC
from cometmq.remoting.admin_headers import ResumeCheckHalfMessageRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader, RecallMessageRequestHeader
from cometmq.store.disk import Disk
from cometmq.testing import VirtualClock

TIMEOUT_S = 3.0
LATE = ResponseCode.FLUSH_DISK_TIMEOUT


class HangingDisk(Disk):
    """Its flushes hang from ``hang`` to ``go_on``."""

    def __init__(self) -> None:
        self._works = threading.Event()
        self._works.set()

    def hang(self) -> None:
        self._works.clear()

    def go_on(self) -> None:
        self._works.set()

    def flush(self, fd: int) -> None:
        self._works.wait()
        super().flush(fd)


@pytest.fixture
def disk() -> HangingDisk:
    return HangingDisk()


@pytest.fixture
async def broker(tmp_path: Path, clock: VirtualClock, disk: HangingDisk) -> AsyncIterator[Broker]:
    config = small_config(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=int(TIMEOUT_S * 1000))
    broker = Broker(config, clock=clock, disk=disk)
    await broker.start()
    yield broker
    disk.go_on()
    await broker.stop()


async def until_put(broker: Broker, before: int) -> None:
    await until(lambda: broker.store.max_physical_offset > before)


async def late_answers(
    wire: Wire, broker: Broker, clock: VirtualClock, commands: list[RemotingCommand]
) -> list[tuple[int, str]]:
    """Post requests, let the time pass; the codes of their answers."""
    before = broker.store.max_physical_offset
    for command in commands:
        wire.post(command)
    await until_put(broker, before)
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    clock.advance(TIMEOUT_S - 0.1)
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert not wire.answers, "answered before the time was over"
    clock.advance(0.2)
    answers = [await wire.answer(command.opaque, 5) for command in commands]
    return [(answer.code, answer.remark or "") for answer in answers]


async def test_what_the_broker_stores_for_a_request_is_answered_as_a_send_is(
    broker: Broker, connect_to: ConnectTo, clock: VirtualClock, disk: HangingDisk
) -> None:
    wire = await connect_to(broker)
    failed = int((await wire.send("T", b"failed")).ext_fields["msgId"][16:], 16)
    committed, rolled_back = await send_half(wire, "a", b"committed"), await send_half(wire, "b")
    handle = await send_later(wire, b"later", 3600)
    back = ConsumerSendMsgBackRequestHeader(
        offset=failed, group="workers", delay_level=-1, origin_msg_id="x", origin_topic="T"
    )
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0, "makes the topics that it needs"
    disk.hang()
    recall = RecallMessageRequestHeader(topic="Later", recall_handle=handle, producer_group="p")
    kinds = {
        "send": wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T")),
        "hand-back": wire.command(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        "commit": wire.command(RequestCode.END_TRANSACTION, end_header(committed, COMMIT)),
        "roll back": wire.command(RequestCode.END_TRANSACTION, end_header(rolled_back, ROLLBACK)),
        "commit again": wire.command(RequestCode.END_TRANSACTION, end_header(committed, COMMIT)),
        "recall": wire.command(RequestCode.RECALL_MESSAGE, recall),
    }
    answers = await late_answers(wire, broker, clock, list(kinds.values()))
    assert {kind: code for kind, (code, _) in zip(kinds, answers, strict=True)} == dict.fromkeys(kinds, LATE)
    disk.go_on()
    await until(lambda: broker.transactions.ends.committed == 1)
    assert broker.transactions.open.count == 0, "the table hears of the end when the disk has it"
    assert (await wire.call(RequestCode.END_TRANSACTION, end_header(committed, COMMIT))).code == ResponseCode.SUCCESS
    assert not wire.answers, "nobody was answered twice"
    assert bodies(broker, "%DLQ%workers") == [b"failed", b"failed"]
    assert bodies(broker, "TxTopic") == [b"committed"]
    assert len(stored(broker, TRANS_OP_HALF_TOPIC)) == 2
    await clock.skip(3601)
    assert bodies(broker, "Later") == []


async def test_a_reply_that_arrived_is_answered_though_its_record_waits_for_the_disk(
    broker: Broker, connect_to: ConnectTo, clock: VirtualClock, disk: HangingDisk
) -> None:
    asker, wire = await connect_to(broker), await connect_to(broker)
    await beat(asker)
    disk.hang()
    before = broker.store.max_physical_offset
    opaque = post_reply(wire)
    take(asker, await pushed(asker))
    await until_put(broker, before)
    clock.advance(TIMEOUT_S)
    assert (await wire.answer(opaque, 5)).code == LATE
    nobody = post_reply(wire, properties={"REPLY_TO_CLIENT": "nobody"})
    before = broker.store.max_physical_offset
    await until_put(broker, before)
    clock.advance(TIMEOUT_S)
    assert (await wire.answer(nobody, 5)).code == ResponseCode.SYSTEM_ERROR, "that it did not arrive counts more"


async def test_a_transaction_that_is_resumed_is_answered_in_time(
    broker: Broker, connect_to: ConnectTo, clock: VirtualClock, disk: HangingDisk
) -> None:
    wire = await connect_to(broker)
    await send_half(wire, "a")
    half = stored(broker, "RMQ_SYS_TRANS_HALF_TOPIC")[0]
    disk.hang()
    header = ResumeCheckHalfMessageRequestHeader(half.msg_id)
    commands = [wire.command(RequestCode.RESUME_CHECK_HALF_MESSAGE, header) for _ in range(2)]
    answers = await late_answers(wire, broker, clock, commands)
    assert [code for code, _ in answers] == [LATE, LATE]


async def test_without_sync_flush_nothing_waits_for_the_disk(
    tmp_path: Path, connect_to: ConnectTo, clock: VirtualClock, disk: HangingDisk
) -> None:
    broker = Broker(small_config(tmp_path / "other"), clock=clock, disk=disk)
    await broker.start()
    wire = await connect_to(broker)
    half = await send_half(wire, "a")
    disk.hang()
    assert (await wire.call(RequestCode.END_TRANSACTION, end_header(half, COMMIT))).code == ResponseCode.SUCCESS
    disk.go_on()
    await broker.stop()
