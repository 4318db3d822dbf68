"""Long polling: pulls that found nothing wait here for a message (``PullRequestHoldService``).

A message that arrives wakes, at once, the pulls of its queue whose filter it matches. Besides, every
five seconds each pull whose queue has grown is run again, and every second those whose time is up
are. Waking means running the pull again, so that the client always gets a full answer. A connection
that is behind with reading gets messages when it has caught up: its pulls are left for the next sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from cometmq.broker.subscriptions import MessageFilter
from cometmq.clock import Clock, TimerHandle
from cometmq.limits import MAX_HELD_PULL_CHARS, MAX_HELD_PULLS, MAX_HELD_PULLS_OF_CONNECTION
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.remoting.processors import Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import GetMessageStatus, MessageStore, TopicQueue

_log = logging.getLogger(__name__)

_TIMEOUT_SWEEP_S: Final = 1.0
_GROWTH_SWEEPS: Final = 5
"""Sweeps for timeouts to one for queues that have grown: every 5 s, as Apache does."""


class HeldPull(msgspec.Struct, eq=False):
    """One waiting pull."""

    connection: ServerConnection
    request: Request[Any]
    wanted: MessageFilter
    scanned_to: int
    """Messages before this queue offset are known not to match."""
    deadline: float = 0.0
    """Monotonic seconds."""

    @property
    def chars(self) -> int:
        """Characters of all texts that are kept while it waits."""
        request = self.request
        header: PullMessageRequestHeader = request.header
        texts = (header.topic, header.consumer_group, header.subscription, header.expression_type, request.language)
        return sum(len(text) for text in texts if isinstance(text, str))


class _Held(msgspec.Struct):
    """What one connection has waiting."""

    count: int = 0
    chars: int = 0


Answer = Callable[[HeldPull], Response]


class PullRequestHoldService:
    """The pulls that wait, by queue.

    ``answer`` runs a held pull again and must be set before the first is held.
    """

    def __init__(self, store: MessageStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._queues: dict[tuple[str, int], list[HeldPull]] = {}
        self._held_of: dict[ServerConnection, _Held] = {}
        self._count = 0
        self._chars = 0
        self._timer: TimerHandle | None = None
        self._sweeps = 0
        self._stopped = False
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
        for queue in list(self._queues):
            self._wake(queue, lambda _: True)

    def hold(self, pull: HeldPull, wait_ms: int) -> bool:
        """Let a pull wait up to ``wait_ms``; ``False`` when it cannot, so that it is answered at once."""
        connection = pull.connection
        held = self._held_of.get(connection)
        if self._stopped or self._count >= MAX_HELD_PULLS or wait_ms <= 0:
            return False
        if held is not None and held.count >= MAX_HELD_PULLS_OF_CONNECTION:
            return False
        chars = pull.chars
        if self._chars + chars > MAX_HELD_PULL_CHARS:
            return False
        if held is None:
            held = self._held_of[connection] = _Held()
            connection.on_close.append(self._connection_closed)
        held.count += 1
        held.chars += chars
        self._count += 1
        self._chars += chars
        pull.deadline = self._clock.monotonic() + wait_ms / 1000
        header: PullMessageRequestHeader = pull.request.header
        self._queues.setdefault((header.topic, header.queue_id), []).append(pull)
        return True

    def arrived(self, queues: Iterable[TopicQueue]) -> None:
        """Messages became visible in these queues: wake the pulls that may want them."""
        if not self._count:
            return
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            if key in self._queues:
                try:
                    self._wake(key, self._matches)
                except Exception:  # the messages are stored: their producers must be answered whatever happens here
                    _log.exception("pulls of %s queue %d could not be woken", *key)

    def _matches(self, pull: HeldPull) -> bool:
        """Whether there is, or may be, a message for this pull among those it has not seen."""
        wanted = pull.wanted
        if wanted.wants_all:
            return True
        header: PullMessageRequestHeader = pull.request.header
        queue = self._store.queue(header.topic, header.queue_id)
        result = self._store.get_message(
            queue, pull.scanned_to, 1, tag_codes=wanted.codes, predicate=wanted.predicate, choose=wanted.choose
        )
        if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            pull.scanned_to = result.next_begin_offset
            return pull.scanned_to < queue.max_offset()  # the rest is too much for now: the client looks on
        return result.status is GetMessageStatus.FOUND

    def _has_grown(self, pull: HeldPull) -> bool:
        header: PullMessageRequestHeader = pull.request.header
        return self._store.queue(header.topic, header.queue_id).max_offset() > header.queue_offset

    def _sweep(self) -> None:
        self._timer = self._clock.call_later(_TIMEOUT_SWEEP_S, self._sweep)
        self._sweeps += 1
        now = self._clock.monotonic()
        if self._sweeps % _GROWTH_SWEEPS:
            for queue in list(self._queues):
                self._wake(queue, lambda pull: pull.deadline <= now)
        else:
            for queue in list(self._queues):
                self._wake(queue, lambda pull: pull.deadline <= now or self._has_grown(pull))

    def _wake(self, queue: tuple[str, int], wanted: Callable[[HeldPull], bool]) -> None:
        """Answer the pulls of a queue that are wanted, and drop those whose connection is closed.

        What is behind with reading is looked at again for each pull, as the answer before may have made it so.
        """
        assert self.answer is not None
        waiting = self._queues.pop(queue)
        left: list[HeldPull] = []
        done = 0
        try:
            for pull in waiting:
                connection = pull.connection
                if not connection.closed:
                    if (connection.is_behind and not self._stopped) or not wanted(pull):
                        left.append(pull)
                    else:
                        self._answer(pull, self.answer)
                done += 1
        finally:
            left += waiting[done:]
            if left:
                self._queues[queue] = left

    def _answer(self, pull: HeldPull, answer: Answer) -> None:
        held = self._held_of[pull.connection]
        held.count -= 1
        held.chars -= pull.chars
        self._count -= 1
        self._chars -= pull.chars
        try:
            response = answer(pull)
        except Exception as error:  # one broken pull must not keep the others from being answered
            _log.exception("a held pull of %s failed", pull.connection.remote_address)
            response = Response(1, remark=f"{type(error).__name__}: {error}")
        pull.connection.respond(pull.request, response)

    def _connection_closed(self, connection: ServerConnection) -> None:
        """Count its pulls out at once; the next sweep takes them from their queues, all lost ones in one go."""
        held = self._held_of.pop(connection)
        self._count -= held.count
        self._chars -= held.chars
