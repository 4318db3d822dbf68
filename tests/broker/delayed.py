"""Sending delayed messages and looking at what became of them, for the tests of delays and retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.clock import TimerHandle, VirtualClock
from cometmq.message.record import StoredRecord, iter_records
from cometmq.remoting.codes import ResponseCode


class TurnedBackClock(VirtualClock):
    """A virtual clock whose date can be set back; monotonic time goes on as ever."""

    set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_by_ms

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        return super().call_at(when_ms - self.set_by_ms, callback, *args)


async def send_delayed(wire: Wire, body: bytes, level: object, topic: str = "Delayed", **fields: object) -> None:
    """Send one message with a delay level; it must be taken."""
    answer = await wire.send(topic, body, properties=f"UNIQ_KEY\x01{body.decode()}\x02DELAY\x01{level}", **fields)
    assert answer.code == ResponseCode.SUCCESS, answer


def stored(broker: Broker, topic: str = "Delayed", queue_id: int = 0) -> list[StoredRecord]:
    """Everything in one queue, without a pull."""
    queue = broker.store.queue(topic, queue_id)
    found: list[StoredRecord] = []
    at = queue.min_offset()
    while at < queue.max_offset():
        result = broker.store.get_message(queue, at, 1000)
        for chunk in result.chunks:
            found += iter_records(chunk)
        at = result.next_begin_offset
    return found


def bodies(broker: Broker, topic: str = "Delayed", queue_id: int = 0) -> list[bytes]:
    """The bodies in one queue."""
    return [record.body for record in stored(broker, topic, queue_id)]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop work until something is so, at most 60 s of real time."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def pulled(wire: Wire, topic: str = "Delayed") -> list[bytes]:
    """The bodies that a pull from the beginning gets."""
    return [record.body for record in records(await wire.pull(topic))]
