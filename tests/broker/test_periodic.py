"""An alarm rings once at the time that was set last."""

from cometmq.broker.periodic import Alarm
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
