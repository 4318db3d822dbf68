"""A limit in time does not take away an outcome that has arrived; alarms leave no garbage."""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable

import pytest

from cometmq.clock import ARRIVAL_ROUNDS, SYSTEM_CLOCK, wait_for
from cometmq.loop import SharedTask
from cometmq.testing import VirtualClock


async def test_an_outcome_that_arrived_with_the_end_of_its_time_counts() -> None:
    clock = VirtualClock()
    arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer() -> str:
        return await arrived

    async def ask() -> str:
        return await asyncio.create_task(answer())

    waiting = asyncio.create_task(wait_for(clock, 3, ask()))
    for _ in range(3):
        await asyncio.sleep(0)
    arrived.set_result("here")
    clock.advance(60)
    assert await waiting == "here"


async def test_what_does_not_arrive_is_cancelled() -> None:
    clock = VirtualClock()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(wait_for(clock, 3, never))
    await asyncio.sleep(0)
    clock.advance(60)
    with pytest.raises(TimeoutError, match="took longer than 3 s"):
        await waiting
    assert never.cancelled()


@pytest.mark.parametrize("rounds", range(ARRIVAL_ROUNDS + 1))
async def test_a_caller_that_is_cancelled_while_its_time_ends_is_cancelled(rounds: int) -> None:
    clock = VirtualClock()
    waiting = asyncio.create_task(wait_for(clock, 3, asyncio.Event().wait()))
    await asyncio.sleep(0)
    clock.advance(60)
    for _ in range(rounds):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_shared_task_goes_on_when_callers_leave_and_ends_for_all_others() -> None:
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        return await outcome

    shared = SharedTask(work())
    callers = [asyncio.create_task(shared.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    callers[1].cancel()
    await asyncio.sleep(0)
    outcome.set_exception(ValueError("no"))
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(one) for one in outcomes] == [ValueError, asyncio.CancelledError, ValueError]
    with pytest.raises(ValueError, match="no"):
        await shared.wait()


async def test_callers_that_are_cancelled_with_a_shared_task_know_it() -> None:
    shared = SharedTask(asyncio.Event().wait())
    caller = asyncio.create_task(shared.wait())
    await asyncio.sleep(0)
    shared.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_callers_leave_in_time_that_grows_with_their_number() -> None:
    shared = SharedTask(asyncio.Event().wait())
    callers = [asyncio.create_task(shared.wait()) for _ in range(20_000)]
    await asyncio.sleep(0)
    began = time.process_time()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert time.process_time() - began < 2, "with asyncio.shield it takes six times as long"
    shared.task.cancel()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_alarm_that_is_over_is_freed_without_the_garbage_collector(is_cancelled: bool) -> None:
    class Work:
        def __call__(self, done: Callable[[], None]) -> None:
            done()

    over = asyncio.Event()
    work = Work()
    freed = weakref.ref(work)
    gc.disable()
    try:
        alarm = SYSTEM_CLOCK.call_at(0, work, over.set)
        if is_cancelled:
            alarm.cancel()
            over.set()
        del work, alarm
        await over.wait()
        await asyncio.sleep(0)
        assert freed() is None
    finally:
        gc.enable()
