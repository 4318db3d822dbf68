"""The renewal of receipt handles at brokers of which one answers nothing."""

from __future__ import annotations

import asyncio

from tests.helpers.waiting import until

from cometmq.message.pop_info import ReceiptHandle
from cometmq.proxy.backend.backend import ClientIdentity, Reply
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.receipts import Delivery
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.sessions import ClientSession
from cometmq.remoting.headers import Header
from cometmq.remoting.pop_headers import ChangeInvisibleTimeResponseHeader
from cometmq.testing import VirtualClock

INVISIBLE_MS = 20_000


class Way:
    """The way to two brokers: ``silent`` never answers, ``alive`` does at once."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.asked: list[str] = []

    async def ask(
        self, broker: str, code: int, header: Header | None, body: bytes = b"", *, timeout_s: float = 3.0
    ) -> Reply:
        self.asked.append(broker)
        if broker == "silent":
            await asyncio.Event().wait()
        return Reply(0, None, ChangeInvisibleTimeResponseHeader(self._clock.now_ms(), INVISIBLE_MS, 0), b"")


def session_with(way: Way) -> ClientSession:
    identity = ClientIdentity("client", ("127.0.0.1", 1), "PYTHON")
    return ClientSession(None, identity, lambda _: way, 0.0)  # type: ignore[arg-type, return-value]


def delivery(clock: VirtualClock, broker: str, offset: int) -> Delivery:
    return Delivery("T", "G", ReceiptHandle(offset, clock.now_ms(), INVISIBLE_MS, 0, "0", broker, 0, offset), 0)


def add(renewals: Renewals, session: ClientSession, delivery: Delivery) -> None:
    renewals.add(session, delivery.topic, delivery.group, delivery.encode())


async def test_a_broker_that_does_not_answer_holds_up_no_renewal_at_another_one(clock: VirtualClock) -> None:
    way = Way(clock)
    session = session_with(way)
    renewals = Renewals(EndpointConfig(), clock)
    renewals.start()
    for offset in range(3):
        add(renewals, session, delivery(clock, "silent", offset))
    first = delivery(clock, "alive", 0)
    add(renewals, session, first)
    await until(lambda: way.asked.count("alive") >= 3, clock=clock, step_s=1.0, timeout_s=10)
    current = renewals.find(session, "T", "G", first.encode())
    assert current is not None
    assert current.ends_ms > clock.now_ms()
    assert way.asked.count("silent") == 1
    await renewals.stop()


async def test_a_message_that_was_released_in_a_round_is_not_renewed_in_it(clock: VirtualClock) -> None:
    way = Way(clock)
    session = session_with(way)
    renewals = Renewals(EndpointConfig(), clock)
    renewals.start()
    deliveries = [delivery(clock, "alive", offset) for offset in range(3)]
    for one in deliveries:
        add(renewals, session, one)
    for _ in range(4):
        clock.advance(5)
    for one in deliveries:
        renewals.remove(session, "G", one.encode())
    await asyncio.sleep(0)
    assert not way.asked
    await renewals.stop()
