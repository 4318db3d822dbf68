"""Transactions over the wire: half messages, their ends, what is stored, who is refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.transacting import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    Half,
    delivered,
    end,
    end_header,
    end_oneway,
    half_properties,
    send_half,
)
from tests.broker.wire import Connect, Wire, records
from tests.helpers.contents import stored

import cometmq.broker.transaction.half_message
from cometmq.broker.controller import Broker
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from cometmq.message.record import encode_record
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.frame import ROCKETMQ

_RECORD_HEAD_BYTES = 88
"""The bytes before the body of a record with IPv4 hosts."""


# --- half messages ---------------------------------------------------------------------------
async def test_a_half_message_is_not_delivered(broker: Broker, wire: Wire) -> None:
    half = await send_half(wire, "K1", b"wait", KEYS="order-1", TAGS="TagA")
    assert half.queue_offset == 0
    assert delivered(broker) == []
    (record,) = stored(broker, TRANS_HALF_TOPIC)
    assert record.physical_offset == half.log_offset
    assert record.sys_flag & TRANSACTION_MASK == 0
    assert record.properties == {
        "TRAN_MSG": "true",
        "PGROUP": GROUP,
        "UNIQ_KEY": "K1",
        "WAIT": "true",
        "KEYS": "order-1",
        "TAGS": "TagA",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": TOPIC,
        "REAL_QID": "0",
    }


async def test_the_answer_names_the_half_message_and_the_queue_sent_to(broker: Broker, wire: Wire) -> None:
    await send_half(wire, "K1")
    answer = await wire.send(TOPIC, queue_id=3, properties=half_properties("K2"))
    assert answer.ext_fields["queueOffset"] == "1"
    assert answer.ext_fields["queueId"] == "3"


async def test_the_prepared_bit_of_a_client_does_not_hide_its_half_message(broker: Broker, wire: Wire) -> None:
    answer = await wire.send(TOPIC, properties=half_properties("K"), sys_flag=TRANSACTION_PREPARED)
    assert answer.ext_fields["queueOffset"] == "0"
    assert len(stored(broker, TRANS_HALF_TOPIC)) == 1


@pytest.mark.parametrize("delay", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_a_delay_means_nothing_for_a_half_message(broker: Broker, wire: Wire, delay: str) -> None:
    half = await send_half(wire, "K", b"now", **{delay: "3"})
    await end(wire, half, COMMIT)
    assert delivered(broker) == [b"now"]
    assert delay not in stored(broker, TOPIC)[0].properties


async def test_what_checks_go_by_cannot_be_forged(broker: Broker, wire: Wire) -> None:
    first = await send_half(wire, "K1", b"one")
    await send_half(wire, "K2", b"two", TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="99", REAL_TOPIC="X")
    forged = stored(broker, TRANS_HALF_TOPIC)[1].properties
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in forged
    assert "TRANSACTION_CHECK_TIMES" not in forged
    assert forged["REAL_TOPIC"] == TOPIC
    await end(wire, first, COMMIT)
    assert delivered(broker) == [b"one"]


@pytest.mark.parametrize("value", ["TRUE", "True", "true"])
async def test_the_mark_of_half_messages_is_read_as_java_does(broker: Broker, wire: Wire, value: str) -> None:
    await wire.send(TOPIC, properties=f"TRAN_MSG\x01{value}\x02PGROUP\x01{GROUP}\x02")
    assert broker.transactions.open.count == 1


@pytest.mark.parametrize("value", ["false", "1", "yes"])
async def test_other_values_of_the_mark_mean_nothing(broker: Broker, wire: Wire, value: str) -> None:
    await wire.send(TOPIC, b"plain", properties=f"TRAN_MSG\x01{value}\x02PGROUP\x01{GROUP}\x02")
    assert delivered(broker) == [b"plain"]


async def test_a_retried_message_of_a_transaction_is_no_half_message(broker: Broker, wire: Wire) -> None:
    broker.groups.find("G")
    topic = "%RETRY%G"
    assert (await wire.send(topic, b"again", properties=half_properties("K"), reconsume_times=1)).code == 0
    assert [record.body for record in stored(broker, topic)] == [b"again"]


async def test_a_broker_may_reject_transactions(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(reject_transaction_message=True)
    wire = await connect_to(broker)
    answer = await wire.send(TOPIC, properties=half_properties("K"))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"
    assert (await wire.send(TOPIC)).code == 0


async def test_properties_leave_room_for_checks(broker: Broker, wire: Wire) -> None:
    room = MAX_PROPERTIES_BYTES - len(half_properties("K", big=""))
    answer = await wire.send(TOPIC, properties=half_properties("K", big="x" * (room - 100)))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "half message" in (answer.remark or "")
    assert (await send_half(wire, "K", big="x" * (room - 500))).queue_offset == 0


async def test_too_many_open_transactions_are_refused(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.transaction.half_message, "MAX_OPEN_TRANSACTIONS", 2)
    half = await send_half(wire, "K1")
    await send_half(wire, "K2")
    answer = await wire.send(TOPIC, properties=half_properties("K3"))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    await end(wire, half, ROLLBACK)
    await send_half(wire, "K4")


# --- ends ------------------------------------------------------------------------------------
async def test_a_committed_message_is_delivered_as_it_was_sent(broker: Broker, wire: Wire) -> None:
    half = await send_half(wire, "K1", b"money", KEYS="order-1", TAGS="TagA", colour="blue")
    assert (await end(wire, half, COMMIT)).code == 0
    (record,) = records(await wire.pull(TOPIC))
    assert (record.topic, record.queue_id, record.queue_offset) == (TOPIC, 0, 0)
    assert record.body == b"money"
    assert record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    assert record.prepared_transaction_offset == half.log_offset
    assert record.properties == stored(broker, TRANS_HALF_TOPIC)[0].properties
    assert record.born_timestamp == 1_700_000_000_000
    (op,) = stored(broker, TRANS_OP_HALF_TOPIC)
    assert op.body == b"0"
    assert op.properties == {"TAGS": "d", "WAIT": "true"}
    assert len(broker.store.query(TOPIC, "order-1", 10, 0, 1 << 62).records) == 1
    tagged = await wire.pull(TOPIC, subscription="TagA")
    assert len(records(tagged)) == 1


async def test_a_rolled_back_message_is_never_delivered(broker: Broker, wire: Wire) -> None:
    half = await send_half(wire, "K1")
    assert (await end(wire, half, ROLLBACK)).code == 0
    assert delivered(broker) == []
    assert [op.body for op in stored(broker, TRANS_OP_HALF_TOPIC)] == [b"0"]
    assert broker.transactions.open.count == 0


async def test_committed_message_and_op_message_are_one_write(broker: Broker, wire: Wire) -> None:
    half = await send_half(wire, "K1", b"x")
    end_before = broker.store.max_physical_offset
    await end(wire, half, COMMIT)
    (record,) = stored(broker, TOPIC)
    (op,) = stored(broker, TRANS_OP_HALF_TOPIC)
    assert record.physical_offset == end_before
    assert op.physical_offset == record.physical_offset + record.size


async def test_a_waiting_consumer_gets_a_committed_message_at_once(connect: Connect, wire: Wire) -> None:
    await wire.send(TOPIC, b"first")
    consumer = await connect()
    half = await send_half(wire, "K1", b"second")
    pulling = asyncio.create_task(consumer.pull(TOPIC, queue_offset=1, wait_ms=15_000))
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    await end_oneway(wire, half, COMMIT)
    assert [record.body for record in records(await pulling)] == [b"second"]


@pytest.mark.parametrize("how", [UNKNOWN, TRANSACTION_PREPARED, 7, -1])
async def test_an_unknown_end_changes_nothing_and_is_not_answered(broker: Broker, wire: Wire, how: int) -> None:
    half = await send_half(wire, "K1")
    wire.post(wire.command(RequestCode.END_TRANSACTION, end_header(half, how)))
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert not wire.answers
    assert broker.transactions.open.count == 1


async def test_ends_with_binary_headers(broker: Broker, wire: Wire) -> None:
    half = await send_half(wire, "K1", b"x")
    answer = await wire.call(RequestCode.END_TRANSACTION, end_header(half, COMMIT), serialize_type=ROCKETMQ)
    assert answer.code == 0
    assert delivered(broker) == [b"x"]


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
async def test_a_second_end_changes_nothing(broker: Broker, wire: Wire, first: int, second: int) -> None:
    half = await send_half(wire, "K1", b"x")
    await end(wire, half, first)
    log_end = broker.store.max_physical_offset
    assert (await end(wire, half, second)).code == 0
    await end_oneway(wire, half, second)
    assert broker.store.max_physical_offset == log_end
    assert delivered(broker) == ([b"x"] if first == COMMIT else [])


async def test_two_ends_of_one_turn_are_one(broker: Broker, wire: Wire) -> None:
    half = await send_half(wire, "K1", b"x")
    commands = [wire.command(RequestCode.END_TRANSACTION, end_header(half, how)) for how in (COMMIT, ROLLBACK, COMMIT)]
    wire.writer.write(b"".join(command.encode() for command in commands))
    assert [(await wire.answer(command.opaque)).code for command in commands] == [0, 0, 0]
    assert delivered(broker) == [b"x"]
    assert len(stored(broker, TRANS_OP_HALF_TOPIC)) == 1


async def test_thousand_transactions_of_a_burst(broker: Broker, wire: Wire) -> None:
    commands = []
    for number in range(1000):
        command = wire.command(
            RequestCode.END_TRANSACTION,
            end_header(await send_half(wire, f"K{number}", b"%d" % number), COMMIT if number % 2 else ROLLBACK),
        )
        commands.append(command)
    wire.writer.write(b"".join(command.encode() for command in reversed(commands)))
    for command in commands:
        assert (await wire.answer(command.opaque)).code == 0
    assert sorted(map(int, delivered(broker))) == list(range(1, 1000, 2))
    assert broker.transactions.open.count == 0


# --- strangers -------------------------------------------------------------------------------
NOT_FOUND = "Find prepared transaction message failed"


async def refused(wire: Wire, half: Half, group: str = GROUP) -> str | None:
    codes = set()
    remarks = set()
    for how in (COMMIT, ROLLBACK):
        answer = await end(wire, half, how, group)
        codes.add(answer.code)
        remarks.add(answer.remark)
    assert codes == {ResponseCode.SYSTEM_ERROR}
    (remark,) = remarks
    return remark


async def test_strangers_cannot_end_a_transaction(broker: Broker, wire: Wire) -> None:
    half = await send_half(wire, "K1", b"mine")
    log_end = broker.store.max_physical_offset
    assert await refused(wire, half, "Others") == "The producer group wrong"
    wrong = "The transaction state table offset wrong"
    assert await refused(wire, Half("K1", 1, half.log_offset)) == wrong
    assert await refused(wire, Half("K1", -1, half.log_offset)) == wrong
    for log_offset in (half.log_offset + 1, half.log_offset - 1, -1, 1 << 62, log_end):
        assert await refused(wire, Half("K1", 0, log_offset)) == NOT_FOUND
    assert broker.store.max_physical_offset == log_end
    await end(wire, half, COMMIT)
    assert delivered(broker) == [b"mine"]


async def test_a_half_message_in_the_body_of_another_message_ends_nothing(broker: Broker, wire: Wire) -> None:
    half = await send_half(wire, "K1", b"mine")
    place = broker.store.max_physical_offset + _RECORD_HEAD_BYTES
    forged = encode_record(
        topic=TRANS_HALF_TOPIC,
        queue_id=0,
        queue_offset=half.queue_offset,
        physical_offset=place,
        body=b"forged",
        properties_text=half_properties("K1", "Others", REAL_TOPIC=TOPIC, REAL_QID="0"),
        born_timestamp=1,
        born_host=bytes(8),
        store_timestamp=1,
        store_host=bytes(8),
    )
    await wire.send("Others", forged)
    found = broker.store.decoded_at(place)
    assert found is not None
    assert found.body == b"forged"
    assert await refused(wire, Half("K1", half.queue_offset, place), "Others") == NOT_FOUND
    assert delivered(broker) == []
    await end(wire, half, COMMIT)
    assert delivered(broker) == [b"mine"]


async def test_what_is_no_half_message_cannot_be_ended(broker: Broker, wire: Wire) -> None:
    await wire.send(TOPIC, b"plain", properties=f"PGROUP\x01{GROUP}\x02TRAN_MSG\x01no")
    (plain,) = stored(broker, TOPIC)
    assert await refused(wire, Half("K", 0, plain.physical_offset)) == NOT_FOUND
    half = await send_half(wire, "K1", b"x")
    await end(wire, half, COMMIT)
    record = stored(broker, TOPIC)[1]
    assert await refused(wire, Half("K1", record.queue_offset, record.physical_offset)) == NOT_FOUND
    (op,) = stored(broker, TRANS_OP_HALF_TOPIC)
    assert await refused(wire, Half("K1", 0, op.physical_offset)) == NOT_FOUND
    assert len(delivered(broker)) == 2


async def test_a_half_message_without_a_group_belongs_to_nobody(broker: Broker, wire: Wire) -> None:
    answer = await wire.send(TOPIC, properties="TRAN_MSG\x01true")
    half = Half("", 0, int(answer.ext_fields["msgId"][16:], 16))
    assert await refused(wire, half) == "The producer group wrong"
    assert await refused(wire, half, "") == "The producer group wrong"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"producerGroup": GROUP},
        {
            "producerGroup": GROUP,
            "tranStateTableOffset": "x",
            "commitLogOffset": "0",
            "commitOrRollback": "8",
            "msgId": "a",
        },
        {
            "producerGroup": GROUP,
            "tranStateTableOffset": "0",
            "commitLogOffset": str(2**63),
            "commitOrRollback": "8",
            "msgId": "a",
        },
    ],
)
async def test_malformed_ends_are_refused(broker: Broker, wire: Wire, fields: dict[str, str]) -> None:
    await send_half(wire, "K1")
    assert (await wire.call(RequestCode.END_TRANSACTION, ext=fields)).code == ResponseCode.SYSTEM_ERROR
    assert broker.transactions.open.count == 1
