"""Long polling: pulls that found nothing wait here for a message (``PullRequestHoldService``).

A message that arrives wakes, at once, the pulls of its queue whose tags it may match. Besides, every
five seconds each pull whose queue has grown is run again, and every second those whose time is up
are. Waking means running the pull again, so that the client always gets a full answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from cometmq.clock import Clock, TimerHandle
from cometmq.limits import MAX_HELD_PULLS, MAX_HELD_PULLS_OF_CONNECTION
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.remoting.processors import Request, Response
from cometmq.remoting.server import ServerConnection
from cometmq.store.message_store import GetMessageStatus, MessageStore, TopicQueue

_log = logging.getLogger(__name__)

_TIMEOUT_SWEEP_S: Final = 1.0
_GROWTH_SWEEPS: Final = 5
"""Sweeps for timeouts to one for queues that have grown: every 5 s, as Apache does."""


class HeldPull(msgspec.Struct, eq=False):
    """One waiting pull."""

    connection: ServerConnection
    request: Request[Any]
    tag_codes: frozenset[int] | None
    scanned_to: int
    """Messages before this queue offset are known not to match."""
    deadline: float = 0.0
    """Monotonic seconds."""


Answer = Callable[[HeldPull], Response]


class PullRequestHoldService:
    """The pulls that wait, by queue.

    ``answer`` runs a held pull again and must be set before the first is held.
    """

    def __init__(self, store: MessageStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._queues: dict[tuple[str, int], list[HeldPull]] = {}
        self._count_of: dict[ServerConnection, int] = {}
        self._count = 0
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
        own = self._count_of.get(connection, 0)
        if self._stopped or self._count >= MAX_HELD_PULLS or own >= MAX_HELD_PULLS_OF_CONNECTION or wait_ms <= 0:
            return False
        if connection not in self._count_of:
            connection.on_close.append(self._connection_closed)
        self._count_of[connection] = own + 1
        self._count += 1
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
        """Whether there is a message for this pull among those it has not seen."""
        if pull.tag_codes is None:
            return True
        header: PullMessageRequestHeader = pull.request.header
        queue = self._store.queue(header.topic, header.queue_id)
        result = self._store.get_message(queue, pull.scanned_to, 1, tag_codes=pull.tag_codes)
        if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            pull.scanned_to = result.next_begin_offset
            return False
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
        woken: list[HeldPull] = []
        left: list[HeldPull] = []
        for pull in self._queues[queue]:
            (woken if wanted(pull) else left).append(pull)
        if not woken:
            return
        if left:
            self._queues[queue] = left
        else:
            del self._queues[queue]
        assert self.answer is not None
        for pull in woken:
            self._let_go(pull)
            try:
                response = self.answer(pull)
            except Exception as error:  # one broken pull must not keep the others from being answered
                _log.exception("a held pull of %s failed", pull.connection.remote_address)
                response = Response(1, remark=f"{type(error).__name__}: {error}")
            pull.connection.respond(pull.request, response)

    def _let_go(self, pull: HeldPull) -> None:
        self._count -= 1
        own = self._count_of.get(pull.connection, 0) - 1
        if own >= 0:
            self._count_of[pull.connection] = own

    def _connection_closed(self, connection: ServerConnection) -> None:
        if self._count_of.pop(connection, 0):
            for queue, waiting in list(self._queues.items()):
                left = [pull for pull in waiting if pull.connection is not connection]
                self._count -= len(waiting) - len(left)
                if left:
                    self._queues[queue] = left
                else:
                    del self._queues[queue]
