"""Reading a queue from a broker whose answers lead nowhere."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cometmq.client.consumer.config import ReadConfig
from cometmq.client.consumer.pulling import Chunk, Puller, PullStatus, QueueReader, RawPull
from cometmq.client.outages import BrokerOutages
from cometmq.remoting.bodies import MessageQueue, SubscriptionData
from cometmq.testing import VirtualClock


class _Puller:
    """Gives the same answer to every pull."""

    def __init__(self, answer: RawPull) -> None:
        self.answer = answer
        self.pulls = 0

    async def pull(self, *_args: Any, **_fields: Any) -> RawPull:
        self.pulls += 1
        await asyncio.sleep(0)
        return self.answer


class _Sink:
    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    async def room(self) -> None:
        """There is always room."""

    def take(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


@pytest.mark.parametrize(
    ("status", "next_offset"),
    [
        (PullStatus.FOUND, 5),
        (PullStatus.FOUND, 4),
        (PullStatus.NO_MATCHED_MSG, 5),
        (PullStatus.OFFSET_ILLEGAL, 5),
        (PullStatus.OFFSET_ILLEGAL, -(2**63)),
        (PullStatus.NO_NEW_MSG, -1),
    ],
)
async def test_answers_that_lead_nowhere_are_not_asked_for_again_at_once(status: PullStatus, next_offset: int) -> None:
    puller, sink, clock = _Puller(RawPull(status, next_offset, 0, 9, b"")), _Sink(), VirtualClock()

    async def start() -> int:
        return 5

    reading = asyncio.create_task(
        QueueReader(cast(Puller, puller), ReadConfig(), clock, BrokerOutages(clock)).read(
            MessageQueue("T", "b", 0), SubscriptionData(topic="T"), start, sink
        )
    )
    for _ in range(100):
        await asyncio.sleep(0)
    assert puller.pulls == 1
    await clock.run_for(10 * ReadConfig().pull_error_delay_s)
    assert 5 <= puller.pulls <= 12
    assert not sink.chunks
    reading.cancel()
    await asyncio.wait([reading])
