"""A crash at every write of a broker with transactions: nothing acknowledged is lost, nothing is delivered twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.broker.transacting import (
    COMMIT,
    ROLLBACK,
    Half,
    delivered,
    end,
    join,
    next_checks,
    round_of_checks,
    send_half,
)
from tests.broker.wire import Wire
from tests.helpers.contents import stored

from cometmq.broker.controller import Broker
from cometmq.broker.limits import TRANSACTION_PROGRESS_SECONDS
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.store.disk import Disk
from cometmq.testing import VirtualClock, settle


class DyingDisk(Disk):
    """Takes so many writes; of the next one only a part gets onto the disk, and nothing after it."""

    def __init__(self, writes: int, part: float) -> None:
        self.left = writes
        self.part = part
        self.dead = False

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        if self.left > 0:
            self.left -= 1
            super().write(fd, data, at)
            return
        if not self.dead:
            self.dead = True
            super().write(fd, bytes(data)[: int(len(data) * self.part)], at)
        raise OSError(5, os.strerror(5))


@contextlib.asynccontextmanager
async def running(root: Path, clock: VirtualClock, disk: Disk | None = None) -> AsyncIterator[tuple[Broker, Wire]]:
    config = small_config(root, transaction_check_interval=86_400_000, transaction_check_max=3)
    broker = Broker(config, clock=clock, disk=disk)
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
    try:
        yield broker, wire
    finally:
        await wire.close()
        await broker.stop()


class Life:
    """The actions of a producer and the answers to them, until the disk died."""

    def __init__(self) -> None:
        self.places: dict[str, list[Half]] = {}
        self.ended: dict[str, int] = {}
        """Told to the producer: stored."""
        self.ending: dict[str, int] = {}
        """Asked for, but no success was answered."""

    async def live(self, broker: Broker, wire: Wire, clock: VirtualClock) -> None:
        """Send, end, check, in an order that makes every kind of record follow every other; AssertionError: refused."""
        await join(wire)
        for number in range(6):
            await self.send(wire, f"K{number}")
        await self.end(wire, "K0", COMMIT)
        await self.end(wire, "K1", ROLLBACK)
        for _ in range(2):
            clock.advance(TRANSACTION_PROGRESS_SECONDS + 2)
            await join(wire)
            await round_of_checks(broker)
            for half, _ in await next_checks(wire):
                self.places[half.key].append(half)
            broker.offsets.save()
        await self.end(wire, "K2", COMMIT)
        await self.end(wire, "K3", ROLLBACK)
        await self.send(wire, "K6")
        await self.end(wire, "K6", COMMIT)
        for _ in range(2):
            clock.advance(TRANSACTION_PROGRESS_SECONDS + 2)
            await round_of_checks(broker)

    async def send(self, wire: Wire, key: str) -> None:
        self.places[key] = [await send_half(wire, key, key.encode())]

    async def end(self, wire: Wire, key: str, how: int) -> None:
        self.ending[key] = how
        assert (await end(wire, self.places[key][0], how)).code == 0
        self.ended[key] = self.ending.pop(key)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.55, 0.95, 1.0])
async def test_a_crash_at_every_write(tmp_path: Path, part: float) -> None:
    writes = 0
    while await survives(tmp_path / str(writes), writes, part):
        shutil.rmtree(tmp_path / str(writes))
        writes += 1
    assert writes > 15


async def survives(root: Path, writes: int, part: float) -> bool:
    """Let the disk die at one write and see what is left; False when the life ended before that."""
    clock = VirtualClock()
    disk = DyingDisk(writes, part)
    life = Life()
    before = root / "before"
    async with running(before, clock, disk) as (broker, wire):
        with contextlib.suppress(AssertionError, ConnectionError, KeyError):
            await life.live(broker, wire, clock)
        died = disk.dead
        await broker.cut_off()
        await settle()  # files of tables are written in threads
        shutil.copytree(before, root / "after")
    async with running(root / "after", clock) as (broker, wire):
        await resolve(life, broker, wire, clock)
        once = delivered(broker)
    async with running(root / "after", clock) as (broker, wire):
        assert delivered(broker) == once
        assert broker.transactions.open.count == 0
    return died


async def resolve(life: Life, broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    """Everything that is open is checked and committed; then every place ever heard of is committed once more."""
    lost = sorted(key for key, how in life.ended.items() if how == COMMIT and key.encode() not in delivered(broker))
    assert not lost, "what was answered is there after the crash"
    await join(wire)
    clock.advance(10)
    await round_of_checks(broker)
    asked = await next_checks(wire)
    keys = [half.key for half, _ in asked]
    assert len(keys) == len(set(keys)), "nobody is asked twice about one transaction"
    assert not set(keys) & set(life.ended), "what has ended is not asked about"
    given_up = {record.body for record in stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)}
    for key in life.places.keys() - life.ended.keys() - life.ending.keys():
        assert key in keys or key.encode() in given_up, "what is open is not forgotten"
    for half, _ in asked:
        assert (await end(wire, half, COMMIT)).code == 0
    for places in life.places.values():
        for half in places:
            await end(wire, half, COMMIT)
    bodies = delivered(broker)
    assert len(bodies) == len(set(bodies)), "nothing is delivered twice"
    rolled_back = {key.encode() for key, how in life.ended.items() if how == ROLLBACK}
    assert not rolled_back & set(bodies)
    committed = {key.encode() for key in keys} | {key.encode() for key, how in life.ended.items() if how == COMMIT}
    assert committed <= set(bodies)
