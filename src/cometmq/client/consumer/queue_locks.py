"""The locks on an orderly consumer's queues (``RebalanceImpl.lock``).

Theory of operation. A broker grants the lock of a queue to one client of a group for 60 s. Here a lock is *waiting*
(in ``_waiting``), *held* (in ``_since``), or neither, which is *free*:

=======  ================================================  =======  =================================================
state    event                                             next     action
=======  ================================================  =======  =================================================
free     ``acquire``                                       waiting  the broker is asked every second
waiting  it is granted                                     held     ``acquire`` returns; it is renewed every 20 s
waiting  another member has it, or no answer               waiting
waiting  ``acquire`` is cancelled                          free     a later grant is unlocked
held     it is renewed                                     held
held     the broker does not renew it                      free     ``lost`` is called
held     it was not renewed in time                        free     ``lost`` is called, although it may be free there
held     ``release``                                       free     the broker is asked to unlock it
=======  ================================================  =======  =================================================

Invariant: this side trusts a lock for :data:`~cometmq.limits.LOCK_TRUST_SECONDS` from the time at which the granted
request was *sent*, so it stops trusting the lock before the broker can grant the lock to another client, however long
the answer took. Requests to a broker are sent one at a time, since a broker with several threads may handle a lock and
an unlock in the wrong order; requests to different brokers are independent. Fault model: a broker that does not answer
neither grants nor renews a lock; a member that crashes or is paused keeps other members out for at most 60 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from cometmq.client.background import Spawn
from cometmq.client.instance import ClientInstance
from cometmq.clock import wait_for
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

log = logging.getLogger(__name__)

RENEW_S: Final = 20.0
"""Seconds between two renewals of all locks (``rocketmq.client.rebalance.lockInterval``)."""
ASK_AGAIN_S: Final = 1.0
"""Seconds until a lock is requested again because another member holds it or the request failed."""
LOCK_TIMEOUT_S: Final = 3.0
"""Time limit for a lock request, well below the remaining lifetime of a lock that is being renewed."""


class _Broker:
    """Sends lock requests to one broker, independently of other brokers."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.exchange = asyncio.Lock()
        self.troubled = False
        self.task: asyncio.Task[None] | None = None


class QueueLocks:
    """The locks held by one member of a group.

    :param lost: called with a queue whose lock is lost.
    :param spawn: runs background work until the consumer ends.
    """

    def __init__(
        self, instance: ClientInstance, group: str, lost: Callable[[MessageQueue], None], spawn: Spawn
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._group = group
        self._lost = lost
        self._since: dict[MessageQueue, float] = {}
        self._waiting: dict[MessageQueue, asyncio.Future[None]] = {}
        self._spawn = spawn
        self._brokers: dict[str, _Broker] = {}

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether the lock is held and trusted; can be called from any thread."""
        since = self._since.get(queue)
        return since is not None and self._clock.monotonic() - since < LOCK_TRUST_SECONDS

    def held_ms(self, queue: MessageQueue) -> int | None:
        """Return the time of the last renewal in milliseconds since 1970, or ``None`` if the lock is not held."""
        since = self._since.get(queue)
        if since is None or not self.holds(queue):
            return None
        return self._clock.now_ms() - round((self._clock.monotonic() - since) * 1000)

    async def acquire(self, queue: MessageQueue) -> None:
        """Wait until this member holds the lock, no matter how long another member holds it."""
        if self.holds(queue):
            return
        self._since.pop(queue, None)
        waiter = self._waiting[queue] = asyncio.get_running_loop().create_future()
        self._broker(queue.broker_name).wanted.set()
        try:
            await waiter
        finally:
            if self._waiting.get(queue) is waiter:
                del self._waiting[queue]

    async def release(self, queue: MessageQueue) -> None:
        """Unlock a queue. If the request does not reach the broker, the lock expires."""
        async with self._broker(queue.broker_name).exchange:
            self._since.pop(queue, None)
            await self._unlock(queue.broker_name, [queue])

    async def stop(self) -> None:
        """Stop renewing locks."""
        tasks = [broker.task for broker in self._brokers.values() if broker.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- requests ---

    def _broker(self, name: str) -> _Broker:
        broker = self._brokers.get(name)
        if broker is None:
            broker = self._brokers[name] = _Broker()
            broker.task = self._spawn(self._run(name, broker), name=f"locks at {name}")
        return broker

    async def _run(self, name: str, broker: _Broker) -> None:
        renew_at = self._clock.monotonic() + RENEW_S
        while True:
            left = renew_at - self._clock.monotonic()
            pause = min(left, ASK_AGAIN_S) if any(self._of(name, self._waiting)) else left
            if pause > 0:
                with suppress(TimeoutError):
                    await wait_for(self._clock, pause, broker.wanted.wait())
            broker.wanted.clear()
            self._drop_late(name)
            queues = set(self._of(name, self._waiting))
            due = self._clock.monotonic() >= renew_at
            if due:
                queues.update(self._of(name, self._since))
            failed = False
            if queues:
                async with broker.exchange:
                    failed = not await self._lock(name, broker, sorted(queues))
            if due:
                renew_at = self._clock.monotonic() + (ASK_AGAIN_S if failed else RENEW_S)

    @staticmethod
    def _of(broker_name: str, queues: Iterable[MessageQueue]) -> Iterator[MessageQueue]:
        return (queue for queue in queues if queue.broker_name == broker_name)

    async def _lock(self, name: str, broker: _Broker, queues: list[MessageQueue]) -> bool:
        """Request locks from a broker; return whether it responded."""
        sent_at = self._clock.monotonic()
        try:
            answer = await self._call(RequestCode.LOCK_BATCH_MQ, name, queues)
            granted = set(decode_body(LockBatchResponseBody, answer).lock_ok_mq_set)
        except CometMQError as error:
            level = logging.DEBUG if broker.troubled else logging.WARNING
            log.log(level, "cannot acquire or renew locks of group %s on %s: %s", self._group, name, error)
            broker.troubled = True
            return False
        broker.troubled = False
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
            await self._unlock(name, unwanted)
        return True

    def _drop_late(self, broker_name: str) -> None:
        """Drop locks that were not renewed in time, because other members may hold them."""
        for queue in [queue for queue in self._of(broker_name, self._since) if not self.holds(queue)]:
            del self._since[queue]
            self._lost(queue)

    async def _unlock(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, broker, queues)
        except CometMQError as error:
            log.info("cannot unlock %d queues of group %s on %s: %s", len(queues), self._group, broker, error)

    async def _call(self, code: RequestCode, broker: str, queues: list[MessageQueue]) -> bytes:
        asked = LockBatchRequestBody(consumer_group=self._group, client_id=self._instance.client_id, mq_set=queues)
        address = await self._instance.master_of(queues[0])
        doing = f"{code.name} for {len(queues)} queues on {broker}"
        answer = await self._instance.call(
            address, code, None, encode_body(asked), doing=doing, timeout_s=LOCK_TIMEOUT_S
        )
        return answer.body
