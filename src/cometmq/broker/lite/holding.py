"""HeldLitePops: holds pops of lite topics until a lite topic of their client is ready (``PopLiteLongPollingService``).

Of the clients of a group that wait for the same lite topic, all are called, one after the other: the first one takes
the messages, and the others find the lite topic locked and go on waiting. A message costs as many calls as its lite
topic has waiting clients, no matter how many lite topics or clients there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import HELD_SLICE_SECONDS, MAX_HELD_POPS_OF_CONNECTION
from cometmq.broker.lite.subscriptions import LiteClient
from cometmq.clock import Clock, TimerHandle
from cometmq.periodic import Deadlines
from cometmq.remoting.processors import Request, Response, RpcRejectedError
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_EARLY_SECONDS: Final = 0.01


class HeldLitePop(msgspec.Struct, eq=False):
    """A pop that waits."""

    client: tuple[str, str]
    """The ID and the group of the client."""
    connection: ServerConnection
    request: Request[Any]
    nothing: Callable[[], Response]
    """The response when the wait time has ended."""
    timer: TimerHandle | None = None


class HeldLitePops:
    """Holds waiting pops by client.

    :param run: runs a pop again; returns True if it has been or will be answered.
    """

    def __init__(self, live: LiveConfig, clock: Clock, run: Callable[[HeldLitePop], bool]) -> None:
        self._live = live
        self._clock = clock
        self._run = run
        self._deadlines = Deadlines(clock=clock, early_s=_EARLY_SECONDS)
        self._held: dict[tuple[str, str], dict[HeldLitePop, None]] = {}
        self._of: dict[ServerConnection, dict[HeldLitePop, None]] = {}
        self._count = 0
        self._ready: dict[tuple[str, str], None] = {}
        self._is_scheduled = False
        self._stopped = False

    def __len__(self) -> int:
        return self._count

    def hold(self, pop: HeldLitePop, wait_ms: int) -> bool:
        """Hold a pop; return False if too many pops wait already."""
        config = self._live.current
        held = self._held.get(pop.client, {})
        of_connection = self._of.get(pop.connection)
        if (
            self._stopped
            or self._count >= config.max_pop_polling_size
            or len(held) >= config.pop_polling_size
            or (of_connection is not None and len(of_connection) >= MAX_HELD_POPS_OF_CONNECTION)
        ):
            return False
        if of_connection is None:
            of_connection = self._of[pop.connection] = {}
            pop.connection.on_close.append(self._closed)
        of_connection[pop] = None
        held[pop] = None
        self._held[pop.client] = held
        self._count += 1
        pop.timer = self._deadlines.after(wait_ms / 1000, self._time_is_up, pop)
        return True

    def wake(self, client: LiteClient) -> None:
        """Run the waiting pops of a client again, soon."""
        if client.key in self._held:
            self._ready[client.key] = None
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_ready)

    def _run_ready(self) -> None:
        self._is_scheduled = False
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        while self._ready:
            if self._clock.monotonic() >= until:
                self._schedule()
                return
            client = next(iter(self._ready))
            del self._ready[client]
            try:
                self._run_pops(client)
            except Exception:
                _log.exception("cannot wake the waiting pops of the client %s in %s", *client)

    def _run_pops(self, client: tuple[str, str]) -> None:
        for pop in list(self._held.get(client, ())):
            if pop.connection.is_behind:
                continue
            try:
                if not self._run(pop):
                    return
            except RpcRejectedError as refused:
                pop.connection.respond(pop.request, refused.response(), polling=True)
            self._remove(pop)

    def _remove(self, pop: HeldLitePop) -> None:
        held = self._held.get(pop.client)
        if held is None or pop not in held:
            return
        del held[pop]
        if not held:
            del self._held[pop.client]
        of_connection = self._of.get(pop.connection)
        if of_connection is not None:
            of_connection.pop(pop, None)
        self._count -= 1
        if pop.timer is not None:
            pop.timer.cancel()

    def _time_is_up(self, pop: HeldLitePop) -> None:
        self._remove(pop)
        pop.connection.respond(pop.request, pop.nothing(), polling=True)

    def _closed(self, connection: ServerConnection) -> None:
        for pop in list(self._of.pop(connection, ())):
            self._remove(pop)

    def stop(self) -> None:
        """Answer all waiting pops, and hold no further ones."""
        self._stopped = True
        for held in list(self._held.values()):
            for pop in list(held):
                self._time_is_up(pop)
