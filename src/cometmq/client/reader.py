"""Reads one queue ahead of its consumer: pull after pull, as long as there is room (``PullMessageService``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from cometmq.client.consumer_config import ReadConfig
from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.pulling import Puller, PullStatus, RawPull, messages_of
from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import MessageQueue, SubscriptionData

log = logging.getLogger(__name__)

LASTING_FAILURES: Final = 3
"""Refusals of a broker in a row that do not pass by themselves."""


class Trouble:
    """Tells once that a queue cannot be read, and once that it can be again, however often it is tried."""

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._failures = 0
        self._told = False

    def seen(self, error: CometMQError, again_in_s: float) -> None:
        """Reading failed: one warning, the rest are details for debugging.

        What a broker answers may pass by itself (it does not know the subscription yet), so that counts later.
        """
        self._failures += 1
        tell = not self._told and (self._failures >= LASTING_FAILURES or not isinstance(error, BrokerError))
        text = "cannot read %s, trying again every %g s: %s"
        log.log(logging.WARNING if tell else logging.DEBUG, text, self._queue, again_in_s, error)
        self._told = self._told or tell

    def over(self, offset: int) -> None:
        """Reading goes on."""
        if self._told:
            log.info("reading %s again, from offset %d", self._queue, offset)
        self._failures, self._told = 0, False


class Chunk(msgspec.Struct):
    """What one pull brought: maybe no message, but always a place to go on."""

    messages: list[MessageExt]
    next_offset: int
    size_bytes: int


class Budget:
    """Bytes that all queues of one consumer may hold together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for consumption now."""
        return self._held

    def take(self, size_bytes: int) -> None:
        """Count bytes in."""
        self._held += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes out."""
        self._held -= size_bytes
        if self._waiters and self._held < self._limit:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def room(self) -> None:
        """Wait until less than the limit is held."""
        while self._held >= self._limit:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class Sink(Protocol):
    """Where a reader leaves its chunks."""

    async def room(self) -> None:
        """Wait until more may come."""

    def take(self, chunk: Chunk) -> None:
        """Take a chunk; called in the order of the queue."""


async def read_queue(
    queue: MessageQueue,
    start: Callable[[], Awaitable[int]],
    puller: Puller,
    wanted: SubscriptionData,
    config: ReadConfig,
    clock: Clock,
    sink: Sink,
    *,
    lite: bool = False,
) -> None:
    """Read ``queue`` for ever, until cancelled; failures are logged and tried again.

    ``start`` finds the first offset. The subscription goes with every pull, so that a broker which has
    just been restarted needs no heartbeat first.
    """
    trouble = Trouble(queue)
    offset = await _begin(start, config, clock, trouble)
    log.info("reading %s from offset %d", queue, offset)
    while True:
        await sink.room()
        try:
            pulled = await puller.pull(
                queue,
                offset,
                config.pull_batch_size,
                wanted,
                wait_s=config.pull_wait_s,
                lite=lite,
            )
            _check_progress(pulled, offset)
            messages = messages_of(pulled, queue, wanted)
        except CometMQError as error:
            trouble.seen(error, config.pull_error_delay_s)
            await clock.sleep(config.pull_error_delay_s)
            continue
        trouble.over(offset)
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            log.warning("%s has no offset %d; going on at %d", queue, offset, pulled.next_offset)
        if messages or pulled.next_offset != offset:
            offset = pulled.next_offset
            sink.take(Chunk(messages, offset, len(pulled.body)))
        if config.pull_interval_s:
            await clock.sleep(config.pull_interval_s)


def _check_progress(pulled: RawPull, offset: int) -> None:
    """See that an answer leads on; one that does not would be asked for again at once, for ever.

    :raises ClientError: it leads back to where the pull began, or before it.
    """
    match pulled.status:
        case PullStatus.FOUND | PullStatus.NO_MATCHED_MSG:
            leads_on = pulled.next_offset > offset
        case PullStatus.OFFSET_ILLEGAL:
            leads_on = pulled.next_offset != offset and pulled.next_offset >= 0
        case PullStatus.NO_NEW_MSG:
            leads_on = pulled.next_offset >= 0
    if not leads_on:
        raise ClientError(
            f"the broker's answer ({pulled.status.value}) to a pull from offset {offset} says to go on at "
            f"{pulled.next_offset}",
            next_step="look at the broker's log: its queue may be damaged",
        )


async def _begin(start: Callable[[], Awaitable[int]], config: ReadConfig, clock: Clock, trouble: Trouble) -> int:
    while True:
        try:
            return await start()
        except CometMQError as error:
            trouble.seen(error, config.pull_error_delay_s)
            await clock.sleep(config.pull_error_delay_s)
