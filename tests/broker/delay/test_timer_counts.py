"""The number of waiting messages while they are counted after a start."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.broker.conftest import StartBroker, small_config
from tests.broker.delayed import send_later
from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.clock import SYSTEM_CLOCK
from cometmq.remoting.codes import RequestCode
from cometmq.store.timer.log import TimerLog
from cometmq.testing import VirtualClock

YEARS_S: Final = 80 * 365 * 86_400


async def waiting(wire: Wire) -> str:
    """The number of waiting messages in the runtime information."""
    body = (await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body
    return str(json.loads(body)["table"]["timerCongestNum"])


async def test_messages_that_are_delivered_during_the_count_do_not_wait(
    tmp_path: Path,
    start_broker: StartBroker,
    connect_to: Callable[[Broker], Any],
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await start_broker(timer_max_delay_sec=YEARS_S)
    wire = await connect_to(first)
    for seconds in (1, 2, YEARS_S):
        await send_later(wire, b"%d" % seconds, seconds)
    await first.stop()
    assert clock.now_ms() + 2_000 < SYSTEM_CLOCK.now_ms()
    may_count = threading.Event()
    count = TimerLog.count_when_opened

    def slow_count(log: TimerLog) -> int:
        assert may_count.wait(30)
        return count(log)

    monkeypatch.setattr(TimerLog, "count_when_opened", slow_count)
    second = Broker(small_config(tmp_path), clock=SYSTEM_CLOCK)
    await second.start()
    try:
        wire = await connect_to(second)
        async with asyncio.timeout(20):
            while len(records(await wire.pull("Later"))) < 2:
                pass
            may_count.set()
            while await waiting(wire) in ("0", "-2"):
                pass
        assert await waiting(wire) == "1"
    finally:
        may_count.set()
        await second.stop()
