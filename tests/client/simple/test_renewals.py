"""Messages that are kept invisible in the background."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.simple.conftest import Seen, consumer
from tests.client.simple.test_simple_consumer import bodies, send

from cometmq.client import ClientInstance, PoppedMessage
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock


async def test_a_message_stays_invisible_while_it_is_handled(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m", "n")
    lost: list[PoppedMessage] = []
    async with (
        consumer(timed, invisible_s=10, renew_up_to_s=300, on_lost=lost.append) as reader,
        consumer(timed) as other,
    ):
        found = await reader.receive(wait_s=0) + await reader.receive(wait_s=0)
        await clock.run_for(200)
        assert await other.receive(wait_s=0) == []
        await reader.ack(found)
        await clock.run_for(60)
        assert await other.receive(wait_s=0) == []
        assert not lost


async def test_it_is_lost_at_the_end_of_the_longest_time(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    lost: list[PoppedMessage] = []
    async with (
        consumer(timed, invisible_s=10, renew_up_to_s=60, on_lost=lost.append) as reader,
        consumer(timed) as other,
    ):
        found = await reader.receive(wait_s=0)
        await clock.run_for(59)
        assert not lost
        await clock.run_for(15)
        assert lost == found
        assert bodies(await other.receive(wait_s=0)) == ["m"]


async def test_it_is_lost_when_the_broker_is_away_too_long(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    lost: list[PoppedMessage] = []
    async with consumer(timed, invisible_s=10, renew_up_to_s=600, on_lost=lost.append) as reader:
        found = await reader.receive(wait_s=0)
        await timed.kill_broker(0)
        await clock.run_for(11)
        assert lost == found
        await timed.start_broker(0)


async def test_it_is_not_lost_while_the_broker_starts_again(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    lost: list[PoppedMessage] = []
    async with consumer(timed, invisible_s=20, renew_up_to_s=600, on_lost=lost.append) as reader:
        found = await reader.receive(wait_s=0)
        await timed.kill_broker(0)
        await clock.run_for(12)
        await timed.start_broker(0)
        await clock.run_for(30)
        assert not lost
        await reader.ack(found)
        await clock.run_for(30)
        assert await reader.receive(wait_s=0) == []


async def test_a_message_that_is_given_back_is_not_renewed(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed, invisible_s=10, renew_up_to_s=600) as reader:
        (message,) = await reader.receive(wait_s=0)
        await reader.change_invisible(message, 30)
        await clock.run_for(31)
        assert bodies(await reader.receive(wait_s=0)) == ["m"]


async def test_a_message_that_waited_for_a_call_is_renewed_in_time(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed, invisible_s=10, renew_up_to_s=600) as reader, consumer(timed) as other:
        reader.give_back(await reader.receive(wait_s=0))
        await clock.run_for(7)
        found = await reader.receive(wait_s=0)
        assert bodies(found) == ["m"]
        await clock.run_for(30)
        assert await other.receive(wait_s=0) == []
        await reader.ack(found)


@pytest.mark.parametrize("steps", range(12))
async def test_an_acknowledgement_during_a_renewal_counts(timed: Cluster, clock: VirtualClock, steps: int) -> None:
    await send(timed, "a", "m")
    async with consumer(timed, invisible_s=10, renew_up_to_s=600) as reader:
        (message,) = await reader.receive(wait_s=0)
        await clock.run_for(4.9)
        clock.advance(0.2)
        for _ in range(steps):
            await asyncio.sleep(0)
        await clock.run_until(reader.ack(message), 1)
        await clock.run_for(60)
        assert await reader.receive(wait_s=0) == []


@pytest.mark.parametrize("steps", range(0, 12, 2))
async def test_an_acknowledgement_during_a_renewal_ends_before_the_consumer(
    timed: Cluster, clock: VirtualClock, steps: int
) -> None:
    await send(timed, "a", "m")
    async with consumer(timed, invisible_s=10, renew_up_to_s=600) as reader:
        (message,) = await reader.receive(wait_s=0)
        await clock.run_for(4.9)
        clock.advance(0.2)
        for _ in range(steps):
            await asyncio.sleep(0)
        ended = asyncio.ensure_future(reader.ack(message))
        await asyncio.sleep(0)
    await clock.run_until(ended, 1)
    async with consumer(timed) as other:
        await clock.run_for(60)
        assert await other.receive(wait_s=0) == []


async def test_acknowledged_messages_cost_no_renewal(timed: Cluster, clock: VirtualClock) -> None:
    seen = Seen(timed)
    await send(timed, "a", *map(str, range(10)))
    async with consumer(timed, invisible_s=10, renew_up_to_s=600, instance=seen.instance) as reader:
        await reader.ack(await reader.receive(wait_s=0))
        await clock.run_for(100)
        assert RequestCode.CHANGE_MESSAGE_INVISIBLETIME not in seen.codes


async def test_an_error_of_on_lost_is_logged(
    timed: Cluster, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: PoppedMessage) -> None:
        raise ValueError("mine")

    await send(timed, "a", "m")
    async with consumer(timed, invisible_s=10, renew_up_to_s=1, on_lost=fail) as reader:
        await reader.receive(wait_s=0)
        await clock.run_for(11)
        assert "on_lost failed for message" in caplog.text
        assert await reader.receive(wait_s=0) != []


class Dated:
    """A client's clock, whose date the test sets: only its monotonic time is that of the cluster's clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.ahead_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_corrected_date_of_the_client_loses_no_message(timed: Cluster, clock: VirtualClock, hours: int) -> None:
    await send(timed, "a", "m")
    lost: list[PoppedMessage] = []
    dated = Dated(clock)
    instance = ClientInstance(timed.namesrv_address, clock=dated)
    options: dict[str, Any] = {"invisible_s": 10, "renew_up_to_s": 300, "on_lost": lost.append, "instance": instance}
    async with consumer(timed, **options) as reader, consumer(timed) as other:
        found = await reader.receive(wait_s=0)
        dated.ahead_ms = hours * 3_600_000
        await clock.run_for(60)
        assert not lost
        assert await other.receive(wait_s=0) == []
        await reader.ack(found)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_message_that_is_put_back_waits_while_it_is_invisible(
    timed: Cluster, clock: VirtualClock, hours: int
) -> None:
    await send(timed, "a", "m")
    dated = Dated(clock)
    instance = ClientInstance(timed.namesrv_address, clock=dated)
    async with consumer(timed, invisible_s=10, instance=instance) as reader, consumer(timed) as other:
        reader.give_back(await reader.receive(wait_s=0))
        dated.ahead_ms = hours * 3_600_000
        if hours > 0:
            assert bodies(await reader.receive(wait_s=0)) == ["m"]
        else:
            await clock.run_for(15)
            assert bodies(await other.receive(wait_s=0)) == ["m"]
            assert await reader.receive(wait_s=0) == []
