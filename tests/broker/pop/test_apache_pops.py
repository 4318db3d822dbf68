"""Popped messages of a store that Apache's broker wrote: what was not acknowledged there is handed out again here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import GROUP, TOPIC, Popper
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.broker.pop.apache_pops import GRACE_MS
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.message.hosts import encode_host
from cometmq.message.names import REVIVE_GROUP
from cometmq.testing import VirtualClock

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"
HOST = encode_host("127.0.0.1", 1)
THERE_MS = 1_000
"""The pop time at Apache's broker."""
GRACE_S = GRACE_MS / 1000


async def stored(
    broker: Broker, topic: str, body: bytes, properties: str = "", *, born_timestamp: int = 0, reconsume_times: int = 0
) -> None:
    """Let a record be in the log as if Apache's broker had written it."""
    if broker.topics.get(topic) is None:
        broker.topics.create_retry(topic)
    message = InnerMessage(topic, 0, body, properties, 0, 0, born_timestamp, HOST, reconsume_times)
    done: list[object] = []
    broker.turn.begin()
    broker.turn.put_inner(message, done.append)
    broker.turn.end()
    assert done


async def there(broker: Broker, tag: str, **fields: Any) -> None:
    """A record of Apache's POP, in the form that 5.5.0 writes."""
    common = {"bn": "broker-a", "c": GROUP, "pt": THERE_MS, "q": 0, "so": 0, "t": TOPIC}
    await stored(broker, REVIVE_TOPIC, json.dumps(common | fields).encode(), f"TAGS\x01{tag}")


async def popped_there(broker: Broker, wire: Wire, count: int) -> None:
    """Some messages that the group has been given there: its offset is behind them."""
    for number in range(count):
        assert (await wire.send(TOPIC, b"%d" % number, queue_id=0)).code == 0
    broker.offsets.set_offset(GROUP, TOPIC, 0, count)


async def bodies(popper: Popper) -> list[bytes]:
    found = await popper.pop(invisible_time=3_600_000)
    for message in found:
        await popper.ack(message)
    return sorted(message.body for message in found)


def check_point(count: int, **fields: Any) -> dict[str, Any]:
    return {"bm": 0, "d": list(range(count)), "it": 60_000, "n": count, "ro": 0, "sp": False} | fields


async def test_what_was_not_acknowledged_there_is_handed_out_once(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    popper = Popper(wire, clock)
    await popped_there(broker, wire, 8)
    assert await bodies(popper) == []
    await there(broker, "ck", **check_point(8, bm=0b11))
    await clock.run_for(1)
    await there(broker, "ack", ao=2)
    await there(broker, "bAck", aos=[3, 5])
    await clock.run_for(GRACE_S - 2)
    assert await bodies(popper) == []
    await clock.run_for(2)
    assert await bodies(popper) == [b"4", b"6", b"7"]
    await clock.run_for(2 * GRACE_S)
    assert await bodies(popper) == []
    assert broker.offsets.query(REVIVE_GROUP, REVIVE_TOPIC, 0) == 3


async def test_nothing_is_lost_or_repeated_by_a_start_at_any_moment(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await popped_there(broker, wire, 2)
    await there(broker, "ck", **check_point(2))
    await clock.run_for(1)
    await there(broker, "ack", ao=0)
    for pause_s in (0.0, GRACE_S):
        await clock.run_for(pause_s)
        await broker.stop()
        broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    await clock.run_for(GRACE_S)
    assert await bodies(popper) == [b"1"]
    await broker.stop()
    popper = Popper(await connect_to(await start_broker()), clock)
    await clock.run_for(2 * GRACE_S)
    assert await bodies(popper) == []


async def test_a_message_that_was_stored_once_more_there_is_not_handed_out_twice(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await popped_there(broker, wire, 2)
    await broker.pops.save()
    await broker.stop()
    broker = await start_broker()
    broker.pops.halt()
    await there(broker, "ck", **check_point(2))
    unit = broker.store.queue(TOPIC, 0).unit(1)
    assert unit is not None
    original = broker.store.decoded_at(unit[0])
    assert original is not None
    retry = f"%RETRY%{GROUP}_{TOPIC}"
    broker.offsets.set_offset(GROUP, retry, 0, 0)
    await stored(
        broker, retry, b"1", original.properties_text, born_timestamp=original.born_timestamp, reconsume_times=1
    )
    await broker.stop()
    popper = Popper(await connect_to(await start_broker()), clock)
    await clock.run_for(2 * GRACE_S)
    assert await bodies(popper) == [b"0", b"1"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"t":"Popped"}',
        b'{"t":1,"c":"x","q":0,"so":0,"pt":0}',
        b'{"t":"Popped","c":"poppers","q":0,"so":0,"pt":%d,"ao":%d,"n":2}' % (10**30, 10**30),
        b'{"t":"Popped","c":"poppers","q":0,"so":0,"pt":0,"ao":-1,"n":%d}' % 10**9,
        b"\xff" * 10,
        b"9" * 5_000,
    ],
    ids=["empty", "list", "cut", "fields", "types", "large", "many", "bytes", "number"],
)
async def test_records_that_make_no_sense_are_passed_over(
    broker: Broker, wire: Wire, clock: VirtualClock, body: bytes
) -> None:
    await popped_there(broker, wire, 2)
    for tag in ("ck", "ack"):
        await stored(broker, REVIVE_TOPIC, body, f"TAGS\x01{tag}")
    await there(broker, "ck", **check_point(40, so=-5, d=[10**15, -3, 1]))
    await there(broker, "ck", **check_point(1, t="Nowhere"))
    await there(broker, "ck", **check_point(1, q=900))
    await there(broker, "ck", **check_point(1))
    await clock.run_for(2 * GRACE_S)
    assert await bodies(Popper(wire, clock)) == [b"0"]


async def test_no_client_sends_to_the_topic(broker: Broker, wire: Wire) -> None:
    answer = await wire.send(REVIVE_TOPIC, b"{}", queue_id=0)
    assert answer.code == 16
    assert "is forbidden" in (answer.remark or "")
