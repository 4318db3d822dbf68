"""Requests about lite topics that meet others: clients with one ID in two groups, and changes during a long change."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import PARENT, Reader, bodies, make_group, make_parent, send
from tests.broker.wire import Connect, Wire

from cometmq.broker.controller import Broker
from cometmq.broker.lite.index import FAR, LiteIndex, numbers_of
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock


@pytest.fixture
async def reader(wire: Wire, clock: VirtualClock) -> Reader:
    await make_parent(wire)
    await make_group(wire, client_quota="-1")
    return Reader(wire, clock)


@pytest.mark.parametrize("is_other_topic", [False, True])
async def test_another_group_cannot_end_the_subscription_of_a_client(
    reader: Reader, broker: Broker, connect: Connect, is_other_topic: bool
) -> None:
    wire = await connect()
    await reader.sync("a")
    topic = "Others" if is_other_topic else PARENT
    await make_parent(wire, topic)
    await make_group(wire, "others", topic)
    other = Reader(wire, reader.clock, client_id=reader.client_id, group="others", topic=topic)
    assert (await other.control("COMPLETE_REMOVE")).code == 0
    await other.sync("a")
    await other.sync()
    await send(wire, "a", b"a0")
    assert bodies(await reader.pop()) == [b"a0"]


@pytest.mark.parametrize("action", ["COMPLETE_ADD", "PARTIAL_ADD"])
@pytest.mark.parametrize("end", ["removal", "topic"])
async def test_a_client_that_is_removed_during_a_long_change_reads_nothing(
    reader: Reader, broker: Broker, connect: Connect, action: str, end: str
) -> None:
    other = await connect()
    rival = Reader(other, reader.clock)
    names = [f"lite-{number:06d}" for number in range(30_000)]
    await reader.sync("one")
    subscriptions = broker.lite.subscriptions
    change = asyncio.create_task(reader.control(action, *names))
    while subscriptions.count < 2_000:
        await asyncio.sleep(0)
    if end == "removal":
        assert (await rival.control("COMPLETE_REMOVE")).code == 0
    else:
        assert (await other.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": PARENT})).code == 0
    assert subscriptions.count < 29_000
    await change
    index = broker.lite.indexes.of(PARENT)
    assert (subscriptions.count, len(subscriptions.clients)) == (0, 0)
    assert not any(subscriptions.is_read(index, number) for number in numbers_of(index))


@pytest.mark.parametrize(
    "body",
    [
        b'{"subscriptionSet":[%s]}' % b",".join([b'{"action":"COMPLETE_REMOVE"}'] * 3_000),
        b'{"subscriptionSet":[{"action":"PARTIAL_REMOVE","clientId":"c1","group":"readers","topic":"Sessions",'
        b'"liteTopicSet":[%s]}]}' % b",".join([b'"a"'] * 300_000),
    ],
    ids=["subscriptions", "names"],
)
async def test_a_request_with_too_many_values_is_refused_before_it_is_decoded(reader: Reader, body: bytes) -> None:
    answer = await reader.wire.call(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "the maximum is" in (answer.remark or "")


def test_an_entry_far_away_is_the_one_that_a_walk_finds() -> None:
    index = LiteIndex(PARENT)
    one, other = index.add("one"), index.add("other")
    for at in range(45_000):
        index.append(one if at % 3 == 0 else other, at * 100)
    index.drop_before(700)
    of_other = [at for at in range(index.base, index.end) if index.owner(at) == other]
    begin = index.extent(other)[0]
    for offset in (begin, begin + 3, begin + FAR, begin + FAR + 1, begin + 25_000, begin + len(of_other) - 1):
        assert index.entry(other, offset) == of_other[offset - begin]
        assert index.entry(other, offset, of_other[2], begin + 2) == of_other[offset - begin]
        assert index.offset_at(other, of_other[offset - begin]) == offset
    assert index.offset_at(other, index.base) == begin
    assert index.offset_at(other, index.end) == index.next_offset(other)


@pytest.mark.parametrize(
    ("field", "value"), [("version", str(10**40)), ("version", str(-(2**63) - 1)), ("clientId", '"%s"' % ("c" * 1_025))]
)
async def test_a_subscription_that_no_file_can_hold_is_refused(
    reader: Reader, broker: Broker, field: str, value: str
) -> None:
    fields = {"action": '"COMPLETE_ADD"', "clientId": '"c1"', "group": '"readers"', "topic": '"Sessions"'}
    fields |= {"liteTopicSet": '["a"]', field: value}
    body = '{"subscriptionSet":[{' + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}]}"
    answer = await reader.wire.call(RequestCode.LITE_SUBSCRIPTION_CTL, body=body.encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER, answer
    await broker.lite.save()


async def test_a_pop_with_a_long_attempt_id_is_refused(reader: Reader) -> None:
    await reader.sync("a")
    await send(reader.wire, "a", b"0")
    answer = await reader.wire.ask(reader.command(attempt_id="i" * 257))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert bodies(await reader.pop(attempt_id="i" * 256)) == [b"0"]


async def test_clients_without_lite_topics_are_limited_too(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    wire = await connect_to(await start_broker(max_lite_subscription_count=2))
    await make_parent(wire)
    await make_group(wire)
    for number in range(2):
        await Reader(wire, clock, f"c{number}").sync()
    answer = await Reader(wire, clock, "c2").control("COMPLETE_ADD")
    assert answer.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    await Reader(wire, clock, "c1").sync("a")
