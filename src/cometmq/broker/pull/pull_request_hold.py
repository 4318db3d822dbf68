"""Long polling: pulls that find no messages are held until a message arrives (``PullRequestHoldService``).

Pulls from one queue that want the same messages wait as one group. When messages arrive, the groups that want
everything or one of the messages' tags are answered immediately. Other filters read the messages, once for each group.
In addition, a sweep runs pulls again: every second those whose wait time has ended, and every five seconds those whose
queues have grown. A held pull is answered by running it again. This work runs in slices over rounds of the loop.

A slow connection gets no messages until it has caught up; its pulls wait for the next sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from cometmq.broker.limits import (
    HELD_SLICE_SECONDS,
    MAX_HELD_PULL_CHARS,
    MAX_HELD_PULLS,
    MAX_HELD_PULLS_OF_CONNECTION,
)
from cometmq.broker.pull.held_queue import HeldPull, HeldQueue, SameFilterPulls, kept_chars
from cometmq.periodic import Alarm
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.remoting.processors import Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue, GetMessageStatus, MessageStore

_log = logging.getLogger(__name__)

_TIMEOUT_SWEEP_S: Final = 1.0
_GROWTH_SWEEPS: Final = 5
"""Number of sweeps between two checks for queues that have grown: every 5 s, as in Apache's broker."""

_Work = Iterator[None]
"""A generator of work that may pause after each step."""


class _ConnectionPulls(msgspec.Struct):
    """The waiting pulls of a connection."""

    pulls: dict[HeldPull, None]
    chars: int = 0


class PullRequestHoldService:
    """The waiting pulls, by queue.

    :param answer: runs a held pull again.
    """

    def __init__(self, store: MessageStore, answer: Callable[[HeldPull], Response]) -> None:
        self._store = store
        self._clock = store.clock
        self._queues: dict[str, dict[int, HeldQueue]] = {}
        """The waiting pulls, by topic and queue ID."""
        self._due: dict[int, dict[HeldPull, None]] = {}
        """All waiting pulls, by the second in which their wait time ends."""
        self._grown: dict[HeldQueue, None] = {}
        """Queues that may have grown since the last check and whose waiting pulls have not been woken."""
        self._held_of: dict[ServerConnection, _ConnectionPulls] = {}
        self._count = 0
        self._chars = 0
        self._next_sweep = Alarm(self._sweep, clock=store.clock)
        self._sweeps = 0
        self._is_sweeping = False
        self._sweep_is_due = False
        self._looks_for_growth = False
        """True if the next sweep also checks queues that have grown."""
        self._stopped = False
        self._left: deque[_Work] = deque()
        """Work left for later rounds of the loop."""
        self._answer = answer
        store.batch.on_arrival.append(self.arrived)

    def __len__(self) -> int:
        return self._count

    def start(self) -> None:
        """Start the sweeps."""
        self._next_sweep.after(_TIMEOUT_SWEEP_S)

    def stop(self) -> None:
        """Stop the sweeps, answer all pulls, and accept no further ones."""
        self._stopped = True
        self._next_sweep.close()
        self._left.clear()
        for queues in list(self._queues.values()):
            for waiting in list(queues.values()):
                for group in list(waiting.groups.values()):
                    for pull in list(group.pulls):
                        self._answer_pull(pull)

    def hold(self, pull: HeldPull, end: int, wait_ms: int) -> bool:
        """Hold a pull for up to ``wait_ms``; return ``False`` if it must be answered immediately.

        :param end: the offset after the queue's last message.
        """
        connection = pull.connection
        held = self._held_of.get(connection)
        if self._stopped or self._count >= MAX_HELD_PULLS or wait_ms <= 0:
            return False
        if held is not None and len(held.pulls) >= MAX_HELD_PULLS_OF_CONNECTION:
            return False
        header: PullMessageRequestHeader = pull.request.header
        of_topic = self._queues.get(header.topic)
        waiting = None if of_topic is None else of_topic.get(header.queue_id)
        if waiting is None:
            waiting = HeldQueue((header.topic, header.queue_id))
        group = waiting.group(pull, end)
        chars = pull.chars = kept_chars(pull.request)
        if self._chars + chars + (0 if group.pulls else group.chars) > MAX_HELD_PULL_CHARS:
            return False
        if held is None:
            held = self._held_of[connection] = _ConnectionPulls({})
            connection.on_close.append(self._connection_closed)
        held.pulls[pull] = None
        held.chars += chars
        self._count += 1
        self._chars += chars
        if not group.pulls:
            self._chars += group.chars
            waiting.add(group)
            if of_topic is None:
                of_topic = self._queues[header.topic] = {}
            of_topic[header.queue_id] = waiting
        pull.wanted = group.wanted
        pull.queue, pull.group = waiting, group
        group.pulls[pull] = None
        pull.deadline = deadline = self._clock.monotonic() + wait_ms / 1000
        due = self._due.get(int(deadline))
        if due is None:
            due = self._due[int(deadline)] = {}
        due[pull] = None
        if header.queue_offset < end:
            self._grown[waiting] = None
        return True

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the pulls that may want messages that became visible in these queues."""
        if not self._count:
            return
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        for queue in queues:
            of_topic = self._queues.get(queue.topic)
            waiting = None if of_topic is None else of_topic.get(queue.queue_id)
            if waiting is None:
                continue
            only_pull = waiting.only_pull
            if only_pull is not None:  # most often: no need for slices
                header: PullMessageRequestHeader = only_pull.request.header
                if header.queue_offset != queue.readable or only_pull.topic_was_deleted:
                    try:
                        self._answer_pull(only_pull)
                    except Exception:  # the messages are stored: answer their producers
                        _log.exception("cannot wake a waiting pull from %s queue %d", *waiting.key)
                if waiting.groups:
                    self._grown[waiting] = None
                continue
            self._grown[waiting] = None
            waiting.has_more = True
            if not waiting.is_looking:
                waiting.is_looking = True
                self._run(self._wake_matching(waiting, queue), until)
            elif waiting.can_wake_by_tags:  # other filters are slow: pulls that match by tags do not wait for them
                self._run(self._wake_by_tags(waiting, queue), until)

    def topic_deleted(self, topic: str) -> None:
        """Mark the waiting pulls from a deleted topic, since their offsets are invalid once the topic is created
        again.
        """
        for waiting in self._queues.get(topic, {}).values():
            self._grown[waiting] = None
            for group in waiting.groups.values():
                for pull in group.pulls:
                    pull.topic_was_deleted = True

    # --- work in slices ---------------------------------------------------------------------------
    def _run(self, work: _Work, until: float) -> bool:
        """Work until this round's time is used up; return True if work remains for a later round."""
        try:
            for _ in work:
                if self._clock.monotonic() >= until:
                    if not self._left:
                        asyncio.get_running_loop().call_soon(self._continue)
                    self._left.append(work)
                    return True
        except Exception:  # the messages are stored: their producers must be answered in any case
            _log.exception("cannot wake waiting pulls; will check them again within 5 s")
        return False

    def _continue(self) -> None:
        if self._stopped:
            return
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        left, self._left = self._left, deque()
        while left:
            if self._run(left.popleft(), until):
                break
        left.extend(self._left)
        self._left = left

    def _wake_matching(self, waiting: HeldQueue, queue: ConsumeQueue) -> _Work:
        """Wake the pulls that want the new messages; repeat if more messages arrive in the meantime."""
        try:
            while waiting.has_more:
                waiting.has_more = False
                yield from self._wake_by_tags(waiting, queue)
                for group in list(waiting.others):
                    if group.pulls and self._matches(group, queue):
                        yield from self._answer_waiting(group, queue)
                    yield
        finally:
            waiting.is_looking = False

    def _wake_by_tags(self, waiting: HeldQueue, queue: ConsumeQueue) -> _Work:
        """Wake the groups that want all messages or one of the new tags."""
        more = True
        while more:
            groups, more = waiting.match_by_tags(queue)
            for group in groups:
                yield from self._answer_waiting(group, queue)
            if more:
                yield

    def _answer_waiting(self, group: SameFilterPulls, queue: ConsumeQueue) -> _Work:
        for pull in list(group.pulls):
            header: PullMessageRequestHeader = pull.request.header
            came_after = header.queue_offset == queue.max_offset()
            if not came_after or pull.topic_was_deleted:
                self._answer_pull(pull)
            yield

    def _matches(self, group: SameFilterPulls, queue: ConsumeQueue) -> bool:
        """Return whether a new message matches or may match these pulls."""
        wanted = group.wanted
        result = self._store.get_message(
            queue, group.scanned_to, 1, tag_codes=wanted.codes, predicate=wanted.predicate, choose=wanted.choose
        )
        if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            group.scanned_to = result.next_begin_offset
            return group.scanned_to < queue.max_offset()  # the rest is too much for now: the clients ask again
        return result.status is GetMessageStatus.FOUND

    # --- sweeps -----------------------------------------------------------------------------------
    def _has_grown(self, pull: HeldPull) -> bool:
        header: PullMessageRequestHeader = pull.request.header
        _, end = self._store.extent(header.topic, header.queue_id)
        return end > header.queue_offset or (end > 0 and pull.topic_was_deleted)

    def _sweep(self) -> None:
        self._next_sweep.after(_TIMEOUT_SWEEP_S)
        self._sweeps += 1
        self._sweep_is_due = True
        self._looks_for_growth |= not self._sweeps % _GROWTH_SWEEPS
        if not self._is_sweeping:
            self._is_sweeping = True
            self._run(self._sweep_all(), self._clock.monotonic() + HELD_SLICE_SECONDS)

    def _sweep_all(self) -> _Work:
        """Run a sweep, and another one if it became due in the meantime."""
        try:
            while self._sweep_is_due:
                self._sweep_is_due = False
                yield from self._answer_due(self._clock.monotonic())
                if self._looks_for_growth:
                    self._looks_for_growth = False
                    yield from self._answer_grown()
        finally:
            self._is_sweeping = False

    def _answer_due(self, now: float) -> _Work:
        """Answer the pulls whose wait time has ended."""
        for second in [second for second in self._due if second <= now]:
            for pull in list(self._due[second]):
                if pull.deadline <= now:
                    self._answer_pull(pull)
                yield

    def _answer_grown(self) -> _Work:
        """Answer the pulls whose queues have grown; pulls from slow clients wait for the next check."""
        grown, self._grown = self._grown, {}
        for waiting in grown:
            for group in list(waiting.groups.values()):
                for pull in list(group.pulls):
                    if self._has_grown(pull):
                        self._answer_pull(pull)
                        if pull in group.pulls:
                            self._grown[waiting] = None
                    yield

    # --- answers ----------------------------------------------------------------------------------
    def _answer_pull(self, pull: HeldPull) -> None:
        """Answer a pull unless it has already been answered or its client reads slowly."""
        connection = pull.connection
        if pull.group is None or (connection.is_behind and not self._stopped and not connection.closed):
            return
        self._remove(pull)
        if connection.closed:  # already removed from the counts
            return
        held = self._held_of[connection]
        del held.pulls[pull]
        held.chars -= pull.chars
        self._count -= 1
        self._chars -= pull.chars
        try:
            response = self._answer(pull)
        except Exception as error:  # one broken pull must not keep the others from being answered
            _log.exception("a held pull from %s failed", connection.remote_address)
            response = Response(1, remark=f"{type(error).__name__}: {error}")
        connection.respond(pull.request, response, polling=True)

    def _remove(self, pull: HeldPull) -> None:
        """Remove a pull."""
        waiting, group = pull.queue, pull.group
        assert waiting is not None
        assert group is not None
        pull.queue = pull.group = None
        second = int(pull.deadline)
        due = self._due[second]
        del due[pull]
        if not due:
            del self._due[second]
        del group.pulls[pull]
        if group.pulls:
            return
        self._chars -= group.chars
        waiting.remove(group)
        if waiting.groups:
            return
        self._grown.pop(waiting, None)
        topic, queue_id = waiting.key
        queues = self._queues[topic]
        del queues[queue_id]
        if not queues:
            del self._queues[topic]

    def _connection_closed(self, connection: ServerConnection) -> None:
        """Stop counting a closed connection's pulls, and remove them from their queues over several rounds."""
        held = self._held_of.pop(connection)
        self._count -= len(held.pulls)
        self._chars -= held.chars
        self._run(self._remove_all(held.pulls), self._clock.monotonic() + HELD_SLICE_SECONDS)

    def _remove_all(self, pulls: Iterable[HeldPull]) -> _Work:
        for pull in pulls:
            if pull.group is not None:
                self._remove(pull)
            yield
