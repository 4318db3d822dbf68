"""Life times over the wire, on a clock that moves: when a life begins and ends, and what becomes of the message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.admin.test_topic_attributes import attributes_of, change
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.pop.popping import Popper
from tests.broker.snapshots import copy_store
from tests.broker.transacting import COMMIT, end, half_properties, send_half
from tests.broker.transacting import TOPIC as TX_TOPIC
from tests.broker.wire import Wire, records, send_header
from tests.helpers.contents import stored
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.turn.targets import RefusedError
from cometmq.limits import MAX_TTL_MS
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.sysflag import PULL_EXPIRED, PULL_SUBSCRIPTION
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.remoting.pop_headers import PeekMessageRequestHeader
from cometmq.testing import VirtualClock

TOPIC = "Lived"
GROUP = "consumers"
DEAD = f"%DLQ%{GROUP}"


def lives(ttl_ms: int | str, **more: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in {"COMETMQ_TTL_MS": str(ttl_ms), **more}.items())


async def send(wire: Wire, body: bytes, ttl_ms: int | None = None, topic: str = TOPIC, **fields: Any) -> None:
    properties = fields.pop("properties", "" if ttl_ms is None else lives(ttl_ms))
    answer = await wire.send(topic, body, properties=properties, **fields)
    assert answer.code == 0, answer


async def pulled(wire: Wire, offset: int = 0, topic: str = TOPIC, **fields: Any) -> tuple[int, list[bytes], int]:
    """The code, the bodies and the next offset of one pull."""
    answer = await wire.pull(topic, queue_offset=offset, **fields)
    return answer.code, [record.body for record in records(answer)], int(answer.ext_fields["nextBeginOffset"])


async def settled(wire: Wire, offset: int = 0, **fields: Any) -> tuple[list[bytes], int]:
    """The bodies of pulls from an offset until one finds something or two find nothing, and the next offset."""
    misses = 0
    for _ in range(50):
        code, bodies, after = await pulled(wire, offset, **fields)
        misses = misses + 1 if code == ResponseCode.PULL_NOT_FOUND and after == offset else 0
        if bodies or misses == 2:
            return bodies, after
        offset = after
    raise AssertionError("the pulls do not end")


async def want_dead_letters(wire: Wire, topic: str = TOPIC) -> None:
    assert (await change(wire, "+expired.messages=dead-letter", topic)).code == 0


# --- the property -----------------------------------------------------------------------------------
@pytest.mark.parametrize("ttl", ["0", "-1", str(MAX_TTL_MS + 1), str(100 * 366 * 86_400_000), "soon", "1.5", "9" * 30])
async def test_a_life_time_that_makes_no_sense_is_refused(broker: Broker, wire: Wire, ttl: str) -> None:
    answer = await wire.send(TOPIC, b"x", properties=lives(ttl))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert "its life time COMETMQ_TTL_MS must be a whole number of milliseconds from 1 to 315360000000" in answer.remark
    assert stored(broker, TOPIC) == []
    piece = BatchPiece(0, b"x", lives(ttl))
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header(TOPIC, batch=True), encode_batch([piece]))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert stored(broker, TOPIC) == []


async def test_the_broker_says_when_a_life_ends(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await send(wire, b"x", 5_000)
    (record,) = records(await wire.pull(TOPIC))
    assert record.properties["COMETMQ_EXPIRES_MS"] == str(record.store_timestamp + 5_000)
    assert record.properties["COMETMQ_TTL_MS"] == "5000"
    assert await attributes_of(wire, TOPIC) == {"expired.messages": "skip"}


async def test_an_end_that_a_client_sends_does_not_count(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await send(wire, b"without", properties="COMETMQ_EXPIRES_MS\x011\x02a\x01b")
    await send(wire, b"with", properties=lives(5_000, COMETMQ_EXPIRES_MS="1"))
    first, second = stored(broker, TOPIC)
    assert "COMETMQ_EXPIRES_MS" not in first.properties
    assert first.properties["a"] == "b"
    assert second.properties_text.count("COMETMQ_EXPIRES_MS") == 1
    assert await pulled(wire) == (0, [b"without", b"with"], 2)


# --- pulls ------------------------------------------------------------------------------------------
async def test_a_pull_passes_over_what_has_expired(wire: Wire, clock: VirtualClock) -> None:
    for body, ttl_ms in ((b"a", None), (b"b", 1_000), (b"c", 9_000), (b"d", 1_000), (b"e", None), (b"f", 1_000)):
        await send(wire, body, ttl_ms)
    assert (await pulled(wire))[1] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    await clock.run_for(0.999)
    assert (await pulled(wire))[1] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    await clock.run_for(0.001)
    assert await pulled(wire) == (0, [b"a", b"c", b"e"], 6)
    assert await pulled(wire, 3) == (0, [b"e"], 6)
    assert await pulled(wire, 5) == (ResponseCode.PULL_RETRY_IMMEDIATELY, [], 6)
    await clock.run_for(8)
    assert await pulled(wire) == (0, [b"a", b"e"], 6)
    code, bodies, _ = await pulled(wire, sys_flag=PULL_SUBSCRIPTION | PULL_EXPIRED)
    assert (code, len(bodies)) == (0, 6)
    assert len((await pulled(wire, consumer_group="TOOLS_CONSUMER"))[1]) == 6


async def test_a_long_run_of_expired_messages_is_passed_in_a_few_pulls(wire: Wire, clock: VirtualClock) -> None:
    for _ in range(3):
        pieces = [BatchPiece(0, b"x", lives(1_000)) for _ in range(1_000)]
        answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header(TOPIC, batch=True), encode_batch(pieces))
        assert answer.code == 0
    await send(wire, b"last")
    await clock.run_for(1)
    offset = pulls = 0
    bodies: list[bytes] = []
    while not bodies:
        _, bodies, offset = await pulled(wire, offset)
        pulls += 1
    assert (bodies, offset) == ([b"last"], 3_001)
    assert pulls <= 4


async def test_filters_and_life_times_together(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    wire = await connect_to(await start_broker(enable_property_filter=True))
    for number in range(60):
        ttl = lives(1_000) if number % 3 else ""
        await send(wire, b"%d" % number, properties=f"{ttl}TAGS\x01{'ab'[number % 2]}\x02n\x01{number}\x02")
    await clock.run_for(1)
    found, offset = await settled(wire, subscription="b")
    assert found == [b"%d" % number for number in range(60) if not number % 3 and number % 2]
    assert offset == 60
    sql: list[bytes] = []
    offset = 0
    while offset < 60:
        _, some, offset = await pulled(wire, offset, subscription="n >= 30", expression_type="SQL92", max_msg_nums=7)
        sql += some
    assert sql == [b"%d" % number for number in range(60) if not number % 3 and number >= 30]


async def test_a_waiting_pull_gets_only_living_messages(wire: Wire, connect_to: ConnectTo, broker: Broker) -> None:
    other = await connect_to(broker)
    await send(wire, b"first", 1_000)
    waiting = asyncio.create_task(pulled(other, 1, wait_ms=15_000))
    await until(lambda: len(broker.hold) == 1)
    await send(wire, b"second", 1_000)
    assert await waiting == (0, [b"second"], 2)


# --- delays, transactions and retries -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("delay", "delay_s"),
    [("TIMER_DELAY_MS\x0130000\x02", 30), ("TIMER_DELAY_SEC\x0130\x02", 30), ("DELAY\x014\x02", 30)],
)
async def test_the_life_of_a_delayed_message_begins_when_it_is_due(
    broker: Broker, wire: Wire, clock: VirtualClock, delay: str, delay_s: int
) -> None:
    due_ms = clock.now_ms() + delay_s * 1000
    await send(wire, b"x", properties=lives(2_000) + delay)
    await clock.run_for(delay_s + 1)
    (record,) = records(await wire.pull(TOPIC))
    assert int(record.properties["COMETMQ_EXPIRES_MS"]) == due_ms + 2_000
    assert await attributes_of(wire, TOPIC) == {"expired.messages": "skip"}
    await clock.run_for(1)
    assert await pulled(wire) == (ResponseCode.PULL_RETRY_IMMEDIATELY, [], 1)


async def test_the_life_of_a_transaction_begins_with_its_commit(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    half = await send_half(wire, "k1", COMETMQ_TTL_MS="2000")
    await clock.run_for(3)
    committed_ms = clock.now_ms()
    assert (await end(wire, half, COMMIT)).code == 0
    (record,) = records(await wire.pull(TX_TOPIC))
    assert int(record.properties["COMETMQ_EXPIRES_MS"]) == committed_ms + 2_000
    assert record.properties_text.count("COMETMQ_EXPIRES_MS") == 1
    await clock.run_for(2)
    assert (await pulled(wire, topic=TX_TOPIC))[1] == []
    bad = await wire.send(TX_TOPIC, properties=half_properties("k2", COMETMQ_TTL_MS="0"))
    assert bad.code == ResponseCode.MESSAGE_ILLEGAL


async def send_back(wire: Wire, physical_offset: int, level: int = 0) -> None:
    header = ConsumerSendMsgBackRequestHeader(physical_offset, GROUP, level, origin_msg_id="id", origin_topic=TOPIC)
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0


@pytest.mark.parametrize("fate", ["skip", "dead-letter"])
async def test_a_retry_keeps_the_end_of_the_life(broker: Broker, wire: Wire, clock: VirtualClock, fate: str) -> None:
    assert (await change(wire, f"+expired.messages={fate}", TOPIC)).code == 0
    await send(wire, b"x", 60_000)
    (record,) = records(await wire.pull(TOPIC))
    await send_back(wire, record.physical_offset, 1)
    await clock.run_for(2)
    retry = f"%RETRY%{GROUP}"
    (again,) = records(await wire.pull(retry))
    assert again.properties["COMETMQ_EXPIRES_MS"] == record.properties["COMETMQ_EXPIRES_MS"]
    await send_back(wire, again.physical_offset, 5)
    await clock.run_for(60)
    assert len(stored(broker, retry)) == 2
    assert await settled(wire, topic=retry) == ([], 2)
    dead = stored(broker, DEAD)
    if fate == "skip":
        assert dead == []
    else:  # the first retry expired too, and was read by nobody before the second pull
        assert [letter.properties["RETRY_TOPIC"] for letter in dead] == [TOPIC, TOPIC]
        assert [letter.reconsume_times for letter in dead] == [1, 2]


async def test_a_client_that_sends_a_retry_itself_does_not_lengthen_the_life(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await send(wire, b"x", 5_000)
    (record,) = records(await wire.pull(TOPIC))
    await wire.pull(TOPIC)
    retry = f"%RETRY%{GROUP}"
    await clock.run_for(3)
    answer = await wire.send(
        retry, b"x", properties=record.properties_text + f"\x02RETRY_TOPIC\x01{TOPIC}", reconsume_times=1
    )
    assert answer.code == 0, answer
    assert (await pulled(wire, topic=retry))[1] == [b"x"]
    await clock.run_for(2)
    assert await settled(wire, topic=retry) == ([], 1)


# --- dead letters -----------------------------------------------------------------------------------
async def test_expired_messages_become_dead_letters_once_for_each_group(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await want_dead_letters(wire)
    for body, ttl_ms in ((b"a", None), (b"b", 1_000), (b"c", None), (b"d", 1_000)):
        await send(wire, body, ttl_ms)
    await clock.run_for(1)
    assert await pulled(wire) == (0, [b"a"], 1)
    assert await pulled(wire, 1) == (0, [b"c"], 4)
    for _ in range(3):
        assert await pulled(wire) == (0, [b"a", b"c"], 4)
    letters = stored(broker, DEAD)
    assert [letter.body for letter in letters] == [b"b", b"d"]
    first = letters[0].properties
    assert first["RETRY_TOPIC"] == TOPIC
    assert first["COMETMQ_DEAD_REASON"] == "expired"
    origin = stored(broker, TOPIC)[1]
    assert first["ORIGIN_MESSAGE_ID"] == origin.msg_id
    assert first["COMETMQ_EXPIRED_FROM"] == str(origin.physical_offset)
    assert await pulled(wire, topic=DEAD) == (0, [b"b", b"d"], 2)  # dead letters do not expire again
    await settled(wire, consumer_group="others")
    assert await settled(wire, 1, consumer_group="others") == ([b"c"], 4)
    assert [letter.body for letter in stored(broker, "%DLQ%others")] == [b"b", b"d"]
    assert len(stored(broker, DEAD)) == 2


async def test_a_waiting_pull_goes_on_when_its_dead_letter_is_stored(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await want_dead_letters(wire)
    await send(wire, b"a", 1_000)
    await send(wire, b"b")
    await clock.run_for(1)
    assert await pulled(wire, wait_ms=15_000) == (0, [b"b"], 2)
    assert [letter.body for letter in stored(broker, DEAD)] == [b"a"]


@pytest.mark.parametrize("when", ["after the letter", "before the letter"])
async def test_a_crash_leaves_one_dead_letter(
    broker: Broker, wire: Wire, clock: VirtualClock, connect_to: ConnectTo, tmp_path: Path, when: str
) -> None:
    await want_dead_letters(wire)
    await send(wire, b"a", 1_000)
    await send(wire, b"b")
    await clock.run_for(1)
    if when == "after the letter":
        assert await settled(wire) == ([b"b"], 2)
    copy_store(tmp_path / "store", tmp_path / "copy" / "store")
    again = Broker(small_config(tmp_path / "copy"), clock=clock)
    await again.start()
    try:
        other = await connect_to(again)
        assert await settled(other) == ([b"b"], 2)
        assert [letter.body for letter in stored(again, DEAD)] == [b"a"]
    finally:
        await again.stop()


async def test_a_property_of_another_message_does_not_stand_for_a_dead_letter(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await want_dead_letters(wire)
    await send(wire, b"expires", 1_000)
    (place,) = [record.physical_offset for record in stored(broker, TOPIC)]
    for reason in ("", "expired"):
        properties = f"COMETMQ_DEAD_REASON\x01{reason}\x02COMETMQ_EXPIRED_FROM\x01{place}"
        await send(wire, b"forged", topic=DEAD, properties=properties)
    await clock.run_for(2)
    await settled(wire)
    assert [letter.body for letter in stored(broker, DEAD)] == [b"forged", b"forged", b"expires"]


async def test_groups_wait_while_dead_letters_cannot_be_stored(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await want_dead_letters(wire)
    await send(wire, b"a")
    await send(wire, b"b", 1_000)
    await send(wire, b"c")
    await clock.run_for(1)
    broker.turn.forbid(RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full"))
    assert await pulled(wire) == (0, [b"a"], 1)
    for _ in range(3):
        assert await pulled(wire, 1) == (ResponseCode.PULL_NOT_FOUND, [], 1)
    broker.turn.forbid(None)
    await clock.run_for(1)
    assert await settled(wire, 1) == ([b"c"], 3)
    assert [letter.body for letter in stored(broker, DEAD)] == [b"b"]


# --- pops -------------------------------------------------------------------------------------------
@pytest.fixture
def popper(wire: Wire, clock: VirtualClock) -> Popper:
    return Popper(wire, clock, GROUP, TOPIC)


@pytest.mark.parametrize("fate", ["skip", "dead-letter"])
@pytest.mark.parametrize("in_order", [False, True])
async def test_pops_pass_over_what_has_expired(
    broker: Broker, wire: Wire, popper: Popper, clock: VirtualClock, fate: str, in_order: bool
) -> None:
    assert (await change(wire, f"+expired.messages={fate}", TOPIC)).code == 0
    for body, ttl_ms in ((b"a", 1_000), (b"b", None), (b"c", 1_000), (b"d", 90_000)):
        await send(wire, body, ttl_ms)
    await clock.run_for(1)
    found = []
    for _ in range(4):
        messages = await popper.pop(order=in_order, invisible_time=10_000)
        found += messages
        if in_order:
            for message in messages:
                assert (await popper.ack(message)).code == 0
    assert [message.body for message in found] == [b"b", b"d"]
    assert broker.offsets.query(GROUP, TOPIC, 0) == 4
    assert [letter.body for letter in stored(broker, DEAD)] == ([] if fate == "skip" else [b"a", b"c"])
    if in_order:
        return
    assert (await popper.ack(found[0])).code == 0
    await clock.run_for(90)  # d was not acknowledged: its retry keeps the end of its life
    for _ in range(4):
        assert await popper.pop() == []
    assert [letter.body for letter in stored(broker, DEAD)] == ([] if fate == "skip" else [b"a", b"c", b"d"])


@pytest.mark.parametrize("fate", ["skip", "dead-letter"])
@pytest.mark.parametrize("by_group", [False, True])
async def test_what_is_not_acknowledged_in_order_expires_too(
    broker: Broker, wire: Wire, popper: Popper, clock: VirtualClock, fate: str, by_group: bool
) -> None:
    assert (await change(wire, f"+expired.messages={fate}", TOPIC)).code == 0
    await send(wire, b"a", properties=lives(5_000) + "__SHARDINGKEY\x01k\x02")
    await send(wire, b"b", properties="__SHARDINGKEY\x01k\x02")
    options = {"order": True, "by_message_group": by_group, "max_msg_nums": 1, "invisible_time": 10_000}
    (first,) = await popper.pop(**options)
    assert first.body == b"a"
    await clock.run_for(10)
    found = []
    for _ in range(3):
        found += await popper.pop(**options)
    assert [message.body for message in found] == [b"b"]
    assert (await popper.ack(found[0])).code == 0
    assert broker.offsets.query(GROUP, TOPIC, 0) == 2
    assert [letter.body for letter in stored(broker, DEAD)] == ([] if fate == "skip" else [b"a"])


async def test_a_waiting_pop_gets_what_comes_behind_expired_messages(
    broker: Broker, wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await want_dead_letters(wire)
    await send(wire, b"a", 1_000)
    await send(wire, b"b")
    await clock.run_for(1)
    (message,) = await popper.pop(poll_time=10_000)
    assert message.body == b"b"
    assert [letter.body for letter in stored(broker, DEAD)] == [b"a"]


async def test_a_peek_shows_the_living_messages_and_makes_no_dead_letters(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await want_dead_letters(wire)
    for body, ttl_ms in ((b"a", 1_000), (b"b", None), (b"c", 1_000)):
        await send(wire, body, ttl_ms)
    header = PeekMessageRequestHeader(GROUP, TOPIC, 0, 32)

    async def peeked() -> list[bytes]:
        answer = await wire.call(RequestCode.PEEK_MESSAGE, header)
        return [record.body for record in records(answer)] if answer.code == 0 else []

    assert await peeked() == [b"a", b"b", b"c"]
    await clock.run_for(1)
    assert await peeked() == [b"b"]
    assert stored(broker, DEAD) == []
    assert broker.offsets.query(GROUP, TOPIC, 0) <= 0


async def test_no_topic_is_marked_without_a_life_time(broker: Broker, wire: Wire) -> None:
    await send(wire, b"x")
    assert await attributes_of(wire, TOPIC) is None
