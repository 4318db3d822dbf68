"""The queues that a push consumer reads, and their handover between members (``RebalanceImpl``).

Theory of operation. A rebalance gives each member of a group a share of the queues. Members do not rebalance at the
same instant, so a queue can reach its next reader before its last reader has left it. These rules keep the overlap
small and, in an orderly group, exclude it.

A queue at one member is in one of these states:

* *starting*: a task waits until this member's own earlier hand-over of the queue has ended; then, in an orderly group,
  until the broker grants the lock or, in any other group with other members, for ``handover_delay_s``, so that the last
  reader can report its offset. Then the task asks for the committed offset.
* *reading*: pulled messages are in a :class:`~cometmq.client.consumer.process_queue.ProcessQueue` and at the listener.
* *leaving*: another member gets the queue, or it is read again (rebalance, lost lock, reset, new subscription, close).

Leaving has a fixed order: mark the queue as dropped, so that no call of the listener begins; stop the reader; report
the offset if calls run; wait for running calls; report the offset again; free the memory; unlock.

Invariants:

* All messages before the reported offset are consumed, so a message is never lost; it may only be consumed again.
* One member has at most one reader of a queue: ``_leaving`` keeps the task of a hand-over until it has ended.
* An orderly member calls the listener and reports an offset only while it trusts its lock. Messages that it read under
  a lost lock are dropped, and read again under a new lock.
* An orderly member unlocks a queue only after the running call has ended. A close waits at most ``handover_wait_s``
  and then cancels the call if it is a task; if the call runs longer, the lock is released after the call
  (:meth:`ProcessQueueTable.release_held`), or expires.

Fault model: a member that crashes reports nothing; the next reader continues at the crashed member's last report, which
is at most ``persist_interval_s`` old, and consumes the later messages again. After a failed report, the next report
contains its offsets; if the queue was left meanwhile, the same member continues at them when it reads the queue again
(:mod:`cometmq.client.consumer.offset_store`). A member that is paused for longer than its lock lasts notices the lost
lock before its next call. Hand-overs never wait for a broker longer than a request's time-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from cometmq.client.background import Spawn
from cometmq.client.consumer.config import MessageModel, PushConfig
from cometmq.client.consumer.leaving_queues import LeavingQueues
from cometmq.client.consumer.offset_store import OffsetStore, starting_point
from cometmq.client.consumer.process_queue import ProcessQueue, SubmitRequests
from cometmq.client.consumer.pulling import Budget, Puller, QueueReader
from cometmq.client.consumer.queue_locks import QueueLocks
from cometmq.client.instance import ClientInstance
from cometmq.client.offsets import Offsets
from cometmq.clock import wait_for
from cometmq.remoting.bodies import MessageQueue, SubscriptionData

log = logging.getLogger(__name__)


class ProcessQueueTable:
    """Starts, leaves and resets a push consumer's queues.

    :param subscriptions: topic → subscription; the consumer changes this mapping.
    :param store: the offsets of the group.
    :param spawn: runs background work until the consumer ends.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConfig,
        subscriptions: Mapping[str, SubscriptionData],
        store: OffsetStore,
        spawn: Spawn,
    ) -> None:
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        """The queues that are being started or read."""
        self.held: list[ProcessQueue] = []
        """For an orderly consumer: queues that :meth:`close` has left although a listener call is still running."""
        self.locks: QueueLocks | None = None
        """An orderly member's locks, or ``None`` for any other member."""
        self._instance = instance
        self._group = group
        self._config = config
        self._subscriptions = subscriptions
        self._store = store
        self._spawn = spawn
        self._offsets = Offsets(instance, group=group)
        self._reader = QueueReader(Puller(instance, group, stream=False), config, instance.clock, instance.outages)
        self._budget = Budget(config.pull_threshold_bytes)
        self._leaving = LeavingQueues(spawn)
        self._is_running = False

    def start(self, submit: SubmitRequests) -> None:
        """Prepare for reading; ``submit`` receives the messages from all queues."""
        self._submit = submit
        self._is_running = True
        if self._config.orderly and self._config.message_model is MessageModel.CLUSTERING:
            self.locks = QueueLocks(self._instance, self._group, self.lock_lost, self._spawn)

    async def close(self) -> None:
        """Leave all queues."""
        self._is_running = False
        for queue in list(self.queues):
            self._leave(queue)
        await self._leaving.wait()
        if self.locks is not None:
            await self.locks.stop()

    async def release_held(self) -> None:
        """Wait for the calls still running in :attr:`held` queues, and unlock each queue after its calls."""
        await asyncio.gather(*map(self._release_after_calls, self.held))

    async def _release_after_calls(self, process_queue: ProcessQueue) -> None:
        await process_queue.idle()
        if self.locks is not None and not self._instance.has_consumer(self._group):
            await self.locks.release(process_queue.queue)
        self.held.remove(process_queue)

    # --- changes ---

    def assign(self, topic: str, queues: set[MessageQueue], shared: bool) -> None:
        """Read exactly these queues of a topic; ``shared`` is True if the group has other members."""
        if not self._is_running:
            return
        if topic not in self._subscriptions:
            queues = set()
        mine = {queue for queue in self.queues if queue.topic == topic and self.queues[queue].is_read}
        queues_left = {queue for queue in self.queues if queue.topic == topic} - (mine & queues)
        for queue in sorted(queues_left):
            self._leave(queue)
        for queue in sorted(queues - mine):
            self._read(queue, shared=shared)

    def leave_topic(self, topic: str) -> None:
        """Leave a topic's queues; the next rebalance reads them with the new subscription."""
        for queue in [queue for queue in self.queues if queue.topic == topic]:
            self._leave(queue)

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets because an administrator has reset them."""
        for queue, offset in offsets.items():
            process_queue = self.queues.pop(queue, None)
            if process_queue is None:
                self._store.forget(queue)
            elif self._is_running:
                process_queue.dropped = True
                self._leaving.start(queue, self._reset(queue, process_queue, offset, self._leaving.get(queue)))
                self._read(queue, shared=False)

    def lock_lost(self, queue: MessageQueue) -> None:
        """Read a queue again under a new lock, because other members may have consumed its messages."""
        if self._is_running and queue in self.queues:
            log.warning("group %s has lost its lock on %s; locking and reading it again", self._group, queue)
            self._leave(queue)
            self._read(queue, shared=False)

    # --- state ---

    def is_exclusive(self, queue: MessageQueue) -> bool:
        """Return whether no other orderly member can be reading the queue; can be called from any thread."""
        return self.locks is None or self.locks.holds(queue)

    def positions(self) -> dict[MessageQueue, int]:
        """Return, for each queue, the offset before which all messages are consumed."""
        return {
            queue: process_queue.offset
            for queue, process_queue in self.queues.items()
            if process_queue.offset is not None
        }

    async def report(self, offsets: Mapping[MessageQueue, int | None]) -> None:
        """Report the offsets of those queues that certainly belong to this member."""
        known = {queue: offset for queue, offset in offsets.items() if offset is not None and self.is_exclusive(queue)}
        await self._store.report(known)

    # --- starting and leaving ---

    def _read(self, queue: MessageQueue, *, shared: bool) -> None:
        process_queue = ProcessQueue(queue, self._config, self._budget, self._submit)
        self.queues[queue] = process_queue

        async def start() -> int:
            before = self._leaving.get(queue)
            if before is not None:
                await asyncio.wait([before])
            if self.locks is not None:
                await self.locks.acquire(queue)
            elif shared and self._config.handover_delay_s:
                await self._instance.clock.sleep(self._config.handover_delay_s)
            committed = await self._store.committed(queue)
            offset = await starting_point(self._offsets, queue, committed, self._config)
            process_queue.begin(offset)
            return offset

        reading = self._reader.read(queue, self._subscriptions[queue.topic], start, process_queue)
        process_queue.task = self._spawn(reading, name=f"read {queue}")

    def _leave(self, queue: MessageQueue) -> None:
        process_queue = self.queues.pop(queue)
        process_queue.dropped = True
        self._leaving.start(queue, self._hand_over(queue, process_queue, self._leaving.get(queue)))

    async def _hand_over(
        self, queue: MessageQueue, process_queue: ProcessQueue, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        await process_queue.stop_reading()
        if process_queue.running:
            await self.report({queue: process_queue.offset})
        drained = await self._drain(queue, process_queue)
        await self.report({queue: process_queue.offset})
        process_queue.release()
        if self.locks is not None and drained:
            await self.locks.release(queue)
        elif self.locks is not None:
            self.held.append(process_queue)
        log.info("group %s has left %s at offset %s", self._group, queue, process_queue.offset)

    async def _drain(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        """Wait for running calls; return whether they have ended.

        An orderly member that is not being closed waits until the calls end; any other member waits at most
        ``handover_wait_s``.
        """
        while process_queue.running:
            try:
                await wait_for(self._instance.clock, self._config.handover_wait_s, process_queue.idle())
            except TimeoutError:
                log.warning("leaving %s while %d listener calls are running", queue, len(process_queue.running))
                if self.locks is None or not self._is_running:
                    return False
        return True

    async def _reset(
        self, queue: MessageQueue, process_queue: ProcessQueue, offset: int, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        await process_queue.stop_reading()
        if self._config.orderly:
            await self._drain(queue, process_queue)
        process_queue.release()
        await self.report({queue: offset})
