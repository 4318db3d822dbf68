"""An alarm rings once at the time that was set last; periodic work is done at an interval until it is stopped."""

import asyncio
import gc
import math

import pytest

from cometmq.periodic import Alarm, Deadline, Deadlines, Periodic
from cometmq.testing import VirtualClock


async def test_an_alarm_rings_once_and_may_be_set_again() -> None:
    clock = VirtualClock(1_000)
    rung: list[int] = []
    alarm = Alarm(lambda: rung.append(clock.now_ms()), clock=clock)
    set_before = alarm.is_set
    alarm.at(3_000)
    set_then = alarm.is_set
    await clock.run_for(5)
    assert rung == [3_000]
    assert (set_before, set_then, alarm.is_set) == (False, True, False)
    alarm.after(2)
    await clock.run_for(5)
    assert rung == [3_000, 8_000]


async def test_a_new_time_replaces_the_one_before() -> None:
    clock = VirtualClock(0)
    rung: list[int] = []
    alarm = Alarm(lambda: rung.append(clock.now_ms()), clock=clock)
    alarm.at(1_000)
    alarm.after(4)
    await clock.run_for(10)
    assert rung == [4_000]


async def test_work_may_set_its_own_alarm() -> None:
    clock = VirtualClock(0)
    rung: list[int] = []

    def work() -> None:
        rung.append(clock.now_ms())
        if len(rung) < 3:
            alarm.after(1)

    alarm = Alarm(work, clock=clock)
    alarm.after(1)
    await clock.run_for(10)
    assert rung == [1_000, 2_000, 3_000]


async def test_an_alarm_that_is_cancelled_may_be_set_again_and_one_that_is_closed_never_rings() -> None:
    clock = VirtualClock(0)
    rung: list[int] = []
    alarm = Alarm(lambda: rung.append(clock.now_ms()), clock=clock)
    alarm.after(1)
    alarm.cancel()
    await clock.run_for(5)
    assert rung == []
    alarm.after(1)
    alarm.close()
    alarm.after(1)
    alarm.at(7_000)
    await clock.run_for(10)
    assert rung == []
    assert not alarm.is_set


async def test_periodic_work_is_done_at_its_interval_until_it_is_stopped() -> None:
    clock = VirtualClock(0)
    done: list[int] = []
    periodic = Periodic("counting", 10, lambda: done.append(clock.now_ms()), clock=clock, first_s=3)
    periodic.start()
    await clock.run_for(25)
    await periodic.stop()
    await clock.run_for(60)
    assert done == [3_000, 13_000, 23_000]


@pytest.mark.parametrize("is_async", [False, True])
async def test_periodic_work_that_fails_is_logged_and_done_again(
    caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    clock = VirtualClock(0)
    tried: list[int] = []

    def fail() -> None:
        tried.append(clock.now_ms())
        raise OSError("the disk is full")

    async def fail_later() -> None:
        fail()

    periodic = Periodic("saving the table", 5, fail_later if is_async else fail, clock=clock)
    periodic.start()
    await clock.run_for(11)
    await periodic.stop()
    assert tried == [5_000, 10_000]
    assert [record.message for record in caplog.records] == ["saving the table failed"] * 2
    assert "the disk is full" in caplog.text


async def test_a_call_in_progress_delays_the_next_one_and_a_stop_waits_for_it_or_cancels_it() -> None:
    clock = VirtualClock(0)
    ended: list[str] = []

    async def work() -> None:
        try:
            await clock.sleep(30)
            ended.append("done")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    periodic = Periodic("working", 1, work, clock=clock)
    periodic.start()
    await clock.run_for(32.5)  # the second call begins at 32 s
    stopping = asyncio.create_task(periodic.stop())
    await clock.run_for(10)
    assert (ended, stopping.done()) == (["done"], False)
    await clock.run_for(20)
    await stopping
    periodic.start()
    await clock.run_for(2)
    await periodic.stop(cancels=True)
    await clock.run_for(60)
    assert ended == ["done", "done", "cancelled"]


async def test_periodic_work_may_close_itself_and_be_started_again() -> None:
    clock = VirtualClock(0)
    done: list[int] = []

    def work() -> None:
        done.append(clock.now_ms())
        periodic.close()

    periodic = Periodic("working", 1, work, clock=clock)
    periodic.start()
    await clock.run_for(10)
    periodic.start()
    await clock.run_for(10)
    assert done == [1_000, 11_000]


def test_deadlines_share_one_timer_and_call_in_the_order_of_their_times() -> None:
    clock = VirtualClock()
    called: list[tuple[str, float]] = []
    deadlines = Deadlines(clock=clock)

    def call(name: str) -> None:
        called.append((name, clock.monotonic()))

    deadlines.after(3, call, "c")
    deadlines.after(1, call, "a")
    deadlines.after(2, call, "b").cancel()
    deadlines.after(3, call, "d")
    clock.advance(1)
    assert called == [("a", 1)]
    deadlines.after(0.5, call, "e")
    clock.advance(10)
    assert called == [("a", 1), ("e", 1.5), ("c", 3), ("d", 3)]
    assert clock.next_in() == math.inf


def test_calls_that_are_due_a_little_later_are_made_together() -> None:
    clock = VirtualClock()
    called: list[float] = []
    deadlines = Deadlines(clock=clock, early_s=0.5)
    for seconds in (1.0, 1.5, 1.6):
        deadlines.after(seconds, lambda: called.append(clock.monotonic()))
    clock.advance(1.55)
    assert called == [1, 1]
    clock.advance(1)
    assert called == [1, 1, 1.6]


def test_a_call_may_cancel_others_or_fail(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    called: list[str] = []
    deadlines = Deadlines(clock=clock)

    def fail() -> None:
        last.cancel()
        first.cancel()
        raise ValueError("no")

    first = deadlines.after(1, fail)
    last = deadlines.after(1, called.append, "cancelled")
    deadlines.after(1, called.append, "other")
    clock.advance(2)
    assert called == ["other"]
    assert "ValueError: no" in caplog.text


async def test_a_thousand_calls_at_once_take_several_rounds() -> None:
    clock = VirtualClock()
    called: list[int] = []
    deadlines = Deadlines(clock=clock)
    for number in range(1_000):
        deadlines.after(1, called.append, number)
    at_once = 0
    while await clock.step(1):
        at_once = at_once or len(called)
    assert called == list(range(1_000))
    assert at_once < 100


def test_cancelled_deadlines_do_not_stay_in_memory() -> None:
    deadlines = Deadlines(clock=VirtualClock())
    before = _count_deadlines()
    for _ in range(1_000):
        deadlines.after(60, pytest.fail, "it is cancelled").cancel()
    assert _count_deadlines() - before < 100


def _count_deadlines() -> int:
    return sum(isinstance(found, Deadline) for found in gc.get_objects())
