"""A state machine around one broker that is stopped, crashed and started again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.broker.conftest import small_config
from tests.broker.snapshots import copy_store

from cometmq.broker.controller import Broker
from cometmq.store.disk import Disk
from cometmq.testing import VirtualClock

T = TypeVar("T")


class BrokerMachine(RuleBasedStateMachine):
    """One broker with its clock and its disk."""

    def __init__(self, clock: VirtualClock, disk: Disk | None = None) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.base = Path(tempfile.mkdtemp(prefix="cometmq-machine-"))
        self.clock = clock
        self.disk = disk
        self.broker: Broker | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @property
    def running(self) -> Broker:
        assert self.broker is not None
        return self.broker

    async def start(self) -> None:
        self.broker = Broker(small_config(self.base), clock=self.clock, disk=self.disk)
        await self.broker.start()

    async def leave(self) -> None:
        """Get ready for a stop or a crash."""

    @initialize()
    def begin(self) -> None:
        self.run(self.start())

    @rule()
    def stop_and_start(self) -> None:
        async def work() -> None:
            await self.leave()
            await self.running.stop()
            await self.start()

        self.run(work())

    @rule()
    def crash(self) -> None:
        async def work() -> None:
            await self.leave()
            root, left = self.base / "store", self.base / "left"
            copy_store(root, left)
            await self.running.cut_off()
            await self.running.stop()
            shutil.rmtree(root)
            left.rename(root)
            await self.start()

        self.run(work())

    def teardown(self) -> None:
        async def work() -> None:
            await self.leave()
            await self.running.stop()

        if self.broker is not None:
            self.run(work())
        self.loop.close()
        shutil.rmtree(self.base)
