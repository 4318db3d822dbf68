"""The queues that a polling consumer reads, and their positions (``AssignedMessageQueue``).

Theory of operation. A queue that is read has one :class:`~cometmq.client.consumer.assignment.Assignment`. A seek, a
reset, a new subscription and a rebalance end the assignment and begin another one. Each change is one step in which
nothing is awaited: brokers are asked before the step, and the new reader's task does the work that must wait. This task
begins only after the old reader, and the last commit of a queue that was left, have ended.

Invariants:

* A queue has at most one reader; a queue that has no assignment has none.
* Between two changes of the position, each message is handed out once, in the queue's order.
* The last commit of a queue that is left reaches the broker before this member asks for its offset again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from cometmq.client.background import Spawn
from cometmq.client.consumer.assignment import Assignment
from cometmq.client.consumer.config import LitePullConfig
from cometmq.client.consumer.leaving_queues import LeavingQueues
from cometmq.client.consumer.offset_store import RemoteOffsets, starting_point
from cometmq.client.consumer.pulling import Budget, QueueReader
from cometmq.client.errors import ClientStateError
from cometmq.client.offsets import Offsets
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import MessageQueue, SubscriptionData


class AssignmentTable:
    """Starts, moves and ends the reading of a consumer's queues.

    :param store: the offsets of the group.
    :param subscriptions: topic → subscription; the consumer changes this mapping.
    :param spawn: runs background work until the consumer ends.
    """

    def __init__(
        self,
        offsets: Offsets,
        store: RemoteOffsets,
        config: LitePullConfig,
        subscriptions: Mapping[str, SubscriptionData],
        spawn: Spawn,
    ) -> None:
        self.queues: dict[MessageQueue, Assignment] = {}
        """The queues being read, in the order in which polls use them."""
        self._offsets = offsets
        self._store = store
        self._config = config
        self._subscriptions = subscriptions
        self._by_hand: SubscriptionData | None = None
        self._spawn = spawn
        self._budget = Budget(config.pull_threshold_bytes)
        self._leaving = LeavingQueues(spawn)
        self._moved: list[Assignment] = []
        """The queues whose position has changed since the start of the last poll."""
        self._is_running = False

    def start(self, reader: QueueReader, arrived: asyncio.Event) -> None:
        """Prepare for reading. ``arrived`` is set when messages arrive."""
        self._reader = reader
        self._arrived = arrived
        self._is_running = True

    def close(self) -> None:
        """Stop reading all queues, without committing offsets."""
        self._is_running = False
        for assignment in self.queues.values():
            assignment.drop()
        self.queues.clear()

    async def wait_until_left(self) -> None:
        """Wait for the last commits of queues that were left."""
        await self._leaving.wait()

    # --- messages and positions ---

    def of(self, queue: MessageQueue) -> Assignment:
        """Return the assignment of a queue.

        :raises ClientStateError: the queue is not assigned.
        """
        assignment = self.queues.get(queue)
        if assignment is None:
            raise ClientStateError(
                f"{queue} is not assigned to this consumer", next_step="call assignment() to see the assigned queues"
            )
        return assignment

    def take(self, limit: int) -> list[MessageExt]:
        """Return up to ``limit`` messages that have arrived, taking them from the queues one after the other."""
        messages: list[MessageExt] = []
        given = []
        for queue, assignment in self.queues.items():
            if assignment.paused or not assignment.chunks:
                continue
            before = len(messages)
            assignment.hand_out(limit - before, messages)
            self._moved.append(assignment)
            if len(messages) > before:
                given.append(queue)
                if len(messages) >= limit:
                    break
        for queue in given:  # the next call begins with the other queues
            self.queues[queue] = self.queues.pop(queue)
        return messages

    def give_back(self, messages: Iterable[MessageExt]) -> None:
        """Put back messages returned by :meth:`take`; later calls return them again, in order."""
        parts: dict[MessageQueue, list[MessageExt]] = {}
        for message in messages:
            parts.setdefault(MessageQueue(message.topic, message.broker_name, message.queue_id), []).append(message)
        for queue, part in parts.items():
            if queue in self.queues:
                self.queues[queue].take_back(part)

    def processed(self) -> None:
        """Mark all messages returned so far as consumed."""
        for assignment in self._moved:
            assignment.processed = assignment.position
        self._moved.clear()

    def positions(self, *, processed_only: bool) -> dict[MessageQueue, int]:
        """Return each queue's position, or with ``processed_only`` its consumed offset."""
        chosen = {
            queue: assignment.processed if processed_only else assignment.position
            for queue, assignment in self.queues.items()
        }
        return {queue: at for queue, at in chosen.items() if at is not None}

    # --- changes ---

    def assign(self, topic: str, queues: set[MessageQueue], shared: bool) -> None:
        """Read exactly these queues of a topic."""
        if topic not in self._subscriptions:
            queues = set()
        self._change({queue for queue in self.queues if queue.topic == topic}, queues)

    def assign_by_hand(self, queues: set[MessageQueue], wanted: SubscriptionData) -> None:
        """Read exactly these queues, all with the same subscription."""
        self._by_hand = wanted
        self._change(set(self.queues), queues)
        for topic in {queue.topic for queue in queues}:
            self.read_again(topic)

    def read_again(self, topic: str) -> None:
        """Read a topic's queues again from their positions with a new subscription."""
        for queue, assignment in list(self.queues.items()):
            if queue.topic == topic and assignment.wanted is not self._wanted(topic):
                self._replace(queue, assignment.position, assignment.processed)

    async def seek(self, queue: MessageQueue, find: Callable[[], Awaitable[int]]) -> None:
        """Read a queue from the offset returned by ``find``. The last of several seeks takes effect.

        :raises ClientStateError: the queue is not assigned, or is no longer assigned.
        """
        async with self.of(queue).seeking:
            self.move_to(queue, await find())

    def move_to(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from the given offset.

        :raises ClientStateError: the queue is not assigned.
        """
        self._replace(queue, offset, offset)

    def _change(self, before: set[MessageQueue], after: set[MessageQueue]) -> None:
        if not self._is_running:
            return
        for queue in before - after:
            self._leave(queue)
        for queue in sorted(after - before):
            self._read(queue, None)
        for queue in sorted(before & after):
            assignment = self.queues[queue]
            if not assignment.is_read:
                self._replace(queue, assignment.position, assignment.processed)

    def _replace(self, queue: MessageQueue, position: int | None, processed: int | None) -> None:
        before = self.of(queue)
        before.drop()
        after = self._read(queue, position, before.task)
        after.paused, after.seeking = before.paused, before.seeking
        after.position, after.processed = position, processed
        self._moved.append(after)

    def _wanted(self, topic: str) -> SubscriptionData:
        wanted = self._subscriptions.get(topic) or self._by_hand
        assert wanted is not None
        return wanted

    def _read(self, queue: MessageQueue, offset: int | None, reader: asyncio.Task[None] | None = None) -> Assignment:
        """Start reading a queue at ``offset``, by default the group's offset, after the previous reader has ended."""
        wanted = self._wanted(queue.topic)
        before = [task for task in (reader, self._leaving.get(queue)) if task is not None]
        assignment = Assignment(self._config, self._budget, self._arrived, wanted)

        async def start() -> int:
            if before:
                await asyncio.wait(before)
            if offset is not None:
                return offset
            committed = await self._store.committed(queue)
            first = await starting_point(self._offsets, queue, committed, self._config)
            assignment.position = first
            self._moved.append(assignment)
            return first

        self.queues[queue] = assignment
        assignment.task = self._spawn(self._reader.read(queue, wanted, start, assignment), name=f"read {queue}")
        return assignment

    # --- leaving ---

    def _leave(self, queue: MessageQueue) -> None:
        assignment = self.queues.pop(queue)
        assignment.drop()
        self._leaving.start(queue, self._hand_over(queue, assignment))

    async def _hand_over(self, queue: MessageQueue, assignment: Assignment) -> None:
        """Leave a queue: wait until its reader has ended, then commit the consumed offset."""
        if assignment.task is not None:
            await asyncio.wait([assignment.task])
        if self._config.auto_commit and assignment.processed is not None:
            await self._store.report({queue: assignment.processed})
