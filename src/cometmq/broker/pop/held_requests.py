"""HeldRequests: holds requests by key until something for them may have arrived, or their wait time has ended.

Requests that are woken run again in order, until one finds nothing that the others of its key could find either. The
work is done in slices over rounds of the loop. A request whose wait time has ended gets an empty response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import HELD_SLICE_SECONDS, MAX_HELD_POPS_OF_CONNECTION
from cometmq.broker.turn.targets import RefusedError
from cometmq.clock import Clock, TimerHandle
from cometmq.periodic import Deadlines
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.processors import Request, Response, RpcRejectedError
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_EARLY_SECONDS: Final = 0.01
"""Time by which a request may be answered early, so that those that end at almost the same time are answered together.
"""
Key = tuple[str, str]
"""A topic or the ID of a client, and a group, by which requests wait."""


class HeldRequest(msgspec.Struct, eq=False):
    """A request that waits."""

    connection: ServerConnection
    request: Request[Any]
    run_again: Callable[[Self], bool]
    """Runs the request again; returns True if the request has been or will be answered."""
    nothing: Callable[[], Response]
    """The response when the wait time has ended."""
    timer: TimerHandle | None = None

    @property
    def key(self) -> Key:
        """Return the key by which the request waits."""
        raise NotImplementedError

    @property
    def speaks_for_all(self) -> bool:
        """Return whether no other request of the key finds anything if this one does not."""
        return True


H = TypeVar("H", bound=HeldRequest)


class HeldRequests(Generic[H]):
    """Holds waiting requests, and runs those of a key again when they are woken."""

    def __init__(self, live: LiveConfig, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._deadlines = Deadlines(clock=clock, early_s=_EARLY_SECONDS)
        self._held: dict[Key, dict[H, None]] = {}
        self._of: dict[ServerConnection, dict[H, None]] = {}
        self._count = 0
        self._ready: dict[Key, None] = {}
        self._is_scheduled = False
        self._stopped = False

    def __len__(self) -> int:
        return self._count

    def stop(self) -> None:
        """Answer all waiting requests, and hold no further ones."""
        self._stopped = True
        for held in list(self._held.values()):
            for one in list(held):
                self._time_is_up(one)

    def hold(self, one: H, wait_ms: int) -> bool:
        """Hold a request; return ``False`` if too many are already waiting (POLLING_FULL).

        :raises RefusedError: the broker stops.
        """
        if self._stopped:
            raise RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker stops")
        config = self._live.current
        key = one.key
        held = self._held.get(key, {})
        of_connection = self._of.get(one.connection)
        if (
            self._count >= config.max_pop_polling_size
            or len(held) >= config.pop_polling_size
            or (of_connection is not None and len(of_connection) >= MAX_HELD_POPS_OF_CONNECTION)
        ):
            return False
        if not held:
            self._held[key] = held
        held[one] = None
        if of_connection is None:
            of_connection = self._of[one.connection] = {}
            one.connection.on_close.append(self._connection_closed)
        of_connection[one] = None
        self._count += 1
        one.timer = self._deadlines.after(wait_ms / 1000, self._time_is_up, one)
        return True

    # --- waking ---------------------------------------------------------------------------------
    def wake(self, name: str, group: str) -> None:
        """Run the requests of a key again, soon."""
        if (name, group) in self._held:
            self._wake((name, group))

    def is_waiting(self, name: str, group: str) -> bool:
        """Return whether a request of a key waits that can be answered now."""
        return any(not one.connection.is_behind for one in self._held.get((name, group), ()))

    def _wake(self, key: Key) -> None:
        self._ready[key] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_ready)

    def _wake_ready(self) -> None:
        self._is_scheduled = False
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        ready, self._ready = self._ready, {}
        while ready:
            key = next(iter(ready))
            if self._clock.monotonic() >= until:
                self._ready = ready | self._ready
                self._wake(key)
                return
            del ready[key]
            try:
                self._retry_held(key, until)
            except Exception:
                _log.exception("cannot wake the waiting pops of %s", key)

    def _retry_held(self, key: Key, until: float) -> None:
        for one in list(self._held.get(key, ())):
            if self._clock.monotonic() >= until:
                self._wake(key)
                return
            if one.connection.is_behind or one not in self._held.get(key, ()):
                continue
            try:
                found = one.run_again(one)
            except RpcRejectedError as refused:
                self._remove(one)
                one.connection.respond(one.request, refused.response(), polling=True)
                continue
            if found:
                self._remove(one)
            elif one.speaks_for_all:
                return

    # --- removing -------------------------------------------------------------------------------
    def _remove(self, one: H) -> None:
        key = one.key
        held = self._held[key]
        del held[one]
        if not held:
            del self._held[key]
        of_connection = self._of.get(one.connection)
        if of_connection is not None:
            of_connection.pop(one, None)
        self._count -= 1
        if one.timer is not None:
            one.timer.cancel()

    def _time_is_up(self, one: H) -> None:
        self._remove(one)
        one.connection.respond(one.request, one.nothing(), polling=True)

    def _connection_closed(self, connection: ServerConnection) -> None:
        for one in self._of.pop(connection):
            self._remove(one)
