"""Delayed and half messages to lite topics: what is acknowledged is delivered, and holds nobody else up."""

from __future__ import annotations

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import PARENT, Reader, bodies, make_group, make_parent, send
from tests.broker.wire import Wire, records

from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock

LATER = ["DELAY\x011", "TIMER_DELAY_MS\x013000", "TRAN_MSG\x01true\x02PGROUP\x01producers"]


@pytest.fixture
async def reader(wire: Wire, clock: VirtualClock) -> Reader:
    await make_parent(wire)
    await make_group(wire)
    return Reader(wire, clock)


@pytest.mark.parametrize("later", LATER[:2])
async def test_a_delayed_message_comes_even_if_there_are_too_many_lite_topics_by_then(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, later: str
) -> None:
    wire = await connect_to(await start_broker(enable_lmq_quota=True, max_lmq_consume_queue_num=1))
    await make_parent(wire)
    await make_group(wire)
    for topic, properties in ((PARENT, f"__LITE_TOPIC\x01late\x02{later}"), ("Other", later)):
        assert (await wire.send(topic, b"late", properties=properties)).code == 0
    await send(wire, "one", b"1")
    refused = await wire.send(PARENT, b"more", properties=f"__LITE_TOPIC\x01more\x02{later}")
    assert refused.code == ResponseCode.LMQ_QUOTA_EXCEEDED
    await clock.run_for(5)
    (other,) = records(await wire.pull("Other"))
    assert other.body == b"late"
    reader = Reader(wire, clock)
    await reader.sync("late")
    assert bodies(await reader.pop()) == [b"late"]


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("lite", ["a,b", "a$b", "x" * 65, "a\x02KEYS\x01" + "k" * 32_650])
async def test_a_message_that_could_not_be_stored_later_is_refused(reader: Reader, later: str, lite: str) -> None:
    answer = await reader.wire.send(PARENT, b"late", properties=f"__LITE_TOPIC\x01{lite}\x02{later}")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
