"""Sends with a priority: the queue is the level, whatever the producer asked for; bad priorities are stored as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.wire import Wire, records, send_header

from cometmq.broker.controller import Broker
from cometmq.broker.turn.inner_message import read_properties
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.names import TRANS_HALF_TOPIC
from cometmq.message.properties import PRIORITY, read_priority
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import EndTransactionRequestHeader
from cometmq.testing import VirtualClock

QUEUES = 4


@pytest.fixture(autouse=True)
def topic(broker: Broker) -> None:
    broker.topics.put(topic_of(QUEUES))


def topic_of(queues: int, **fields: object) -> TopicConfig:
    values = {"topic_name": "Levels", "read_queue_nums": queues, "write_queue_nums": queues} | fields
    return TopicConfig(attributes={"message.type": "PRIORITY"}, **values)  # type: ignore[arg-type]


def with_priority(value: object, *more: str) -> str:
    return "\x02".join([f"{PRIORITY}\x01{value}", *more])


@pytest.mark.parametrize(
    ("value", "queue_id"),
    [
        *((str(level), level) for level in range(QUEUES)),
        ("+2", 2),
        ("0002", 2),
        ("4", 3),
        ("99", 3),
        (str(2**31 - 1), 3),
        ("-1", 1),
        ("-0", 0),
        (str(2**31), 1),
        ("9" * 5_000, 1),
        ("high", 1),
        ("1.0", 1),
        (" 1", 1),
    ],
)
async def test_the_priority_is_the_queue_and_a_bad_one_leaves_the_queue_as_it_is(
    wire: Wire, value: str, queue_id: int
) -> None:
    answer = await wire.send("Levels", b"x", queue_id=1, properties=with_priority(value, "a\x01b"))
    assert (answer.code, answer.ext_fields["queueId"]) == (0, str(queue_id)), answer
    (record,) = records(await wire.pull("Levels", queue_id=queue_id))
    assert record.properties == {PRIORITY: value, "a": "b", "CLUSTER": "DefaultCluster"}
    assert record.queue_id == queue_id


async def test_every_topic_has_levels_as_in_apache(wire: Wire) -> None:
    for topic in ("Plain", "Levels"):
        answer = await wire.send(topic, b"x", queue_id=0, properties=with_priority(2))
        assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")


async def test_a_priority_between_plain_messages_keeps_the_order_of_the_answers(wire: Wire) -> None:
    """The compiled core takes the others."""
    asked = [with_priority(3) if n % 5 == 4 else f"n\x01{n}" for n in range(50)]
    commands = [
        wire.command(RequestCode.SEND_MESSAGE_V2, send_header("Levels", queue_id=1, properties=properties), b"%d" % n)
        for n, properties in enumerate(asked)
    ]
    wire.writer.write(b"".join(command.encode() for command in commands))
    found = [await wire.answer(command.opaque) for command in commands]
    assert [int(answer.ext_fields["queueId"]) for answer in found] == [3 if n % 5 == 4 else 1 for n in range(50)]
    assert [int(a.ext_fields["queueOffset"]) for a in found if a.ext_fields["queueId"] == "3"] == list(range(10))
    pulled = records(await wire.pull("Levels", queue_id=3, max_msg_nums=50))
    assert [record.body for record in pulled] == [b"%d" % n for n in range(4, 50, 5)]


async def test_a_message_group_wins(wire: Wire) -> None:
    answer = await wire.send("Levels", b"x", queue_id=1, properties=with_priority(3, "__SHARDINGKEY\x01g", "a\x01b"))
    assert answer.ext_fields["queueId"] == "1"
    (record,) = records(await wire.pull("Levels", queue_id=1))
    assert record.properties == {"__SHARDINGKEY": "g", "a": "b", "CLUSTER": "DefaultCluster"}


@pytest.mark.parametrize("delay", ["DELAY\x011", "TIMER_DELAY_MS\x011500", "TIMER_DELAY_SEC\x011"])
async def test_a_delayed_message_keeps_its_priority(wire: Wire, clock: VirtualClock, delay: str) -> None:
    answer = await wire.send("Levels", b"late", queue_id=0, properties=with_priority(2, delay))
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")
    assert records(await wire.pull("Levels", queue_id=2, sys_flag=0)) == []
    await clock.run_for(3)
    (record,) = records(await wire.pull("Levels", queue_id=2))
    assert (record.body, record.properties[PRIORITY]) == (b"late", "2")


async def test_a_delayed_message_is_urgent_in_fewer_queues_too(wire: Wire, broker: Broker, clock: VirtualClock) -> None:
    await wire.send("Levels", b"late", queue_id=0, properties=with_priority(2, "DELAY\x011"))
    broker.topics.put(topic_of(2))
    await clock.run_for(3)
    (record,) = records(await wire.pull("Levels", queue_id=1))
    assert record.body == b"late"


async def test_a_transactional_message_keeps_its_priority(wire: Wire, clock: VirtualClock) -> None:
    properties = with_priority(3, "TRAN_MSG\x01true", "PGROUP\x01g")
    half = await wire.send("Levels", b"half", queue_id=0, sys_flag=TRANSACTION_PREPARED, properties=properties)
    assert half.code == 0
    (stored,) = records(await wire.pull(TRANS_HALF_TOPIC, queue_id=0))
    assert stored.properties["REAL_QID"] == "3"
    header = EndTransactionRequestHeader(
        producer_group="g",
        tran_state_table_offset=stored.queue_offset,
        commit_log_offset=stored.physical_offset,
        commit_or_rollback=TRANSACTION_COMMIT,
        from_transaction_check=False,
        msg_id="",
        transaction_id=None,
    )
    assert (await wire.call(RequestCode.END_TRANSACTION, header)).code == 0
    (record,) = records(await wire.pull("Levels", queue_id=3))
    assert (record.body, record.properties[PRIORITY]) == (b"half", "3")


async def test_a_batch_stays_in_its_queue_as_in_apache(wire: Wire) -> None:
    body = encode_batch([BatchPiece(0, b"a", with_priority(3)), BatchPiece(0, b"b", with_priority(0))])
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header("Levels", queue_id=2, batch=True), body)
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")
    found = records(await wire.pull("Levels", queue_id=2))
    assert [record.properties[PRIORITY] for record in found] == ["3", "0"]


async def test_a_topic_without_writable_queues_refuses(wire: Wire, broker: Broker) -> None:
    broker.topics.put(topic_of(QUEUES, write_queue_nums=0))
    answer = await wire.send("Levels", b"x", queue_id=1, properties=with_priority(3))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "request queueId[-1] is illegal" in (answer.remark or "")


async def test_a_retry_topic_has_no_levels(wire: Wire) -> None:
    answer = await wire.send("%RETRY%g", b"x", queue_id=0, properties=with_priority(3), reconsume_times=1)
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "0"), answer


@given(st.text(st.sampled_from("+-0123456789٣ a"), max_size=12))
def test_priorities_are_read_as_java_reads_them(text: str) -> None:
    try:
        number = -1 if " " in text else int(text)
    except ValueError:
        number = -1
    expected = number if 0 <= number < 2**31 else -1
    assert read_priority(text) == expected
    assert read_properties(f"{PRIORITY}\x01{text}", "").priority == (expected if text else -1)
