"""Finds out when a broker that did not answer answers again (5.x: ``startDetectorEnable``)."""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.client.fault import LatencyFault
from cometmq.client.instance import ClientInstance

MIN_INTERVAL_S: Final = 0.05
"""However short the interval asked for: a broker that is away is not asked in a busy loop."""


class ReachabilityDetector:
    """Asks the unreachable brokers of one producer now and then; there is a task only while there are any.

    :param interval_s: seconds between two rounds.
    :param timeout_s: seconds that a broker has to answer.
    """

    def __init__(self, instance: ClientInstance, fault: LatencyFault, interval_s: float, timeout_s: float) -> None:
        self._instance = instance
        self._fault = fault
        self._interval_s = max(interval_s, MIN_INTERVAL_S)
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None

    def watch(self, broker_name: str) -> None:
        """Leave a broker alone until it answers."""
        self._fault.note_unreachable(broker_name)
        if self._task is None or self._task.done():
            self._task = self._instance.spawn(self._run())

    async def _run(self) -> None:
        while self._fault.unreachable:
            await self._instance.clock.sleep(self._interval_s)
            await asyncio.gather(*(self._ask(name) for name in sorted(self._fault.unreachable)))

    async def _ask(self, broker_name: str) -> None:
        routes = self._instance.routes
        address = routes.master(broker_name)
        if address is None or not await self._instance.is_answering(address, self._timeout_s):
            return
        if not routes.can_write_to(broker_name):
            await routes.refresh_all()  # it was gone so long that the nameservers had forgotten it
        if routes.can_write_to(broker_name):
            self._fault.note_reachable(broker_name)
