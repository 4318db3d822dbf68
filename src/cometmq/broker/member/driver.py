"""Gives events to a member's state machine one after the other, and does what it asks for."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from cometmq.broker.failover import events as e
from cometmq.broker.failover.history import HistoryError
from cometmq.broker.failover.machine import MemberMachine
from cometmq.broker.failover.options import NEVER, CommandRefusedError
from cometmq.broker.failover.states import State
from cometmq.clock import Clock, TimerHandle

_log = logging.getLogger(__name__)

_ROUNDING_S = 1e-6

Actions = Mapping[type[e.Request], Callable[[Any], None]]


class Driver:
    """Runs a state machine on the event loop, from ``begin`` to ``stop``.

    An event that comes while another is handled waits for its turn.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.machine: MemberMachine
        """The state machine."""
        self.has_machine = False
        """True once the state machine is set: it needs the log of the first life, and is not there before."""
        self._actions: Actions = {}
        self.settle: Callable[[], None] = lambda: None
        """Looks at everything that an event may have changed."""
        self._advanced: Callable[[], None] = lambda: None
        self._waiting: deque[e.Event] = deque()
        self._is_busy = False
        self._is_stopped = False
        self._tick: TimerHandle | None = None
        self._tick_at = NEVER
        self._logged = (State.STARTING, 0)
        self._since = clock.monotonic()
        self._changed = asyncio.Event()

    def begin(self, actions: Actions, settle: Callable[[], None], advanced: Callable[[], None]) -> None:
        """Do what the machine, which was set before, asks for first.

        :param actions: the function for each kind of request.
        :param settle: called after the requests of each event were done.
        :param advanced: called instead of it if the event can have moved only ends of logs, and the confirmed end.
        """
        self._actions, self.settle, self._advanced = actions, settle, advanced
        self._do(self.machine.start())
        self._end_event()

    def drive(self, machine: MemberMachine) -> None:
        """Set the state machine, before the member listens for clients."""
        self.machine, self.has_machine = machine, True

    @property
    def now(self) -> float:
        """The monotonic time."""
        return self._clock.monotonic()

    def wake(self) -> None:
        """Let everybody look again who waits for a condition."""
        self._changed.set()

    def stop(self) -> None:
        """Ignore all later events."""
        self._is_stopped = True
        if self._tick is not None:
            self._tick.cancel()

    def give(self, event: e.Event) -> None:
        """Give the machine an event; errors are logged."""
        if self._is_busy:
            self._waiting.append(event)
            return
        try:
            self.command(event)
        except (CommandRefusedError, HistoryError) as error:
            _log.error("%s", error)

    def command(self, event: e.Event) -> None:
        """Give the machine an event.

        :raises CommandRefusedError: a person's command is not possible now.
        :raises HistoryError: this log cannot continue with the master's.
        """
        if self._is_stopped or not self._actions:
            return
        assert not self._is_busy
        machine = self.machine
        self._is_busy = True
        is_short = False
        try:
            self._do(machine.handle(event, self._clock.monotonic()))
            is_short = machine.was_short
            while self._waiting and not self._is_stopped:
                self._do(machine.handle(self._waiting.popleft(), self._clock.monotonic()))
                is_short = is_short and machine.was_short
        finally:
            self._is_busy = False
            self._end_event(is_short=is_short)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until an event has made a condition true; the caller is cancelled if the driver stops before."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _end_event(self, *, is_short: bool = False) -> None:
        """Look at everything that an event may have changed."""
        self._changed.set()
        try:
            if is_short:
                self._advanced()
                return
            self._plan_tick()
            self._log_state()
            self.settle()
        except Exception:
            _log.exception("cannot take over what an event has changed")

    def _do(self, requests: list[e.Request]) -> None:
        """Do what the machine asks for. It does not ask again, so a failure must not prevent the rest."""
        for request in requests:
            try:
                self._actions[type(request)](request)
            except Exception:
                _log.exception("%s failed", request)

    def _log_state(self) -> None:
        machine = self.machine
        if (machine.state, machine.epoch) == self._logged:
            return
        now = self._clock.monotonic()
        _log.log(
            logging.ERROR if machine.state is State.HALTED else logging.INFO,
            "%s is %s in epoch %d, after %.3f s as %s: %s",
            *(machine.me, machine.state.value, machine.epoch, now - self._since, self._logged[0].value, machine.reason),
        )
        self._logged, self._since = (machine.state, machine.epoch), now

    def _plan_tick(self) -> None:
        deadline = self.machine.deadline
        if self._is_stopped or deadline >= self._tick_at:
            return
        if self._tick is not None:
            self._tick.cancel()
        self._tick_at = deadline
        self._tick = self._clock.call_later(max(0.0, deadline - self._clock.monotonic()), self._ring)

    def _ring(self) -> None:
        self._tick, self._tick_at = None, NEVER
        if self.machine.deadline <= self._clock.monotonic() + _ROUNDING_S:
            self.give(e.Tick())
        else:
            self._plan_tick()
