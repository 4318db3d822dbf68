"""Damaged files of the timer log: what the log still has comes in its time, once, now and after further starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import StartBroker
from tests.broker.delayed import send_later
from tests.helpers.contents import bodies as all_bodies
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.store.timer.unit import UNIT_BYTES, UNIT_DTYPE
from cometmq.testing import VirtualClock
from cometmq.testing.killed import stop_as_killed

MESSAGES = 12
APART_S = 600
DAMAGED = 3
"""The unit that is changed, of a day that has more: around midnight they are of two days."""


def flip(field: str) -> Callable[[Path], None]:
    """Change one bit of one unit in the middle."""

    def damage(index: Path) -> None:
        fields = UNIT_DTYPE.fields
        assert fields is not None
        data = bytearray(index.read_bytes())
        data[DAMAGED * UNIT_BYTES + fields[field][1]] ^= 16
        index.write_bytes(data)

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no index": Path.unlink,
    "no data": lambda index: index.with_suffix(".data").unlink(),
    "short index": lambda index: os.truncate(index, index.stat().st_size - UNIT_BYTES - 1),
    "short data": lambda index: os.truncate(index.with_suffix(".data"), 500),
    "zeros": lambda index: index.write_bytes(bytes(index.stat().st_size)),
    "garbage": lambda index: index.write_bytes(b"garbage" * 500),
    **{f"another {field}": flip(field) for field in ("due", "serial", "key", "at", "kind", "crc")},
}


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_no_damage_costs_a_message_that_the_log_has(
    start_broker: StartBroker,
    connect_to: Callable[[Broker], Any],
    clock: VirtualClock,
    tmp_path: Path,
    damage: Callable[[Path], object],
    is_killed: bool,
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    for number in range(MESSAGES):
        await send_later(wire, b"%02d" % number, number * APART_S + 1)
    await clock.run_for(3)
    assert all_bodies(first, "Later") == [b"00"]
    store = tmp_path / "store"
    if is_killed:
        await stop_as_killed(first.stop, store)
    else:
        await first.stop()
    for index in (store / "comet" / "timer").glob("*.index"):
        if index.stat().st_size > DAMAGED * UNIT_BYTES:
            damage(index)
            break
    else:
        pytest.fail("the messages are spread over too many days")
    for _ in range(2):
        again = await start_broker()
        await clock.run_for(3)
        assert all_bodies(again, "Later") == [b"00"]
        sizes = sum(path.stat().st_size for path in (store / "comet" / "timer").glob("*.data"))
        await again.stop()
    last = await start_broker()
    await clock.skip(MESSAGES * APART_S)
    await until(lambda: len(all_bodies(last, "Later")) == MESSAGES)
    assert sorted(all_bodies(last, "Later")) == [b"%02d" % number for number in range(MESSAGES)]
    await last.stop()
    assert sizes < MESSAGES * 1_000, "what is there is not written again at each start"
