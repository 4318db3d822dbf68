"""Sends and reads at the same time, and measures latency from the time each message was due until it is received."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from cometmq.bench.consume import Arrivals, Readers, follow
from cometmq.bench.plan import Plan, Progress
from cometmq.bench.produce import produce
from cometmq.clock import SYSTEM_CLOCK

LAST_SECONDS: Final = 10.0
"""Seconds without a new message after which the missing messages count as lost."""


async def round_trip(plan: Plan, namesrv: str, progress: Progress) -> dict[str, int]:
    """Send a load and read it back; return the numbers of lost, duplicate and foreign messages."""
    sending = Progress()
    async with AsyncExitStack() as stack:
        readers = Readers(plan, namesrv, stack)
        await readers.start()
        arrivals = Arrivals(progress)
        reading = asyncio.create_task(follow(readers, arrivals, await readers.ends()))
        mirror = asyncio.create_task(_mirror(sending, progress))
        try:
            await produce(plan, namesrv, sending, stamped=True)
            progress.begin = sending.begin
            while progress.received < sending.sent and not reading.done():
                arrivals.arrived.clear()
                try:
                    async with asyncio.timeout(LAST_SECONDS):
                        await arrivals.arrived.wait()
                except TimeoutError:
                    break
            progress.end = SYSTEM_CLOCK.monotonic()
            if reading.done():
                reading.result()
        finally:
            for task in (reading, mirror):
                task.cancel()
            await asyncio.gather(reading, mirror, return_exceptions=True)
    progress.sent, progress.failed, progress.first_failure = sending.sent, sending.failed, sending.first_failure
    progress.body_bytes = progress.received * plan.size
    lost = max(0, sending.sent - progress.received)
    return {"lost": lost, "duplicates": arrivals.duplicates, "foreign": arrivals.foreign}


async def _mirror(sending: Progress, shown: Progress) -> None:
    """Show the sender's counters next to the reader's."""
    while True:
        shown.sent, shown.failed, shown.body_bytes = sending.sent, sending.failed, sending.body_bytes
        shown.begin = sending.begin
        await asyncio.sleep(0.1)
