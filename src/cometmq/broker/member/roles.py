"""Brings a member's broker to the role that its state machine has: follows, freezes, takes office, steps down
(``changeToMaster``, ``changeToSlave``).

Freezing, following and the fence of a master that steps down happen at once. A change of the life takes longer; one
task does it, and looks at the machine again when it is done. So a role that has changed twice in the meantime is
skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from cometmq.broker.failover import events as e
from cometmq.broker.failover.states import LEADING, State
from cometmq.broker.member.driver import Driver
from cometmq.broker.member.lives import Lives
from cometmq.broker.member.own_log import OwnLog
from cometmq.broker.turn.targets import NotServingError
from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.message.names import MASTER_ID
from cometmq.store.errors import StoreError
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)


class Roles:
    """The changes of one member's role; ``run`` is its task."""

    def __init__(self, driver: Driver, lives: Lives, log: OwnLog, *, clock: Clock) -> None:
        self._driver = driver
        self._lives = lives
        self._own_log = log
        self._clock = clock
        self._wakes: Final = asyncio.Event()
        self._followed: e.Follow | None = None
        self._copy_from: e.CopyFrom | None = None
        self._cut: tuple[int, int] | None = None
        """The log offset from which the log must be cut, and the epoch that replaces what is cut."""
        self._office_began = 0.0
        self._start = 0
        """Log offset after the marker of the present epoch."""
        self._is_stopping = False
        self._refusal: str | None = None
        self.serves = False
        """True while the present life listens for clients."""

    @property
    def actions(self) -> dict[type[e.Request], Callable[[Any], None]]:
        """The functions for the machine's requests that concern the role."""
        return {
            e.Follow: self._do_follow,
            e.CopyFrom: self._do_copy_from,
            e.Freeze: self._do_freeze,
            e.TakeOffice: self._do_take_office,
            e.StepDown: self._do_step_down,
            e.Halt: self._do_halt,
        }

    @property
    def _is_slave(self) -> bool:
        return self._lives.is_open and not self._lives.master_epoch and self._cut is None

    # --- at once ----------------------------------------------------------------------------------
    def _do_follow(self, request: e.Follow) -> None:
        self._followed = request
        if self._is_slave:
            self._lives.broker.slave.follow(request.epoch, request.master)
        self._wakes.set()

    def _do_copy_from(self, request: e.CopyFrom) -> None:
        self._copy_from = request

    def compare(self, history: e.MasterHistory) -> int | None:
        """Compare the logs; return the log offset from which to copy, or ``None`` if the epoch has ended.

        :raises HistoryError: this log cannot continue with the master's.
        """
        self._copy_from = None
        self._driver.command(history)
        return None if self._copy_from is None else self._copy_from.offset

    def cut(self, offset: int, epoch: int) -> None:
        """Cut the log, and follow the same master again after that."""
        self._cut = offset, epoch
        self._wakes.set()

    def _leave_master(self) -> None:
        """Append and report nothing more of what the master sends."""
        self._followed = None
        if self._is_slave:
            self._lives.broker.slave.leave()

    def _do_freeze(self, _: e.Freeze) -> None:
        self._leave_master()
        if self._is_slave:
            self._driver.give(e.FrozenLog(self._lives.log_state()))

    def _do_take_office(self, _: e.TakeOffice) -> None:
        self._office_began = self._clock.monotonic()
        self._leave_master()
        self._wakes.set()

    def _do_step_down(self, request: e.StepDown) -> None:
        """Answer waiting sends with an error, store nothing more, and close the connections of this epoch."""
        self._wakes.set()
        if self._lives.is_open and self._lives.master_epoch:
            self.forbid(request.reason)
            self._lives.broker.ha.cut_off()
            self._lives.give_up()

    def _do_halt(self, request: e.Halt) -> None:
        _log.error("this member waits for a person: %s; %s", request.reason, request.next_step)
        self._leave_master()
        self._wakes.set()

    def forbid(self, refusal: str) -> None:
        """Refuse messages with a reason, or accept them if it is empty."""
        if refusal == self._refusal:
            return
        self._refusal = refusal
        self._lives.broker.turn.forbid(NotServingError(refusal) if refusal else None)
        if refusal and self.serves:
            _log.warning("messages are refused: %s", refusal)

    # --- in a task --------------------------------------------------------------------------------
    async def run(self) -> None:
        """Change the life whenever the role demands it, until the task is cancelled."""
        trouble = ""
        while not self._is_stopping:
            await self._wakes.wait()
            self._wakes.clear()
            try:
                await self._change_life()
                trouble = ""
            except (CometMQError, OSError) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _log.error("cannot change the role: %s; will retry", error)
                await self._pause()
            except Exception:
                _log.exception("cannot change the role")
                await self._pause()

    def stop(self) -> None:
        """Begin no further change; the one on its way is completed, and ``run`` ends."""
        self._is_stopping = True
        self._wakes.set()
        self._driver.wake()

    async def _pause(self) -> None:
        await self._clock.sleep(self._driver.machine.options.heartbeat_s)
        self._wakes.set()

    async def _change_life(self) -> None:
        machine, lives = self._driver.machine, self._lives
        while not self._is_stopping:
            is_elected = machine.state is State.ELECTED and not machine.disk_trouble and self._cut is None
            if is_elected:
                await self._take_office(machine.epoch)
            elif machine.state in LEADING and lives.master_epoch == machine.epoch:
                if self.serves:
                    return
                if not lives.is_open:
                    await self._resume_office(machine.epoch)
                await self._serve_as_master()
            elif lives.master_epoch or not lives.is_open or self._cut is not None or not self.serves:
                await self._become_slave()
            else:
                if machine.state is State.HALTED:
                    await lives.leave()
                return

    async def _close(self) -> None:
        self.serves = False
        self._refusal = None
        await self._lives.close(leaves=self._driver.machine.state is State.HALTED)

    async def _take_office(self, epoch: int) -> None:
        """Open the store as the master, and append the epoch's marker."""
        lives, machine = self._lives, self._driver.machine
        try:
            await self._close()
            await lives.open(epoch)
            if machine.state is not State.ELECTED or machine.epoch != epoch:  # the log needs no marker of this epoch
                return
            start = self._start = await lives.begin_epoch()
        except (CometMQError, OSError) as error:
            self._own_log.failed(f"the office cannot be taken: {error}")
            return
        if machine.state is State.ELECTED and machine.epoch == epoch:
            self._driver.give(e.InOffice(epoch, start, lives.log_state()))
        if machine.state in LEADING and machine.epoch == epoch:
            async with self._closing_if_it_fails():
                await lives.listen_for_members()

    async def _resume_office(self, epoch: int) -> None:
        """Open the store again in the same epoch, after followers or clients could not be served."""
        lives = self._lives
        async with self._closing_if_it_fails():
            await lives.open(epoch)
            await lives.begin_epoch()
            await lives.listen_for_members()

    @asynccontextmanager
    async def _closing_if_it_fails(self) -> AsyncIterator[None]:
        """Close a master that cannot serve, so that nothing of it runs twice; another member takes over if it can."""
        try:
            yield
        except Exception as error:
            self._own_log.failed(f"the master cannot serve: {error}")
            await self._close()
            raise

    async def _serve_as_master(self) -> None:
        """Serve clients, once everything is confirmed that this member had when it was elected."""
        lives, machine = self._lives, self._driver.machine
        epoch = lives.master_epoch
        listens_at = self._clock.monotonic()

        def leads() -> bool:
            return machine.state in LEADING and machine.epoch == epoch and not self._is_stopping

        await self._driver.until(lambda: machine.confirmed >= self._start or not leads())
        if not leads():
            return
        confirmed_at = self._clock.monotonic()
        async with self._closing_if_it_fails():
            await lives.serve()
        self.serves = True
        if not leads():
            return
        lives.register(MASTER_ID)
        now = self._clock.monotonic()
        _log.info(
            "%s serves clients as the master of epoch %d, %.3f s after its election: %.3f s to open the store, %.3f s "
            "until the set has its log, %.3f s to begin",
            *(machine.me, epoch, now - self._office_began, listens_at - self._office_began),
            *(confirmed_at - listens_at, now - confirmed_at),
        )

    async def _become_slave(self) -> None:
        """Open the store as a slave, after cutting its log if necessary."""
        lives, machine = self._lives, self._driver.machine
        began = self._clock.monotonic()
        if lives.is_open:
            await self._close()
        if self._cut is not None:
            try:
                await in_thread(lives.cut, *self._cut)
            except (CometMQError, OSError) as error:
                reason = f"its log cannot be cut, so its ports stay closed: {error}"
                self._own_log.failed(reason)
                raise StoreError(reason) from error
            self._cut = None
        await lives.open()
        await lives.listen_for_members()
        self._own_log.moved()
        if machine.state is State.FROZEN:
            self._driver.give(e.FrozenLog(lives.log_state()))
        if self._followed is not None and machine.state is State.FOLLOWER:
            lives.broker.slave.follow(self._followed.epoch, self._followed.master)
        await lives.serve()
        self.serves = True
        _log.info("%s is a slave after %.3f s", machine.me, self._clock.monotonic() - began)
