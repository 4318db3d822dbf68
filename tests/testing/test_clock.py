"""Time: real, movable, and the only source of it."""

from __future__ import annotations

import ast
import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

import cometmq
from cometmq.clock import SYSTEM_CLOCK
from cometmq.remoting.connections.pause import SocketPause
from cometmq.testing import VirtualClock
from cometmq.testing.idle import NeverIdleError, busy_pool_threads, is_idle, settle

HOUR_S = 3600.0
DAY_MS = 86_400_000


# --- timers and alarms ------------------------------------------------------------------------
def test_timers_and_alarms_fire_in_the_order_of_time() -> None:
    clock = VirtualClock(start_ms=1_000)
    fired: list[str] = []
    clock.call_at(3_000, fired.append, "alarm at 3 s")
    clock.call_later(2.0, fired.append, "timer after 2 s")
    clock.call_later(1.0, fired.append, "timer after 1 s")
    clock.call_at(2_500, fired.append, "called off").cancel()
    clock.advance(1.5)
    assert fired == ["timer after 1 s"]
    clock.advance(0.5)
    assert fired == ["timer after 1 s", "alarm at 3 s", "timer after 2 s"]  # the one moment: as they were set


@given(st.lists(st.integers(0, 100_000)), st.lists(st.integers(1, 40_000), min_size=1))
def test_an_alarm_fires_in_the_move_that_reaches_its_millisecond(alarms: list[int], moves: list[int]) -> None:
    clock = VirtualClock(start_ms=0)
    fired: list[tuple[int, int]] = []
    for when_ms in alarms:
        clock.call_at(when_ms, lambda when_ms=when_ms: fired.append((when_ms, clock.now_ms())))
    for move_ms in moves:
        clock.advance(move_ms / 1000)
        assert len(fired) == sum(when_ms <= clock.now_ms() for when_ms in alarms)
    assert all(when_ms <= at_ms for when_ms, at_ms in fired)
    assert [when_ms for when_ms, _ in fired] == sorted(when_ms for when_ms, _ in fired)


async def test_skipping_passes_over_cancelled_alarms() -> None:
    clock = VirtualClock(start_ms=0)
    seen: list[str] = []
    alarm = clock.call_at(10, seen.append, "cancelled")
    clock.call_at(20, seen.append, "set")
    alarm.cancel()
    await clock.skip(1)
    assert seen == ["set"]


async def test_skipping_a_month_fires_alarms_and_leaves_timers_where_they_were() -> None:
    clock = VirtualClock(start_ms=0)
    seen: list[tuple[str, int, float]] = []

    def note(what: str) -> None:
        seen.append((what, clock.now_ms(), clock.monotonic()))

    clock.call_later(30.0, note, "heartbeat")
    clock.call_at(10 * DAY_MS, lambda: clock.call_at(20 * DAY_MS, note, "second delay"))
    clock.call_at(31 * DAY_MS, note, "too late")
    await clock.skip(30 * 24 * HOUR_S)
    assert seen == [("second delay", 20 * DAY_MS, 0.0)]
    assert clock.now_ms() == 30 * DAY_MS
    await clock.run_for(30)
    assert seen[1:] == [("heartbeat", 30 * DAY_MS + 30_000, 30.0)]


async def test_tasks_that_sleep_again_keep_pace_with_the_clock() -> None:
    clock = VirtualClock()
    woken: list[float] = []

    async def sleeper() -> None:
        while True:
            await clock.sleep(0.5)
            for _ in range(20):  # as many rounds of the loop as it likes
                await asyncio.sleep(0)
            woken.append(clock.monotonic())

    task = asyncio.create_task(sleeper())
    await clock.run_for(2.2)
    assert woken == [0.5, 1.0, 1.5, 2.0]
    assert clock.monotonic() == 2.2
    task.cancel()


async def test_time_runs_until_work_is_done() -> None:
    clock = VirtualClock()

    async def work() -> str:
        await clock.sleep(HOUR_S)
        return "done"

    assert await clock.run_until(work(), 2 * HOUR_S) == "done"
    assert clock.monotonic() == HOUR_S
    with pytest.raises(TimeoutError, match="longer than 60 s"):
        await clock.run_until(work(), 60)
    assert (clock.monotonic(), clock.next_in()) == (HOUR_S + 60, float("inf")), "it was called off"


async def test_the_next_timer_and_the_next_alarm_are_known() -> None:
    clock = VirtualClock(start_ms=0)
    assert (clock.next_in(), clock.next_alarm_in()) == (float("inf"), float("inf"))
    clock.call_at(5_000, print)
    clock.call_later(2.0, print).cancel()
    assert (round(clock.next_in(), 2), round(clock.next_alarm_in(), 2)) == (5.0, 5.0)
    clock.call_later(3.0, print)
    assert clock.next_in() == 3.0
    await clock.skip(4)
    assert (round(clock.next_in(), 2), round(clock.next_alarm_in(), 2)) == (1.0, 1.0)
    clock.advance(1)
    assert (clock.next_in(), clock.next_alarm_in()) == (2.0, float("inf"))


async def test_an_alarm_of_the_real_clock_fires_at_its_date() -> None:
    fired: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    when_ms = SYSTEM_CLOCK.now_ms() + 30
    SYSTEM_CLOCK.call_at(when_ms, lambda: fired.set_result(SYSTEM_CLOCK.now_ms()))
    never = SYSTEM_CLOCK.call_at(when_ms - 1, pytest.fail, "it was called off")
    never.cancel()
    assert await asyncio.wait_for(fired, 60) >= when_ms


async def test_an_alarm_of_the_real_clock_follows_a_date_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.clock.ALARM_LOOK_SECONDS", 0.01)
    date_ms = 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: date_ms * 1_000_000)
    fired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    SYSTEM_CLOCK.call_at(date_ms + DAY_MS, fired.set_result, None)
    date_ms += DAY_MS
    await asyncio.wait_for(fired, 60)


# --- coming to rest ---------------------------------------------------------------------------
async def test_settling_waits_for_chains_of_callbacks_sockets_and_threads() -> None:
    steps: list[str] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])

    async def work() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        steps.append("turns")
        for _ in range(20):
            writer.write(b"there and back\n")
            await reader.readline()
        steps.append("socket")
        with ThreadPoolExecutor(1) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, time.sleep, 0.05)
        await asyncio.to_thread(time.sleep, 0.05)
        steps.append("thread")

    task = asyncio.create_task(work())
    assert not is_idle()
    await settle()
    assert steps == ["turns", "socket", "thread"]
    assert is_idle()
    assert not busy_pool_threads()
    await task
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    await settle()


async def test_settling_waits_for_work_that_a_waiting_thread_was_given() -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        await loop.run_in_executor(pool, time.sleep, 0)
        for _ in range(200):  # Python 3.13 and later pass such work on without the queue, so that chance decides
            await settle()
            work = loop.run_in_executor(pool, time.sleep, 0)
            await settle()
            assert work.done()


async def test_time_stands_still_while_the_sockets_of_a_server_that_stops_have_their_pause() -> None:
    clock = VirtualClock()
    pause = asyncio.create_task(SocketPause.wait())
    await asyncio.sleep(0)
    assert not is_idle()
    await clock.run_for(1)
    assert pause.done()
    assert not SocketPause.under_way


async def test_two_that_settle_at_once_do_not_keep_each_other_awake() -> None:
    clock = VirtualClock()
    await asyncio.gather(settle(), settle(), clock.run_for(1), clock.run_for(2))


async def test_what_never_rests_is_named() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    task = asyncio.create_task(spin(), name="the spinner")
    with pytest.raises(NeverIdleError, match=r"the spinner.*asyncio\.sleep\(0\)"):
        await settle(limit_s=0.05)
    task.cancel()
    with ThreadPoolExecutor(1, thread_name_prefix="slow") as pool:
        goes_on = threading.Event()
        pool.submit(goes_on.wait)
        with pytest.raises(NeverIdleError, match=r"slow_0 is at .*:\d+"):
            await settle(limit_s=0.05)
        goes_on.set()


def test_a_loop_that_cannot_be_asked_is_refused() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(NeverIdleError, match="uvloop"):
        runner.run(VirtualClock().run_for(1))


# --- nobody asks anybody else -----------------------------------------------------------------
SOURCE = Path(cometmq.__file__).parent
TIMES = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "localtime"},
    "asyncio": {"sleep", "wait_for", "timeout", "timeout_at"},
    "datetime": {"now", "utcnow", "today"},
    "loop": {"time", "call_later", "call_at"},
}
"""Attributes by the name that they are taken from; ``loop`` stands for any name that ends so."""

REAL_TIME = {
    "broker/replication/ha_service.py": "gives slaves in other processes time to catch up when it stops",
    "clock.py": "is the clock",
    "client/instance.py": "makes names unique by it",
    "testing/idle.py": "gives up, in real seconds, on a loop that does not become idle",
    "remoting/tls/own_authority.py": "dates certificates, which other programs compare with the real date",
    "remoting/connections/pause.py": "gives the system's sockets a moment when a server stops",
    "testing/stall.py": "notices, in real seconds, that nobody moves the clock",
    "store/recovery/known_files.py": "compares it with the times that the file system gives to changes",
    "testing/processes.py": "waits for processes, whose time cannot be moved",
}
YIELDS = ("asyncio.sleep(0)", "time.sleep(0)")
"""Give way to others for a turn: take no time."""


def real_time_used(path: Path) -> list[str]:
    found = []
    nodes = list(ast.walk(ast.parse(path.read_text())))
    yields = {id(node.func) for node in nodes if isinstance(node, ast.Call) and ast.unparse(node) in YIELDS}
    for node in nodes:
        if not isinstance(node, ast.Attribute) or id(node) in yields:
            continue
        owner = ast.unparse(node.value).rsplit(".", 1)[-1]
        owner = "loop" if owner.endswith(("loop", "loop()")) else owner
        if node.attr in TIMES.get(owner, ()):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize(
    "room", ["broker", "namesrv", "client", "remoting", "store", "filter", "message", "testing", "."]
)
def test_time_comes_from_the_clock_only(room: str) -> None:
    modules = (SOURCE / room).glob("*.py" if room == "." else "**/*.py")
    used = {str(path.relative_to(SOURCE)): real_time_used(path) for path in sorted(modules)}
    assert {name: times for name, times in used.items() if times and name not in REAL_TIME} == {}


def test_the_check_of_the_clock_finds_what_it_looks_for(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "import time, asyncio, datetime\n"
        "async def f(self, clock):\n"
        "    time.monotonic(); datetime.datetime.now(); self._loop.call_later(1, f)\n"
        "    asyncio.get_running_loop().time(); await asyncio.sleep(1)\n"
        "    await asyncio.sleep(0); clock.call_later(1, f); clock.monotonic(); await clock.sleep(1)\n"
    )
    assert len(real_time_used(module)) == 5
    assert {name for name in REAL_TIME if not real_time_used(SOURCE / name)} == set(), "allowed and not needed"


@given(moves=st.lists(st.floats(0, 3), min_size=1, max_size=8), delays_ms=st.lists(st.integers(0, 4000), min_size=1))
def test_an_alarm_has_fired_exactly_when_the_date_is_there(moves: list[float], delays_ms: list[int]) -> None:
    clock = VirtualClock()
    fired: set[int] = set()
    for move in moves:
        clock.advance(move)
        now_ms = clock.now_ms()
        for delay_ms in delays_ms:
            clock.call_at(now_ms + delay_ms, fired.add, now_ms + delay_ms)
        clock.advance(0.002)
        known = {now_ms + delay_ms for delay_ms in delays_ms}
        assert {when for when in known if when <= clock.now_ms()} == fired & known
