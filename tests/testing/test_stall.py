"""A test that waits for a clock which nobody moves fails in seconds, and says what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.helpers.pace import is_in_time
from tests.helpers.waiting import block_for, real_time

from cometmq.client import LitePullConsumer, Message, Producer
from cometmq.testing import Cluster, StalledClockError, VirtualClock, stall

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "CHECK_SECONDS", 0.02)


async def refused(cluster: Cluster) -> None:
    """Send a message that the broker refuses: the next attempt follows after a pause of the clock."""
    async with Producer("p", instance=cluster.client_instance()) as producer:
        await producer.send(Message("orders", b"1"))
        await cluster.kill_broker(0)
        await producer.send(Message("orders", b"2"))


async def in_a_cluster(work: Callable[[Cluster], Awaitable[None]]) -> None:
    async with Cluster(clock=VirtualClock()) as cluster:
        await cluster.create_topic("orders")
        await work(cluster)


async def test_a_bare_send_to_a_dead_broker_names_the_call_and_the_next_step() -> None:
    began = time.monotonic()
    with pytest.raises(
        StalledClockError, match=r"Producer\.send is waiting .*clock\.run_until\(producer\.send\(…\), 60\)"
    ):
        await in_a_cluster(refused)
    assert is_in_time(time.monotonic() - began, 10)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_bare_poll_and_a_bare_sleep_are_named() -> None:
    async def poll(cluster: Cluster) -> None:
        async with LitePullConsumer("g", instance=cluster.client_instance()) as consumer:
            await consumer.subscribe("orders")
            await consumer.poll(5)

    with pytest.raises(StalledClockError, match=r"LitePullConsumer\.poll is waiting .*consumer\.poll"):
        await in_a_cluster(poll)
    with pytest.raises(StalledClockError, match=r"clock\.sleep is waiting"):
        await in_a_cluster(lambda cluster: cluster.clock.sleep(1))


async def test_a_test_that_waits_for_something_else_or_moves_the_clock_goes_on() -> None:
    clock = VirtualClock()
    async with Cluster(clock=clock) as cluster:
        await cluster.create_topic("orders")
        async with LitePullConsumer("g", instance=cluster.client_instance()) as consumer:
            await consumer.subscribe("orders")
            poll = asyncio.create_task(consumer.poll(5))
            await real_time(0.02 * 2 * stall.STALLED_CHECKS)
            await clock.run_for(6)
            assert await poll == []
        await asyncio.to_thread(block_for, 0.02 * 2 * stall.STALLED_CHECKS)
    assert cluster.stalled is None


def test_the_fixture_fails_the_test_with_the_sentence(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(
        """
        from cometmq.client import Message, Producer
        from cometmq.testing import stall
        stall.CHECK_SECONDS = 0.02

        async def test_stalled(cometmq_cluster, cometmq_topic):
            async with Producer("p", instance=cometmq_cluster.client_instance()) as producer:
                await producer.send(Message(cometmq_topic, b"1"))
                await cometmq_cluster.kill_broker(0)
                await producer.send(Message(cometmq_topic, b"2"))
        """
    )
    outcome = pytester.runpytest_subprocess("-p", "cometmq.pytest_plugin", "-p", "no:cacheprovider")
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(["*StalledClockError: Producer.send is waiting for time to pass*"])
