"""Transactions outlive their broker: polite stops, crashes between any two records, and stores of Apache brokers."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import msgspec
import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.snapshots import unpacked
from tests.broker.transacting import (
    COMMIT,
    ROLLBACK,
    TOPIC,
    Half,
    delivered,
    end,
    half_properties,
    join,
    next_checks,
    round_of_checks,
    send_half,
)
from tests.broker.wire import Wire
from tests.helpers.contents import stored

from cometmq.broker.controller import Broker
from cometmq.broker.transaction.half_message import HALF_QUEUE, op_message, to_committed, to_copy
from cometmq.broker.turn.inner_message import InnerMessage, inner_message
from cometmq.message.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from cometmq.message.properties import UNIQ_KEY
from cometmq.message.sysflag import PULL_COMMIT, PULL_SUBSCRIPTION
from cometmq.remoting.admin_headers import CloneGroupOffsetRequestHeader
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import UpdateConsumerOffsetRequestHeader
from cometmq.testing import VirtualClock

HOST = bytes(8)


async def put(broker: Broker, *messages: InnerMessage) -> None:
    """Store messages as a broker that crashed left them."""
    for message in messages:
        broker.turn.put_inner(message, lambda _: None)
    broker.turn.end()


async def test_open_transactions_survive_a_restart(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    halves = [await send_half(wire, f"K{number}", b"%d" % number) for number in range(6)]
    await end(wire, halves[1], COMMIT)
    await end(wire, halves[3], ROLLBACK)
    await broker.stop()
    broker = await start_broker()
    wire = await connect_to(broker)
    assert broker.transactions.open.count == 4
    for number in (5, 1, 3, 0):
        await end(wire, halves[number], COMMIT)
    await end(wire, halves[2], ROLLBACK)
    assert delivered(broker) == [b"1", b"5", b"0"]
    await join(wire)
    clock.advance(10)
    await round_of_checks(broker)
    ((asked, _),) = await next_checks(wire)
    assert asked.key == "K4"
    await broker.stop()
    broker = await start_broker()
    wire = await connect_to(broker)
    await end(wire, halves[4], COMMIT)
    assert delivered(broker) == [b"1", b"5", b"0", b"4"]


async def test_checks_are_counted_over_restarts(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    times = []
    half: Half | None = None
    for _ in range(3):
        broker = await start_broker()
        wire = await connect_to(broker)
        await join(wire)
        half = half or await send_half(wire, "K1", b"x")
        clock.advance(10)
        await round_of_checks(broker)
        ((_, message),) = await next_checks(wire)
        times.append(message.properties["TRANSACTION_CHECK_TIMES"])
        await broker.stop()
    assert times == ["1", "2", "3"]
    broker = await start_broker()
    wire = await connect_to(broker)
    assert half is not None
    await end(wire, half, COMMIT)
    assert delivered(broker) == [b"x"]


async def test_a_producer_whose_clock_is_years_behind_is_asked_all_the_same(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    for times in ("1", "2", "3"):
        broker = await start_broker()
        wire = await connect_to(broker)
        await join(wire)
        if times == "1":
            await wire.send(TOPIC, b"x", properties=half_properties("K1"), born_timestamp=1)
        clock.advance(10)
        await round_of_checks(broker)
        ((_, message),) = await next_checks(wire)
        assert message.properties["TRANSACTION_CHECK_TIMES"] == times
        await broker.stop()


async def test_a_start_reads_only_what_is_not_done_with(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    for number in range(20):
        await end(wire, await send_half(wire, f"K{number}"), COMMIT)
    last = await send_half(wire, "open")
    await end(wire, await send_half(wire, "after"), ROLLBACK)
    for _ in range(4):
        await flushed(broker)
        await clock.run_for(5.1)
    assert broker.offsets.query(TRANSACTION_GROUP, TRANS_HALF_TOPIC, HALF_QUEUE) == 20
    ops = broker.offsets.query(TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, HALF_QUEUE)
    assert 0 <= ops <= 20
    await end(wire, last, COMMIT)
    for _ in range(4):
        await flushed(broker)
        await clock.run_for(5.1)
    assert broker.offsets.query(TRANSACTION_GROUP, TRANS_HALF_TOPIC, HALF_QUEUE) == 22
    assert broker.offsets.query(TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, HALF_QUEUE) == 22
    await broker.stop()
    broker = await start_broker()
    assert broker.transactions.open.count == 0


@pytest.mark.parametrize("way", ["commit", "pull", "clone"])
async def test_clients_do_not_say_how_far_transactions_are(
    start_broker: StartBroker, connect_to: ConnectTo, way: str
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    half = await send_half(wire, "K1", b"open")
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset_of("Others", TRANS_HALF_TOPIC))
    if way == "commit":
        await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset_of(TRANSACTION_GROUP, TRANS_HALF_TOPIC))
    elif way == "pull":
        flags = PULL_COMMIT | PULL_SUBSCRIPTION
        await wire.pull(TRANS_HALF_TOPIC, consumer_group=TRANSACTION_GROUP, commit_offset=1, sys_flag=flags)
    else:
        header = CloneGroupOffsetRequestHeader(
            src_group="Others", dest_group=TRANSACTION_GROUP, topic=TRANS_HALF_TOPIC, offline=False
        )
        await wire.call(RequestCode.CLONE_GROUP_OFFSET, header)
    await first.stop()
    second = await start_broker()
    assert second.transactions.open.count == 1
    assert (await end(await connect_to(second), half, COMMIT)).code == 0
    assert delivered(second) == [b"open"]


def offset_of(group: str, topic: str) -> UpdateConsumerOffsetRequestHeader:
    return UpdateConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=0, commit_offset=1)


async def flushed(broker: Broker) -> None:
    """Wait until the disk has everything stored so far."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broker.store.when_flushed(broker.store.max_physical_offset, lambda _: done.set_result(None))
    await done


async def test_progress_is_not_noted_before_the_log_is_flushed(broker: Broker, wire: Wire) -> None:
    await end(wire, await send_half(wire, "K1"), COMMIT)
    flushed_to = broker.store.flushed_position
    assert flushed_to < broker.store.max_physical_offset
    for _ in range(3):
        broker.transactions.note_progress()
    assert broker.offsets.query(TRANSACTION_GROUP, TRANS_HALF_TOPIC, HALF_QUEUE) < 1
    await flushed(broker)
    broker.transactions.note_progress()
    assert broker.offsets.query(TRANSACTION_GROUP, TRANS_HALF_TOPIC, HALF_QUEUE) == 1


async def test_offsets_past_the_end_are_not_believed(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    half = await send_half(wire, "K1", b"x")
    for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
        broker.offsets.set_offset(TRANSACTION_GROUP, topic, HALF_QUEUE, 1_000)
    await broker.stop()
    broker = await start_broker()
    wire = await connect_to(broker)
    later = await send_half(wire, "K2", b"y")
    await broker.stop()
    broker = await start_broker()
    wire = await connect_to(broker)
    await end(wire, later, COMMIT)
    assert delivered(broker) == [b"y"]
    assert (await end(wire, half, COMMIT)).code == 0


# --- what a crash leaves half-done -----------------------------------------------------------
async def test_a_committed_message_without_its_op_is_not_committed_again(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    halves = [await send_half(wire, f"K{number}", b"%d" % number) for number in range(3)]
    await put(broker, to_committed(stored(broker, TRANS_HALF_TOPIC)[1], 0))
    await broker.stop()
    broker = await start_broker()
    wire = await connect_to(broker)
    assert broker.transactions.open.offsets() == [0, 2]
    for half in halves:
        assert (await end(wire, half, COMMIT)).code == 0
    assert delivered(broker) == [b"1", b"0", b"2"]
    assert sorted(op.body for op in stored(broker, TRANS_OP_HALF_TOPIC)) == [b"0", b"1", b"2"]


async def test_a_message_that_says_it_was_committed_ends_no_transaction(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    half = await send_half(wire, "K1", b"x")
    assert half.log_offset == 0, "where a message without a half message points to"
    await wire.send(TOPIC, b"forged", sys_flag=COMMIT, properties="UNIQ_KEY\x01K1")
    await broker.stop()
    broker = await start_broker()
    await end(await connect_to(broker), half, COMMIT)
    assert delivered(broker) == [b"forged", b"x"]


async def test_a_copy_without_the_op_of_what_it_replaces_stands_alone(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    half = await send_half(wire, "K1", b"x")
    await put(broker, to_copy(stored(broker, TRANS_HALF_TOPIC)[0], 0, 1))
    await put(broker, to_copy(stored(broker, TRANS_HALF_TOPIC)[1], 0, 2))
    await broker.stop()
    broker = await start_broker()
    assert broker.transactions.open.offsets() == [2]
    wire = await connect_to(broker)
    for record in stored(broker, TRANS_HALF_TOPIC):
        await end(wire, Half("K1", record.queue_offset, record.physical_offset), COMMIT)
    await end(wire, half, COMMIT)
    assert delivered(broker) == [b"x"]
    await broker.stop()
    broker = await start_broker()
    assert broker.transactions.open.count == 0


async def test_joined_ops_of_later_brokers_are_read(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    for number in range(5):
        await send_half(wire, f"K{number}")
    joined = msgspec.structs.replace(op_message(0, HOST, 0), body=b"0,2,4,")
    await put(broker, joined, msgspec.structs.replace(joined, body=b"x,-1,99999999999999999999"))
    await broker.stop()
    broker = await start_broker()
    assert broker.transactions.open.offsets() == [1, 3]


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_copy_of_apache_that_has_ended_ends_what_it_replaced(
    start_broker: StartBroker, connect_to: ConnectTo, copies: int
) -> None:
    """Apache writes no op for what a check puts back, and its offsets may be old after a crash."""
    broker = await start_broker()
    wire = await connect_to(broker)
    half = await send_half(wire, "K1", b"x")
    other = await send_half(wire, "K2", b"y")
    for times in range(1, copies + 1):
        first = stored(broker, TRANS_HALF_TOPIC)[0]
        text = f"{first.properties_text}\x02TRANSACTION_CHECK_TIMES\x01{times}"
        await put(broker, msgspec.structs.replace(inner_message(first), properties=text))
    last = stored(broker, TRANS_HALF_TOPIC)[-1]
    await put(broker, to_committed(last, 0), op_message(last.queue_offset, HOST, 0))
    await broker.stop()
    broker = await start_broker()
    assert broker.transactions.open.offsets() == [other.queue_offset]
    await end(await connect_to(broker), half, COMMIT)
    assert delivered(broker) == [b"x"]


# --- stores of Apache brokers ----------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "group", "topic", "halves"),
    [("clean", "GoldTxProducer", "GoldTx", []), ("killed", "KillTxProducer", "KillTx", [26, 27, 28])],
)
async def test_open_transactions_of_a_real_broker(
    golden: Path, tmp_path: Path, connect_to: ConnectTo, name: str, group: str, topic: str, halves: list[int]
) -> None:
    """``killed`` ends between copies and the offsets that say so: 26 to 28 are copies of 23 to 25."""
    packed = golden / "stores" / name / "store.tar.gz"
    config = unpacked(packed, tmp_path, transaction_check_interval=86_400_000)
    keys = keys_of_halves(golden / "stores" / name / "manifest.jsonl.gz")
    broker = Broker(config)
    await broker.start()
    try:
        assert broker.transactions.open.offsets() == halves
        before = delivered_in(broker, topic)
        wire = await connect_to(broker)
        if halves:
            replaced = stored(broker, TRANS_HALF_TOPIC)[23]
            for _ in range(2):
                half = Half(keys[23], 23, replaced.physical_offset)
                assert (await end(wire, half, COMMIT, group)).code == 0
        await join(wire, group)
        await round_of_checks(broker)
        asked = await next_checks(wire)
        assert [half.key for half, _ in asked] == [keys[offset] for offset in halves[1:]]
        for half, message in asked:
            assert message.topic == topic
            assert message.properties["TRANSACTION_CHECK_TIMES"] == "2"
            assert (await end(wire, half, COMMIT, group)).code == 0
        assert len(delivered_in(broker, topic)) - len(before) == len(halves)
        assert broker.transactions.open.count == 0
    finally:
        await broker.stop()


def delivered_in(broker: Broker, topic: str) -> list[bytes]:
    queues = broker.store.queues().get(topic, {})
    return [record.body for queue_id in queues for record in stored(broker, topic, queue_id)]


def keys_of_halves(manifest: Path) -> dict[int, str]:
    """Half queue offset → unique key, by the truth beside a golden store."""
    with gzip.open(manifest, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    return {
        entry["queueOffset"]: entry["properties"][UNIQ_KEY]
        for entry in entries
        if entry["kind"] == "message" and entry["topic"] == TRANS_HALF_TOPIC
    }
