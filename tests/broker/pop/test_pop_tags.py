"""Tags of one hash: a pop hands out those that were asked for, in each way, and keeps nothing of the others.

"Aa", "BB" and all that are made of them have one hash in Java.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.pop.popping import GROUP, TOPIC, Popper, got
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.broker.pop import pop_message
from cometmq.message.ids import tags_code
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.pop_headers import NotificationRequestHeader
from cometmq.store.queue import get_message
from cometmq.testing import VirtualClock

COLLIDING = ("AaAa", "BBBB", "AaBB", "BBAa")
WAYS: dict[str, dict[str, Any]] = {
    "of any queue": {},
    "in order": {"order": True, "queue_id": 0},
    "by message group": {"order": True, "by_message_group": True, "queue_id": 0},
}


@pytest.fixture
def popper(wire: Wire, clock: VirtualClock) -> Popper:
    return Popper(wire, clock)


async def send(wire: Wire, tag: str, body: bytes) -> None:
    assert (await wire.send(TOPIC, body, properties=f"TAGS\x01{tag}\x02")).code == 0


def test_the_tags_have_one_hash() -> None:
    assert len(set(map(tags_code, COLLIDING))) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wanted", [("AaAa",), ("BBAa", "AaBB")])
async def test_a_pop_takes_the_tags_it_names_and_not_those_of_their_hash(
    wire: Wire, popper: Popper, way: str, wanted: tuple[str, ...]
) -> None:
    for number in range(80):
        await send(wire, COLLIDING[number % 4], b"%d" % number)
    expected = [b"%d" % number for number in range(80) if COLLIDING[number % 4] in wanted]
    found: list[bytes] = []
    while batch := await popper.pop(exp=" || ".join(wanted), max_msg_nums=8, **WAYS[way]):
        found += [message.body for message in batch]
        await popper.batch_ack(batch)
    assert found == expected


async def test_what_has_only_the_hash_is_not_in_flight_and_comes_to_another_group(
    wire: Wire, broker: Broker, clock: VirtualClock
) -> None:
    for tag in COLLIDING:
        await send(wire, tag, tag.encode())
    assert len(await Popper(wire, clock).pop(exp="AaAa")) == 1
    assert broker.pops.state.in_flight(TOPIC, GROUP) == 1
    (other,) = await Popper(wire, clock, "others").pop(exp="BBBB")
    assert other.body == b"BBBB"


def notification_of_aaaa(clock: VirtualClock) -> NotificationRequestHeader:
    """A question if any queue has a message with the tag ``AaAa`` now."""
    return NotificationRequestHeader(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=-1,
        poll_time=0,
        born_time=clock.now_ms(),
        exp_type="TAG",
        exp="AaAa",
    )


async def test_a_waiting_pop_and_a_notification_are_not_ended_by_the_hash_alone(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, "BBBB", b"makes the topic")
    waiting = popper.command(exp="AaAa", poll_time=15_000)
    wire.post(waiting)
    asked = notification_of_aaaa(clock)
    for number in range(40):
        await send(wire, "BBBB", b"%d" % number)
    assert (await wire.call(RequestCode.NOTIFICATION, asked)).ext_fields["hasMsg"] == "false"
    await send(wire, "AaAa", b"wanted")
    assert [message.body for message in got(await wire.answer(waiting.opaque))] == [b"wanted"]
    await send(wire, "AaAa", b"next")
    asked.born_time = clock.now_ms()
    assert (await wire.call(RequestCode.NOTIFICATION, asked)).ext_fields["hasMsg"] == "true"


async def test_a_message_that_comes_again_still_has_its_tag(wire: Wire, popper: Popper, clock: VirtualClock) -> None:
    for tag in COLLIDING:
        await send(wire, tag, tag.encode())
    assert len(await popper.pop(exp="AaAa || BBBB", invisible_time=1_000)) == 2
    await clock.run_for(1)
    assert [message.body for message in await popper.pop(exp="AaAa || BBBB")] == [b"AaAa", b"BBBB"]


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look of a pop takes in few messages."""
    monkeypatch.setattr(get_message, "FILTER_SCAN_UNITS_MIN", 8)


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize("unwanted", ["BBBB", "other"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_waiting_pop_goes_on_behind_more_unwanted_messages_than_one_look_takes_in(
    wire: Wire, popper: Popper, way: str, unwanted: str
) -> None:
    """Nothing else arrives that would wake it, and no time passes."""
    for _ in range(100):
        await send(wire, unwanted, b"not this one")
    await send(wire, "AaAa", b"wanted")
    found = await popper.pop(exp="AaAa", max_msg_nums=1, poll_time=15_000, **WAYS[way])
    assert [message.body for message in found] == [b"wanted"]


@pytest.mark.usefixtures("short_looks")
async def test_pops_look_into_all_queues_one_after_the_other(
    wire: Wire, broker: Broker, popper: Popper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_message, "POP_SKIPPED_MAX", 10)
    await send(wire, "other", b"makes the topic")
    for queue_id in range(4):
        for _ in range(30):
            await wire.send(TOPIC, b"not this one", queue_id=queue_id, properties="TAGS\x01other\x02")
    await wire.send(TOPIC, b"wanted", queue_id=3, properties="TAGS\x01AaAa\x02")
    for group in "abcd":  # they begin with different queues
        found = await popper.pop(exp="AaAa", consumer_group=group, poll_time=15_000)
        assert [message.body for message in found] == [b"wanted"]


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize("unwanted", ["BBBB", "other"])
async def test_a_notification_counts_what_a_pop_would_go_on_to(
    wire: Wire, popper: Popper, clock: VirtualClock, unwanted: str
) -> None:
    for _ in range(100):
        await send(wire, unwanted, b"not this one")
    asked = notification_of_aaaa(clock)
    seen = []
    while (await wire.call(RequestCode.NOTIFICATION, asked)).ext_fields["hasMsg"] == "true":
        seen.append(await popper.pop(exp="AaAa"))
    assert seen == [[]] * len(seen)
    assert 0 < len(seen) < 100
    await send(wire, "AaAa", b"wanted")
    assert (await wire.call(RequestCode.NOTIFICATION, asked)).ext_fields["hasMsg"] == "true"


@pytest.mark.usefixtures("short_looks")
async def test_a_message_in_flight_hides_none_of_another_message_group(wire: Wire, popper: Popper) -> None:
    way = WAYS["by message group"]

    async def send_in(group: str, tag: str, body: bytes) -> None:
        properties = f"TAGS\x01{tag}\x02__SHARDINGKEY\x01{group}\x02"
        assert (await wire.send(TOPIC, body, properties=properties)).code == 0

    await send_in("one", "AaAa", b"first")
    for _ in range(100):
        await send_in("one", "other", b"not this one")
    await send_in("two", "AaAa", b"second")
    await send_in("one", "AaAa", b"third")
    (first,) = await popper.pop(exp="AaAa", **way, max_msg_nums=1)
    (second,) = await popper.pop(exp="AaAa", poll_time=15_000, **way)
    assert (first.body, second.body) == (b"first", b"second")
    await popper.batch_ack([first])
    await popper.batch_ack([second])
    assert [message.body for message in await popper.pop(exp="AaAa", poll_time=15_000, **way)] == [b"third"]
