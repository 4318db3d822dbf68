"""Long polling: pulls that found nothing wait here for a message (``PullRequestHoldService``).

Pulls of one queue that want the same wait as one group. Messages that arrive are looked at once: the groups that
want everything, and those of the tags codes that came, are answered at once; other filters look at the messages
themselves, once for each group. Besides, every five seconds each pull whose queue has grown is run again, and every
second those whose time is up are. Answering means running the pull again, so that the client always gets a full
answer. All of this takes a slice of time in a turn of the loop, and goes on in the next ones.

A connection that is behind with reading gets messages when it has caught up: its pulls are left for the next sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import msgspec

from cometmq.broker.held_groups import HeldGroup, HeldPull, HeldQueue
from cometmq.clock import Clock, TimerHandle
from cometmq.limits import HELD_SLICE_SECONDS, MAX_HELD_PULL_CHARS, MAX_HELD_PULLS, MAX_HELD_PULLS_OF_CONNECTION
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.remoting.processors import Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import GetMessageStatus, MessageStore, TopicQueue

_log = logging.getLogger(__name__)

_TIMEOUT_SWEEP_S: Final = 1.0
_GROWTH_SWEEPS: Final = 5
"""Sweeps for timeouts to one for queues that have grown: every 5 s, as Apache does."""

Answer = Callable[[HeldPull], Response]
_Work = Iterator[None]
"""Something to do, with a place to stop after each step."""


class _Held(msgspec.Struct):
    """What one connection has waiting."""

    count: int = 0
    chars: int = 0


class PullRequestHoldService:
    """The pulls that wait, by queue.

    ``answer`` runs a held pull again and must be set before the first is held.
    """

    def __init__(self, store: MessageStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._queues: dict[tuple[str, int], HeldQueue] = {}
        self._held_of: dict[ServerConnection, _Held] = {}
        self._count = 0
        self._chars = 0
        self._timer: TimerHandle | None = None
        self._sweeps = 0
        self._is_sweeping = False
        self._sweep_is_due = False
        self._looks_for_growth = False
        """Whether the next sweep is also for queues that have grown."""
        self._stopped = False
        self._left: deque[_Work] = deque()
        """Work that did not fit into its turn; when there is any, a later turn is asked for."""
        self.answer: Answer | None = None

    def __len__(self) -> int:
        return self._count

    def start(self) -> None:
        """Begin the sweeps."""
        self._timer = self._clock.call_later(_TIMEOUT_SWEEP_S, self._sweep)

    def stop(self) -> None:
        """End the sweeps and answer everyone; from now on no pull is held."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._left.clear()
        for _ in self._answer_all(lambda _: True):
            pass

    def hold(self, pull: HeldPull, wait_ms: int) -> bool:
        """Let a pull wait up to ``wait_ms``; ``False`` when it cannot, so that it is answered at once."""
        connection = pull.connection
        held = self._held_of.get(connection)
        if self._stopped or self._count >= MAX_HELD_PULLS or wait_ms <= 0:
            return False
        if held is not None and held.count >= MAX_HELD_PULLS_OF_CONNECTION:
            return False
        header: PullMessageRequestHeader = pull.request.header
        end = self._store.queue(header.topic, header.queue_id).max_offset()
        key = (header.topic, header.queue_id)
        waiting = self._queues.get(key)
        if waiting is None:
            waiting = HeldQueue(key)
        group = waiting.group(pull, end)
        chars = pull.chars
        if self._chars + chars + (0 if group.pulls else group.chars) > MAX_HELD_PULL_CHARS:
            return False
        if held is None:
            held = self._held_of[connection] = _Held()
            connection.on_close.append(self._connection_closed)
        held.count += 1
        held.chars += chars
        self._count += 1
        self._chars += chars
        if not group.pulls:
            self._chars += group.chars
            waiting.add(group)
            self._queues[key] = waiting
        pull.wanted = group.wanted
        group.pulls[pull] = None
        pull.deadline = self._clock.monotonic() + wait_ms / 1000
        return True

    def arrived(self, queues: Iterable[TopicQueue]) -> None:
        """Messages became visible in these queues: wake the pulls that may want them."""
        if not self._count:
            return
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        for queue in queues:
            waiting = self._queues.get((queue.topic, queue.queue_id))
            if waiting is None:
                continue
            alone = waiting.alone
            if alone is not None:  # most often: no need for slices
                group, pull = alone
                header: PullMessageRequestHeader = pull.request.header
                if header.queue_offset != queue.committed:
                    try:
                        self._try(waiting, group, pull)
                    except Exception:  # as below
                        _log.exception("a waiting pull of %s queue %d could not be woken", *waiting.key)
                continue
            waiting.has_more = True
            if not waiting.is_looking:
                waiting.is_looking = True
                self._run(self._look(waiting, queue), until)
            elif waiting.quick:  # its other filters take long: who is found by tags does not wait for them
                self._run(self._look_by_tags(waiting, queue), until)

    # --- work in slices ---------------------------------------------------------------------------
    def _run(self, work: _Work, until: float) -> bool:
        """Do some work until its time is up; what is left goes on in a later turn. Whether anything is."""
        try:
            for _ in work:
                if self._clock.monotonic() >= until:
                    if not self._left:
                        asyncio.get_running_loop().call_soon(self._go_on)
                    self._left.append(work)
                    return True
        except Exception:  # the messages are stored: their producers must be answered whatever happens here
            _log.exception("waiting pulls could not be woken; they are looked at again within 5 s")
        return False

    def _go_on(self) -> None:
        if self._stopped:
            return
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        left, self._left = self._left, deque()
        while left:
            if self._run(left.popleft(), until):
                break
        left.extend(self._left)
        self._left = left

    def _look(self, waiting: HeldQueue, queue: TopicQueue) -> _Work:
        """Wake who wants what arrived, and look again when more has arrived meanwhile."""
        try:
            while waiting.has_more:
                waiting.has_more = False
                yield from self._look_by_tags(waiting, queue)
                for group in list(waiting.others):
                    if group.pulls and self._matches(group, queue):
                        yield from self._wake(waiting, group, queue)
                    yield
        finally:
            waiting.is_looking = False

    def _look_by_tags(self, waiting: HeldQueue, queue: TopicQueue) -> _Work:
        """Wake the groups that want everything, or a tag that arrived."""
        more = True
        while more:
            groups, more = waiting.wanted_by_tags(queue)
            for group in groups:
                yield from self._wake(waiting, group, queue)
            if more:
                yield

    def _wake(self, waiting: HeldQueue, group: HeldGroup, queue: TopicQueue) -> _Work:
        for pull in list(group.pulls):
            header: PullMessageRequestHeader = pull.request.header
            if header.queue_offset != queue.max_offset():  # else it asked after the message had come
                self._try(waiting, group, pull)
            yield

    def _matches(self, group: HeldGroup, queue: TopicQueue) -> bool:
        """Whether there is, or may be, a message for these pulls among those they have not seen."""
        wanted = group.wanted
        result = self._store.get_message(
            queue, group.scanned_to, 1, tag_codes=wanted.codes, predicate=wanted.predicate, choose=wanted.choose
        )
        if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            group.scanned_to = result.next_begin_offset
            return group.scanned_to < queue.max_offset()  # the rest is too much for now: the clients look on
        return result.status is GetMessageStatus.FOUND

    # --- sweeps -------------------------------------------------------------------------------------
    def _has_grown(self, pull: HeldPull) -> bool:
        header: PullMessageRequestHeader = pull.request.header
        return self._store.queue(header.topic, header.queue_id).max_offset() > header.queue_offset

    def _sweep(self) -> None:
        self._timer = self._clock.call_later(_TIMEOUT_SWEEP_S, self._sweep)
        self._sweeps += 1
        self._sweep_is_due = True
        self._looks_for_growth |= not self._sweeps % _GROWTH_SWEEPS
        if not self._is_sweeping:
            self._is_sweeping = True
            self._run(self._sweep_all(), self._clock.monotonic() + HELD_SLICE_SECONDS)

    def _sweep_all(self) -> _Work:
        """Sweep; once more when a sweep became due meanwhile."""
        try:
            while self._sweep_is_due:
                self._sweep_is_due = False
                now, grown = self._clock.monotonic(), self._looks_for_growth
                self._looks_for_growth = False
                yield from self._answer_all(partial(self._is_due, now, grown))
        finally:
            self._is_sweeping = False

    def _is_due(self, now: float, grown: bool, pull: HeldPull) -> bool:
        return pull.deadline <= now or (grown and self._has_grown(pull))

    def _answer_all(self, due: Callable[[HeldPull], bool]) -> _Work:
        """Answer the pulls that are due, and drop those whose connection is closed."""
        for waiting in list(self._queues.values()):
            for group in list(waiting.groups.values()):
                for pull in list(group.pulls):
                    if pull.connection.closed or due(pull):
                        self._try(waiting, group, pull)
                    yield

    # --- answers ------------------------------------------------------------------------------------
    def _try(self, waiting: HeldQueue, group: HeldGroup, pull: HeldPull) -> None:
        """Answer a pull, unless it was answered meanwhile or its client is behind with reading."""
        connection = pull.connection
        if pull not in group.pulls or (connection.is_behind and not self._stopped and not connection.closed):
            return
        del group.pulls[pull]
        if not group.pulls:
            self._chars -= group.chars
            waiting.remove(group)
            if not waiting.groups:
                self._queues.pop(waiting.key, None)
        if connection.closed:  # it is counted out already
            return
        held = self._held_of[connection]
        held.count -= 1
        held.chars -= pull.chars
        self._count -= 1
        self._chars -= pull.chars
        assert self.answer is not None
        try:
            response = self.answer(pull)
        except Exception as error:  # one broken pull must not keep the others from being answered
            _log.exception("a held pull of %s failed", connection.remote_address)
            response = Response(1, remark=f"{type(error).__name__}: {error}")
        connection.respond(pull.request, response)

    def _connection_closed(self, connection: ServerConnection) -> None:
        """Count its pulls out at once; the next sweep takes them from their queues, all lost ones in one go."""
        held = self._held_of.pop(connection)
        self._count -= held.count
        self._chars -= held.chars
