"""PopLongPollingService: holds pops and notifications until messages arrive (``PopLongPollingService``).

Requests wait by topic and group. When a message arrives in the topic or in the group's retry topic, or when an ordered
queue is unlocked, they run again in order, until one finds no messages. The work is done in slices over rounds of the
loop. A request whose wait time has ended gets an empty response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import HELD_SLICE_SECONDS, MAX_HELD_POP_CHARS, MAX_HELD_POPS_OF_CONNECTION
from cometmq.broker.pull.filters import MessageFilter
from cometmq.clock import Clock, TimerHandle
from cometmq.message.pop_info import pop_retry_topic
from cometmq.multimap import MultiMap
from cometmq.periodic import Deadlines
from cometmq.remoting.processors import Request, Response, RpcRejectedError
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue

_log = logging.getLogger(__name__)

_EARLY_SECONDS: Final = 0.01
"""Time by which a pop may be answered early, so that pops that end at almost the same time are answered together."""
_RECORD_CHARS: Final = 500
"""Memory of a waiting pop in addition to its texts, in characters."""
Key = tuple[str, str]
"""The topic and group by which requests wait."""


class HeldPop(msgspec.Struct, eq=False):
    """A held pop or notification."""

    connection: ServerConnection
    request: Request[Any]
    wanted: MessageFilter
    run_again: Callable[[HeldPop], bool]
    """Runs the request again; returns True if the request has been or will be answered."""
    nothing: Callable[[], Response]
    """The response when the wait time has ended."""
    timer: TimerHandle | None = None
    chars: int = 0
    """Memory of the held request, in characters."""

    @property
    def key(self) -> Key:
        """Return the topic and group of the request."""
        return self.request.header.topic, self.request.header.consumer_group

    def count_chars(self) -> int:
        """Count the memory of the held request."""
        header = self.request.header
        texts = (header.topic, header.consumer_group, header.exp, header.exp_type, header.attempt_id)
        self.chars = _RECORD_CHARS + self.wanted.chars + sum([len(text) for text in texts if isinstance(text, str)])
        return self.chars


class PopLongPollingService:
    """Holds waiting pops and wakes them when messages arrive."""

    def __init__(self, live: LiveConfig, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._deadlines = Deadlines(clock=clock, early_s=_EARLY_SECONDS)
        self._held: dict[Key, dict[HeldPop, None]] = {}
        self._keys_of: MultiMap[str, Key] = MultiMap()
        """The keys to wake when a message arrives in a topic."""
        self._of: dict[ServerConnection, dict[HeldPop, None]] = {}
        self._count = 0
        self._chars = 0
        self._ready: dict[Key, None] = {}
        self._is_scheduled = False
        self._stopped = False

    def __len__(self) -> int:
        return self._count

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of pops waiting for one queue, or for any queue (-1)."""
        held = self._held.get((topic, group), {})
        return sum(pop.request.header.queue_id == queue_id for pop in held)

    def stop(self) -> None:
        """Answer all waiting pops, and hold no further pops."""
        self._stopped = True
        for held in list(self._held.values()):
            for pop in list(held):
                self._remove(pop)
                pop.connection.respond(pop.request, pop.nothing(), polling=True)

    def hold(self, pop: HeldPop, wait_ms: int) -> bool:
        """Hold a pop; return ``False`` if too many pops are already waiting (POLLING_FULL)."""
        config = self._live.current
        key = pop.key
        held = self._held.get(key, {})
        of_connection = self._of.get(pop.connection)
        chars = pop.count_chars()
        if (
            self._stopped
            or self._count >= config.max_pop_polling_size
            or len(held) >= config.pop_polling_size
            or self._chars + chars > MAX_HELD_POP_CHARS
            or (of_connection is not None and len(of_connection) >= MAX_HELD_POPS_OF_CONNECTION)
        ):
            return False
        if not held:
            self._held[key] = held
            for topic in self._topics(key):
                self._keys_of.add(topic, key)
        held[pop] = None
        if of_connection is None:
            of_connection = self._of[pop.connection] = {}
            pop.connection.on_close.append(self._connection_closed)
        of_connection[pop] = None
        self._count += 1
        self._chars += chars
        pop.timer = self._deadlines.after(wait_ms / 1000, self._time_is_up, pop)
        return True

    # --- waking ---------------------------------------------------------------------------------
    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the pops for which messages became visible in these queues."""
        if not self._count:
            return
        for queue in queues:
            for key in self._keys_of.of(queue.topic):
                self._ready[key] = None
        if self._ready:
            self._schedule_wake()

    def wake(self, topic: str, group: str) -> None:
        """Wake a group's pops that may now find messages in a topic."""
        if (topic, group) in self._held:
            self._ready[topic, group] = None
            self._schedule_wake()

    def _schedule_wake(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_ready)

    def _wake_ready(self) -> None:
        self._is_scheduled = False
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        ready, self._ready = self._ready, {}
        for key in list(ready):
            if self._clock.monotonic() >= until:
                self._ready = ready | self._ready
                self._schedule_wake()
                return
            del ready[key]
            try:
                self._retry_held(key, until)
            except Exception:
                _log.exception("cannot wake the waiting pops of %s", key)

    def _retry_held(self, key: Key, until: float) -> None:
        for pop in list(self._held.get(key, ())):
            if self._clock.monotonic() >= until:
                self._ready[key] = None
                self._schedule_wake()
                return
            if pop.connection.is_behind or pop not in self._held.get(key, ()):
                continue
            try:
                found = pop.run_again(pop)
            except RpcRejectedError as refused:
                self._remove(pop)
                pop.connection.respond(pop.request, refused.response(), polling=True)
                continue
            if found:
                self._remove(pop)
            elif pop.wanted.wants_all and pop.request.header.queue_id < 0:
                return

    # --- removing -------------------------------------------------------------------------------
    def _remove(self, pop: HeldPop) -> None:
        key = pop.key
        held = self._held[key]
        del held[pop]
        if not held:
            del self._held[key]
            for topic in self._topics(key):
                self._keys_of.remove(topic, key)
        of_connection = self._of.get(pop.connection)
        if of_connection is not None:
            of_connection.pop(pop, None)
        self._count -= 1
        self._chars -= pop.chars
        if pop.timer is not None:
            pop.timer.cancel()

    def _time_is_up(self, pop: HeldPop) -> None:
        self._remove(pop)
        pop.connection.respond(pop.request, pop.nothing(), polling=True)

    def _connection_closed(self, connection: ServerConnection) -> None:
        for pop in self._of.pop(connection):
            self._remove(pop)

    @staticmethod
    def _topics(key: Key) -> tuple[str, str]:
        return key[0], pop_retry_topic(*key)
