"""Producers are asked about transactions that stay open: who, when, how often, and what happens when nobody knows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.delayed import TurnedBackClock
from tests.broker.transacting import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    checks,
    delivered,
    end,
    end_header,
    end_oneway,
    half_properties,
    join,
    next_checks,
    round_of_checks,
    send_half,
)
from tests.broker.wire import Connect, Wire, records
from tests.helpers.contents import stored

import cometmq.broker.transaction.check
from cometmq.broker.controller import Broker
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import UnregisterClientRequestHeader
from cometmq.remoting.processors import Request
from cometmq.testing import VirtualClock


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    """A broker whose rounds come when the test says so."""
    return await start_broker(transaction_check_interval=86_400_000)


async def test_a_producer_is_asked_about_the_message_that_it_sent(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await join(wire)
    await wire.send(TOPIC, b"other", queue_id=2, properties="k\x01v")
    answer = await wire.send(TOPIC, b"money", queue_id=2, properties=half_properties("K1", KEYS="order-1", a="b"))
    clock.advance(60)
    await round_of_checks(broker)
    ((asked, message),) = await next_checks(wire)
    assert (message.topic, message.queue_id, message.body) == (TOPIC, 2, b"money")
    assert message.msg_id == "K1"
    assert message.properties["a"] == "b"
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert asked.queue_offset == message.queue_offset == 1
    assert asked.log_offset == message.commit_log_offset != int(answer.ext_fields["msgId"][16:], 16)
    assert (await end(wire, asked, COMMIT)).code == 0
    (record,) = [record for record in records(await wire.pull(TOPIC, queue_id=2)) if record.body == b"money"]
    assert record.prepared_transaction_offset == asked.log_offset
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in record.properties
    assert broker.transactions.open.count == 0


async def test_rounds_come_by_themselves(start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock) -> None:
    wire = await connect_to(await start_broker())
    await join(wire)
    await send_half(wire, "K1")
    await clock.run_for(59)
    assert not await next_checks(wire)
    await clock.run_for(2)
    assert len(await next_checks(wire)) == 1
    await join(wire)
    await clock.run_for(60)
    assert len(await next_checks(wire)) == 1


async def test_the_interval_is_that_of_this_moment(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(transaction_check_interval=1_000, transaction_time_out=500)
    clock = broker.clock
    assert isinstance(clock, VirtualClock)
    wire = await connect_to(broker)
    await join(wire)
    await send_half(wire, "K1")
    await clock.run_for(1.1)
    assert len(await next_checks(wire)) == 1
    changed = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, None, b"transactionCheckInterval=5000\n")
    assert changed.code == 0
    await clock.run_for(1)
    assert len(await next_checks(wire)) == 1
    await clock.run_for(4)
    assert not await next_checks(wire)
    await clock.run_for(1)
    assert len(await next_checks(wire)) == 1


async def test_a_young_transaction_is_left_alone(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await join(wire)
    await send_half(wire, "K1")
    clock.advance(5.9)
    await round_of_checks(broker)
    assert not await next_checks(wire)
    clock.advance(0.2)
    await round_of_checks(broker)
    assert len(await next_checks(wire)) == 1


async def test_a_message_may_ask_for_more_time(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await join(wire)
    await send_half(wire, "slow", CHECK_IMMUNITY_TIME_IN_SECONDS="300")
    await send_half(wire, "quick", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    await send_half(wire, "odd", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    await send_half(wire, "superscript", CHECK_IMMUNITY_TIME_IN_SECONDS="²")
    await send_half(wire, "for ever", CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 5_000)
    seen = []
    for seconds in (2, 5, 100, 100, 100):
        clock.advance(seconds)
        await round_of_checks(broker)
        seen.append(sorted(half.key for half, _ in await next_checks(wire)))
        await join(wire)
    soon = ["for ever", "odd", "quick", "superscript"]
    assert seen == [["quick"], soon, soon, soon, [*soon[:3], "slow", "superscript"]]


async def test_after_the_date_was_set_back_a_transaction_is_asked_about_in_time(tmp_path: Path) -> None:
    clock = TurnedBackClock()
    broker = Broker(small_config(tmp_path, transaction_check_interval=86_400_000), clock=clock)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    await join(wire)
    await send_half(wire, "K1")
    clock.set_by_ms = -365 * 86_400_000
    await round_of_checks(broker)
    clock.advance(5.9)
    await round_of_checks(broker)
    assert not await next_checks(wire)
    clock.advance(0.2)
    await round_of_checks(broker)
    assert len(await next_checks(wire)) == 1
    await wire.close()
    await broker.stop()


async def test_a_producer_with_a_slow_clock_is_not_asked_too_early(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await join(wire)
    await wire.send(TOPIC, properties=half_properties("K1"), born_timestamp=clock.now_ms() - 3_600_000)
    await round_of_checks(broker)
    assert not await next_checks(wire)


# --- who is asked ----------------------------------------------------------------------------
async def test_another_producer_of_the_group_answers(broker: Broker, connect: Connect, clock: VirtualClock) -> None:
    gone, other, stranger = await connect(), await connect(), await connect()
    await join(gone)
    await join(other, client_id="other")
    await join(stranger, group="Others")
    await send_half(gone, "K1", b"x")
    await gone.close()
    await other.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    clock.advance(60)
    await round_of_checks(broker)
    ((asked, _),) = await next_checks(other)
    assert not await next_checks(stranger)
    await end_oneway(other, asked, COMMIT)
    assert delivered(broker) == [b"x"]


async def test_producers_of_a_group_are_asked_in_turn(broker: Broker, connect: Connect, clock: VirtualClock) -> None:
    members = [await connect() for _ in range(3)]
    for number, member in enumerate(members):
        await join(member, client_id=f"c{number}")
    for number in range(9):
        await send_half(members[0], f"K{number}")
    clock.advance(60)
    await round_of_checks(broker)
    assert [len(await next_checks(member)) for member in members] == [3, 3, 3]


async def test_nobody_is_asked_while_nobody_is_there(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await send_half(wire, "K1", b"x")
    clock.advance(60)
    await round_of_checks(broker)
    assert broker.transactions.checks.asked == 0
    await join(wire)
    clock.advance(60)
    await round_of_checks(broker)
    ((asked, message),) = await next_checks(wire)
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "2"
    await end(wire, asked, COMMIT)
    assert delivered(broker) == [b"x"]


async def test_who_has_left_is_not_asked(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await join(wire)
    await send_half(wire, "K1")
    await wire.call(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader("tx-client", GROUP, None))
    clock.advance(60)
    await round_of_checks(broker)
    assert not await next_checks(wire)


# --- copies ----------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [COMMIT, ROLLBACK])
async def test_the_first_half_message_still_ends_its_transaction(
    broker: Broker, wire: Wire, clock: VirtualClock, how: int
) -> None:
    await join(wire)
    half = await send_half(wire, "K1", b"x")
    copies = []
    for _ in range(3):
        clock.advance(60)
        await round_of_checks(broker)
        copies += [copy for copy, _ in await next_checks(wire)]
        await join(wire)
    assert (await end(wire, half, how)).code == 0
    log_end = broker.store.max_physical_offset
    for copy in (*copies, half):
        assert (await end(wire, copy, COMMIT)).code == 0
    clock.advance(60)
    await round_of_checks(broker)
    assert not await next_checks(wire)
    assert broker.store.max_physical_offset == log_end
    assert delivered(broker) == ([b"x"] if how == COMMIT else [])


async def test_ends_of_every_copy_in_one_turn_are_one(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await join(wire)
    halves = [await send_half(wire, "K1", b"x")]
    for _ in range(2):
        clock.advance(60)
        await round_of_checks(broker)
        halves += [copy for copy, _ in await next_checks(wire)]
    for half in halves:
        await end_oneway(wire, half, COMMIT)
    assert delivered(broker) == [b"x"]


async def test_an_end_that_comes_while_a_copy_is_put_ends_the_copy(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    half = await send_half(wire, "K1", b"x")
    clock.advance(60)
    transactions = broker.transactions
    running = transactions.checks.run()
    running.send(None)  # up to where the loop does other work: the turn has not ended
    assert transactions.open.is_changing(0)
    (connection,) = broker.server.connections
    request = Request(code=RequestCode.END_TRANSACTION, header=end_header(half, COMMIT), opaque=77)
    assert transactions.ends.end(connection, request, b"") is None
    running.close()
    broker.turn.end()
    assert (await wire.answer(77)).code == 0
    assert delivered(broker) == [b"x"]
    assert transactions.open.count == 0


async def test_a_copy_and_the_op_of_what_it_replaces_are_stored_together(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await send_half(wire, "K1", b"x")
    clock.advance(60)
    await round_of_checks(broker)
    half, copy = stored(broker, TRANS_HALF_TOPIC)
    (op,) = stored(broker, TRANS_OP_HALF_TOPIC)
    assert op.body == b"0"
    assert op.physical_offset == copy.physical_offset + copy.size
    assert copy.body == half.body
    assert (copy.born_timestamp, copy.born_host, copy.flag) == (half.born_timestamp, half.born_host, half.flag)
    assert copy.properties == half.properties | {"TRANSACTION_CHECK_TIMES": "1", "TRAN_PREPARED_QUEUE_OFFSET": "0"}


async def test_what_waits_long_does_not_hold_up_the_queue(
    broker: Broker, wire: Wire, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.transaction.check, "MAX_HALF_LAG", 10)
    slow = await send_half(wire, "slow", b"slow", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    for number in range(11):
        await end(wire, await send_half(wire, f"K{number}"), ROLLBACK)
    newest = await send_half(wire, "K")
    clock.advance(7)
    await round_of_checks(broker)
    _, *copies = [record for record in stored(broker, TRANS_HALF_TOPIC) if record.properties["UNIQ_KEY"] == "slow"]
    assert [copy.properties.get("TRANSACTION_CHECK_TIMES") for copy in copies] == [None]
    assert broker.transactions.open.progress()[0] > newest.queue_offset
    await end(wire, slow, COMMIT)
    assert delivered(broker) == [b"slow"]


# --- giving up -------------------------------------------------------------------------------
async def test_after_fifteen_checks_a_transaction_is_given_up(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    asked = []
    half = await send_half(wire, "K1", b"lost", KEYS="order-1")
    for _ in range(17):
        await join(wire)
        await clock.run_for(60)
        asked += await next_checks(wire)
    times = [int(message.properties["TRANSACTION_CHECK_TIMES"]) for _, message in asked]
    assert times == list(range(1, 16))
    (record,) = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)
    assert record.body == b"lost"
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert record.properties["REAL_TOPIC"] == TOPIC
    topic = broker.topics.get(TRANS_CHECK_MAX_TIME_TOPIC)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    assert broker.transactions.checks.given_up == 1
    assert broker.transactions.open.count == 0
    assert (await end(wire, half, COMMIT)).code == 0
    assert delivered(broker) == []


async def test_the_number_of_checks_can_be_set(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(transaction_check_max=2, transaction_check_interval=1_000, transaction_time_out=0)
    clock = broker.clock
    assert isinstance(clock, VirtualClock)
    wire = await connect_to(broker)
    await join(wire)
    await send_half(wire, "K1")
    await clock.run_for(5)
    assert len(await next_checks(wire)) == 2
    assert len(stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)) == 1


async def test_each_transaction_that_is_given_up_is_named_in_the_log_up_to_a_bound(
    start_broker: StartBroker,
    connect_to: ConnectTo,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.broker.transaction.check.MAX_GIVEN_UP_LINES", 3)
    broker = await start_broker(transaction_check_max=1, transaction_check_interval=1_000, transaction_time_out=0)
    clock = broker.clock
    assert isinstance(clock, VirtualClock)
    wire = await connect_to(broker)
    await join(wire)
    keys = ["K1\x1b[2J\n", *(f"K{number}" for number in range(2, 6))]
    for key in keys:
        await send_half(wire, key)
    await clock.run_for(5)
    records = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)
    assert [record.properties["UNIQ_KEY"] for record in records] == keys
    lines = [record.getMessage() for record in caplog.records if "gave up" in record.getMessage()]
    assert [record.levelname for record in caplog.records if "gave up" in record.getMessage()][:3] == ["ERROR"] * 3
    named = "gave up a transaction that no producer ended: topic TxTopic, group TxProducers, id "
    assert [line.rsplit(", offset id", 1)[0] for line in lines[:-1]] == [
        f"{named}K1\\x1b[2J\\n",
        f"{named}K2",
        f"{named}K3",
    ]
    assert lines[-1].startswith("gave up 5 transactions that no producer ended")
    for key in ("K7", "K8"):
        await send_half(wire, key)
    await clock.run_for(5)
    assert f"{named}K8, offset id" in caplog.text, "the bound is one of each round"


async def test_what_is_older_than_the_log_is_kept_is_given_up(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await join(wire)
    await send_half(wire, "K1", CHECK_IMMUNITY_TIME_IN_SECONDS=str(100 * 3600))
    await clock.skip(72 * 3600 + 1)
    await round_of_checks(broker)
    assert len(stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)) == 1


async def test_transactions_whose_half_messages_are_gone_are_told_by_their_number(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a full disk takes log files before their time."""
    broker = await start_broker(mapped_file_size_commit_log=64 * 1024)
    wire = await connect_to(broker)
    for number in range(3):
        await send_half(wire, f"K{number}")
    for _ in range(10):
        assert (await wire.send("Fill", bytes(30_000))).code == 0
    await clock.run_for(2)
    assert broker.store._maintenance.retention.delete_files(force=True) > 0
    clock.advance(60)
    await round_of_checks(broker)
    assert "3 open transactions can no longer be committed" in caplog.text
    assert stored(broker, TRANS_CHECK_MAX_TIME_TOPIC) == []


async def test_a_round_of_many_lets_others_work(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await join(wire)
    for number in range(500):
        await send_half(wire, f"K{number}", b"%d" % number)
    await join(wire)
    clock.advance(60)
    await round_of_checks(broker)
    asked = await next_checks(wire)
    assert [half.key for half, _ in asked] == [f"K{number}" for number in range(500)]
    for half, _ in asked:
        await end_oneway(wire, half, COMMIT)
    assert sorted(map(int, delivered(broker))) == list(range(500))
    assert checks(wire) == []
