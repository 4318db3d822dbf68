"""The locks of an orderly consumer's queues: taken before reading, renewed, given back (``RebalanceImpl.lock``).

A lock counts from when the request that was granted was sent, so that this side always stops trusting
it before the broker gives it to somebody else: :data:`~cometmq.limits.LOCK_TRUST_SECONDS` here, 60 s there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError
from cometmq.limits import LOCK_TRUST_SECONDS
from cometmq.remoting.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    decode_body,
    encode_body,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.deadline import within

log = logging.getLogger(__name__)

RENEW_S: Final = 20.0
"""Between two renewals of all locks (``rocketmq.client.rebalance.lockInterval``)."""
ASK_AGAIN_S: Final = 1.0
"""Between two requests for locks that others hold, or that failed."""
LOCK_TIMEOUT_S: Final = 3.0
"""For one request; far below what is left of a lock's life when it is renewed."""


class QueueLocks:
    """The locks of one member of a group.

    :param lost: called with a queue whose lock is gone: not renewed in time, or given to somebody else.
    """

    def __init__(self, instance: ClientInstance, group: str, lost: Callable[[MessageQueue], None]) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._group = group
        self._lost = lost
        self._since: dict[MessageQueue, float] = {}
        self._waiting: dict[MessageQueue, asyncio.Future[None]] = {}
        self._troubled: set[str] = set()
        self._wanted = asyncio.Event()
        # One exchange at a time: a broker with several threads may handle a lock and an unlock in the wrong order.
        self._exchange = asyncio.Lock()
        self._task = instance.spawn(self._run())

    def holds(self, queue: MessageQueue) -> bool:
        """Whether the queue is surely nobody else's now; may be asked from any thread."""
        since = self._since.get(queue)
        return since is not None and self._clock.monotonic() - since < LOCK_TRUST_SECONDS

    def held_ms(self, queue: MessageQueue) -> int | None:
        """When the lock was renewed last, ms since 1970; ``None`` when it is not held."""
        since = self._since.get(queue)
        if since is None or not self.holds(queue):
            return None
        return self._clock.now_ms() - round((self._clock.monotonic() - since) * 1000)

    async def acquire(self, queue: MessageQueue) -> None:
        """Wait until the lock is held, however long another member holds it."""
        if self.holds(queue):
            return
        self._since.pop(queue, None)
        waiter = self._waiting[queue] = asyncio.get_running_loop().create_future()
        self._wanted.set()
        try:
            await waiter
        finally:
            if self._waiting.get(queue) is waiter:
                del self._waiting[queue]

    async def release(self, queue: MessageQueue) -> None:
        """Give a lock back; a broker that does not hear it frees the queue when the lock's time is up."""
        async with self._exchange:
            self._since.pop(queue, None)
            await self._unlock(queue.broker_name, [queue])

    async def stop(self) -> None:
        """Renew nothing any more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- asking, again and again ---

    async def _run(self) -> None:
        renew_at = self._clock.monotonic() + RENEW_S
        while True:
            left = renew_at - self._clock.monotonic()
            pause = min(left, ASK_AGAIN_S) if self._waiting else left
            if pause > 0:
                with suppress(TimeoutError):
                    await within(self._clock, pause, self._wanted.wait())
            self._wanted.clear()
            self._drop_late()
            queues = set(self._waiting)
            due = self._clock.monotonic() >= renew_at
            if due:
                queues |= self._since.keys()
            failed = await self._ask(queues)
            if due:
                renew_at = self._clock.monotonic() + (ASK_AGAIN_S if failed else RENEW_S)

    async def _ask(self, queues: Iterable[MessageQueue]) -> bool:
        """Ask the brokers for these locks; whether a broker failed."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues):
            by_broker.setdefault(queue.broker_name, []).append(queue)
        async with self._exchange:
            done = await asyncio.gather(*(self._lock(broker, some) for broker, some in by_broker.items()))
        return not all(done)

    async def _lock(self, broker: str, queues: list[MessageQueue]) -> bool:
        sent_at = self._clock.monotonic()
        try:
            answer = await self._call(RequestCode.LOCK_BATCH_MQ, broker, queues)
            granted = set(decode_body(LockBatchResponseBody, answer).lock_ok_mq_set)
        except CometMQError as error:
            tell = logging.DEBUG if broker in self._troubled else logging.WARNING
            log.log(tell, "locks of %s at %s are neither taken nor renewed: %s", self._group, broker, error)
            self._troubled.add(broker)
            return False
        self._troubled.discard(broker)
        unwanted = []
        for queue in queues:
            waiter = self._waiting.get(queue)
            if queue not in granted:
                if self._since.pop(queue, None) is not None:
                    self._lost(queue)
            elif waiter is not None:
                self._since[queue] = sent_at
                if not waiter.done():
                    waiter.set_result(None)
            elif queue in self._since:
                self._since[queue] = sent_at
            else:
                unwanted.append(queue)
        if unwanted:
            await self._unlock(broker, unwanted)
        return True

    def _drop_late(self) -> None:
        """A lock not renewed in time is lost, even if it is still to be had: others may have had it meanwhile."""
        for queue in [queue for queue in self._since if not self.holds(queue)]:
            del self._since[queue]
            self._lost(queue)

    async def _unlock(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, broker, queues)
        except CometMQError as error:
            log.info("%s was not told that %s lets go of %d queues: %s", broker, self._group, len(queues), error)

    async def _call(self, code: RequestCode, broker: str, queues: list[MessageQueue]) -> bytes:
        asked = LockBatchRequestBody(consumer_group=self._group, client_id=self._instance.client_id, mq_set=queues)
        address = await self._instance.master_of(queues[0])
        doing = f"{code.name} for {len(queues)} queues at {broker}"
        answer = await self._instance.call(
            address, code, None, encode_body(asked), doing=doing, timeout_s=LOCK_TIMEOUT_S
        )
        return answer.body
