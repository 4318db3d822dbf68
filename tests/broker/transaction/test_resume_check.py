"""RESUME_CHECK_HALF_MESSAGE (323): a transaction that was given up is asked about again, and delivered once at most."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.disks import FailingDisk
from tests.broker.transacting import (
    COMMIT,
    ROLLBACK,
    TOPIC,
    Half,
    delivered,
    end,
    end_header,
    join,
    next_checks,
    round_of_checks,
    send_half,
)
from tests.broker.wire import Wire
from tests.helpers.contents import stored

import cometmq.broker.transaction.check
from cometmq.broker.controller import Broker
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from cometmq.message.record import StoredRecord
from cometmq.remoting.admin_headers import ResumeCheckHalfMessageRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import VirtualClock

ONE_CHECK = {"transaction_check_max": 1, "transaction_time_out": 0, "transaction_check_interval": 86_400_000}


async def resume(wire: Wire, msg_id: str | None) -> RemotingCommand:
    header = ResumeCheckHalfMessageRequestHeader(msg_id)
    return await wire.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)


async def give_up(broker: Broker, wire: Wire, key: str = "K1", body: bytes = b"paid") -> StoredRecord:
    await join(wire)
    await send_half(wire, key, body)
    await rounds_until_given_up(broker, wire)
    return stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)[-1]


async def rounds_until_given_up(broker: Broker, wire: Wire) -> None:
    before = broker.transactions.checks.given_up
    while broker.transactions.checks.given_up == before:
        await round_of_checks(broker)
    await next_checks(wire)


async def asked(broker: Broker, wire: Wire) -> Half:
    await round_of_checks(broker)
    ((half, _),) = await next_checks(wire)
    return half


async def test_what_was_given_up_is_asked_about_and_committed(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(**ONE_CHECK)
    wire = await connect_to(broker)
    kept = await give_up(broker, wire)
    assert broker.transactions.open.count == 0
    answer = await resume(wire, kept.msg_id)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    half = stored(broker, TRANS_HALF_TOPIC)[-1]
    assert half.properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in half.properties
    assert delivered(broker) == []
    assert (await end(wire, await asked(broker, wire), COMMIT)).code == 0
    assert delivered(broker) == [b"paid"]
    assert broker.transactions.open.count == 0


async def test_it_may_be_given_up_and_resumed_again(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(**ONE_CHECK)
    wire = await connect_to(broker)
    first = await give_up(broker, wire)
    await resume(wire, first.msg_id)
    await rounds_until_given_up(broker, wire)
    second = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)[-1]
    again = await resume(wire, first.msg_id)
    assert again.code == ResponseCode.SYSTEM_ERROR
    assert "resumed before" in (again.remark or "")
    assert (await resume(wire, second.msg_id)).code == 0
    await end(wire, await asked(broker, wire), COMMIT)
    assert delivered(broker) == [b"paid"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("how", [COMMIT, ROLLBACK])
async def test_resuming_twice_begins_no_second_transaction(
    start_broker: StartBroker, connect_to: ConnectTo, restarts: bool, how: int
) -> None:
    broker = await start_broker(**ONE_CHECK)
    wire = await connect_to(broker)
    kept = await give_up(broker, wire)
    commands = [
        wire.command(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader(kept.msg_id))
        for _ in range(3)
    ]
    for command in commands:  # in one turn
        wire.post(command)
    assert [(await wire.answer(command.opaque)).code for command in commands] == [0, 0, 0]
    assert broker.transactions.open.count == 1
    if restarts:
        await broker.stop()
        broker = await start_broker(**ONE_CHECK)
        wire = await connect_to(broker)
        await join(wire)
    assert (await resume(wire, kept.msg_id)).code == 0, "it is open: nothing is to be done"
    assert broker.transactions.open.count == 1
    await end(wire, await asked(broker, wire), how)
    over = await resume(wire, kept.msg_id)
    assert over.code == ResponseCode.SYSTEM_ERROR
    assert "has ended" in (over.remark or "")
    assert broker.transactions.open.count == 0
    assert delivered(broker) == ([b"paid"] if how == COMMIT else [])


async def test_an_open_transaction_loses_its_count(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(**(ONE_CHECK | {"transaction_check_max": 3}))
    wire = await connect_to(broker)
    await join(wire)
    await send_half(wire, "K1", b"paid")
    halves = [await asked(broker, wire) for _ in range(3)]
    first = stored(broker, TRANS_HALF_TOPIC)[0]
    assert (await resume(wire, first.msg_id)).code == 0
    assert broker.transactions.open.count == 1
    halves += [await asked(broker, wire) for _ in range(3)]
    assert broker.transactions.checks.given_up == 0
    for half in halves:
        assert (await end(wire, half, COMMIT)).code == 0
    assert delivered(broker) == [b"paid"]
    over = await resume(wire, first.msg_id)
    assert over.code == ResponseCode.SYSTEM_ERROR
    assert "the transaction has already ended" in (over.remark or "")


async def test_a_resume_that_meets_an_end_changes_nothing(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(**ONE_CHECK)
    wire = await connect_to(broker)
    half = await send_half(wire, "K1", b"paid")
    named = stored(broker, TRANS_HALF_TOPIC)[0]
    ending = wire.command(RequestCode.END_TRANSACTION, end_header(half, COMMIT))
    resuming = wire.command(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader(named.msg_id))
    for command in (ending, resuming):
        wire.post(command)
    assert (await wire.answer(ending.opaque)).code == 0
    assert (await wire.answer(resuming.opaque)).code == ResponseCode.SYSTEM_ERROR
    assert delivered(broker) == [b"paid"]
    assert broker.transactions.open.count == 0


async def test_what_is_no_transaction_is_refused(broker: Broker, wire: Wire) -> None:
    await wire.send(TOPIC, b"x")
    (plain,) = stored(broker, TOPIC)
    beyond = plain.msg_id[:-8] + "7FFFFFFF"
    for msg_id in (None, "", "zz", "AB", plain.msg_id, beyond, plain.msg_id[:16] + "F" * 16):
        answer = await resume(wire, msg_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(
            "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
        )
    assert broker.transactions.open.count == 0


async def test_a_given_up_message_in_the_body_of_another_is_none(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    broker = await start_broker(**ONE_CHECK)
    wire = await connect_to(broker)
    kept = await give_up(broker, wire)
    unit = broker.store.queue(TRANS_CHECK_MAX_TIME_TOPIC, 0).unit(0)
    assert unit is not None
    record = broker.store.record_at(unit[0], unit[1])
    assert record is not None
    await wire.send(TOPIC, record)
    (carrier,) = stored(broker, TOPIC)
    data = broker.store.record_at(carrier.physical_offset)
    assert data is not None
    inside = carrier.physical_offset + bytes(data).index(bytes(record))
    answer = await resume(wire, f"{kept.msg_id[:16]}{inside:016X}")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.transactions.open.count == 0


async def test_without_a_unique_key_nothing_tells_whether_it_was_resumed(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    broker = await start_broker(**ONE_CHECK)
    wire = await connect_to(broker)
    await wire.send(TOPIC, b"x", properties="TRAN_MSG\x01true\x02PGROUP\x01TxProducers")
    await rounds_until_given_up(broker, wire)
    (kept,) = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)
    answer = await resume(wire, kept.msg_id)
    assert (answer.code, "UNIQ_KEY" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_too_many_open_transactions(
    start_broker: StartBroker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(**ONE_CHECK)
    wire = await connect_to(broker)
    kept = await give_up(broker, wire)
    monkeypatch.setattr(cometmq.broker.transaction.check, "MAX_OPEN_TRANSACTIONS", 0)
    assert (await resume(wire, kept.msg_id)).code == ResponseCode.SYSTEM_BUSY


async def test_what_a_full_disk_refuses_can_be_resumed_later(
    tmp_path: Path, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(tmp_path, **ONE_CHECK), clock=clock, disk=disk)
    await broker.start()
    wire = await connect_to(broker)
    kept = await give_up(broker, wire)
    await send_half(wire, "K2", b"open")
    open_half = stored(broker, TRANS_HALF_TOPIC)[-1]
    disk.write_error = errno.ENOSPC
    for record in (kept, open_half):
        assert (await resume(wire, record.msg_id)).code != 0
    disk.write_error = None
    await clock.run_for(5)
    for record in (kept, open_half):
        assert (await resume(wire, record.msg_id)).code == 0
    assert broker.transactions.open.count == 2
    await broker.stop()
