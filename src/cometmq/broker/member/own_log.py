"""Tells a member's state machine about its own log and disk."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cometmq.broker.failover import events as e
from cometmq.broker.member.driver import Driver
from cometmq.broker.member.lives import Lives
from cometmq.clock import Clock
from cometmq.store.errors import StoreError

_log = logging.getLogger(__name__)


class OwnLog:
    """The log of the present life: its ends, its flushes where they count, and failures of the disk."""

    def __init__(self, driver: Driver, lives: Lives, *, clock: Clock) -> None:
        self._driver = driver
        self._lives = lives
        self._clock = clock
        self._is_flushing = False
        self._trouble = ""
        self._confirmed = 0
        self._confirmed_at = clock.monotonic()
        self._has_lost_bytes = False
        self.on_lost_bytes: Callable[[], None] = lambda: None
        """Is called once, after the first failed flush."""
        self.standstill = ""
        """The reason to refuse messages while the set confirms none; empty if it does."""

    def moved(self) -> None:
        """Give the machine the ends of the log, if they have changed; flush the log if only flushed bytes count."""
        lives, machine = self._lives, self._driver.machine
        if not lives.is_open:
            return
        store, known = lives.broker.store, machine.log
        end = store.max_physical_offset
        if end != known.end or store.flushed_position != known.flushed:
            self._driver.give(e.LogMoved(lives.log_state()))
        if machine.counted_end < end and store.flushed_position < end and not self._is_flushing:
            self._is_flushing = True
            store.when_flushed(end, self._flushed)

    def _flushed(self, error: StoreError | None) -> None:
        self._is_flushing = False
        if error is not None:
            self.failed(str(error))
            return
        self.moved()
        if self._lives.is_open and not self._lives.master_epoch:
            self._lives.broker.slave.report()

    def look(self) -> None:
        """Ask the store whether it can be written, about once in a heartbeat."""
        if not self._lives.is_open:
            return
        self.moved()
        self._look_at_confirmed()
        error = self._lives.flush_failure
        if error is not None and not self._has_lost_bytes:
            self._has_lost_bytes = True
            self.on_lost_bytes()
        error = error or self._lives.broker.store.writable()
        if error is not None:
            self.failed(str(error))
        elif self._trouble:
            _log.info("this member can be the master again")
            self._trouble = ""
            self._driver.give(e.DiskHealed())

    def _look_at_confirmed(self) -> None:
        """Notice whether the set confirms nothing for the time of a lease.

        Messages that are appended meanwhile can only be cut later, and clients that get an error find another master.
        """
        machine, now = self._driver.machine, self._clock.monotonic()
        if machine.confirmed != self._confirmed or machine.confirmed >= machine.log.end:
            self._confirmed, self._confirmed_at = machine.confirmed, now
        standing_s = now - self._confirmed_at
        before, self.standstill = self.standstill, ""
        if self._lives.master_epoch and standing_s >= machine.options.lease_s:
            self.standstill = f"the members in sync have confirmed nothing for {machine.options.lease_s:g} s"
        if self.standstill != before:
            self._driver.settle()

    def failed(self, reason: str) -> None:
        """Tell the machine that the log cannot be written."""
        if reason == self._trouble:
            return
        if not self._trouble:
            _log.error("this member cannot be the master: %s", reason)
        self._trouble = reason
        self._driver.give(e.DiskFailed(reason))
