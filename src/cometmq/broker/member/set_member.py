"""SetMember: one broker of a set that elects its master (``ReplicasManager``)."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from dataclasses import replace
from typing import Final

from cometmq.broker.config import BrokerConfig, with_host
from cometmq.broker.controller import Broker
from cometmq.broker.failover import events as e
from cometmq.broker.failover.changes import ChangeLog
from cometmq.broker.failover.document import Member, check_name
from cometmq.broker.failover.engines.interface import Engine, Presence
from cometmq.broker.failover.engines.opening import open_engine
from cometmq.broker.failover.history import History
from cometmq.broker.failover.identity import Identity
from cometmq.broker.failover.machine import MemberMachine
from cometmq.broker.failover.options import CommandRefusedError, MemberOptions
from cometmq.broker.failover.states import State
from cometmq.broker.member.driver import Actions, Driver
from cometmq.broker.member.engine_tasks import EngineTasks
from cometmq.broker.member.identity_file import IdentityFile
from cometmq.broker.member.lives import LifeOptions, Lives
from cometmq.broker.member.monitoring import Monitoring
from cometmq.broker.member.own_log import OwnLog
from cometmq.broker.member.roles import Roles
from cometmq.broker.member.sides import Sides
from cometmq.broker.membership import Membership
from cometmq.broker.tables.set_keys import SetKeys
from cometmq.clock import wait_for
from cometmq.errors import reason_of
from cometmq.loop import TaskSet
from cometmq.periodic import Periodic

_log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 3.0
"""Maximum time for the handover of a master that stops."""
_ASKED_TO_COPY: Final = 2
"""Maximum number of members that a handover asks to copy the tables, one after the other: one may hang."""
_CONFIRM_SECONDS: Final = 1.0
"""Maximum time for which a master that stops without a successor waits until its messages are confirmed."""
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


class SetMember:
    """A member of a set: its state machine, its engine, and the broker that is its present life.

    It is the :class:`~cometmq.broker.failover.status.FailoverMember` of tools and metrics.

    :param config: with ``failover``; other members' configurations differ in the addresses only.
    :param engine: the engine; by default, the one in the configuration.
    :param bootstraps: True to found the set with this store's messages, if the engine has no document of it.
    :raises ConfigError: the engine's keys cannot be used.
    :raises TlsError: a TLS file cannot be used.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        engine: Engine | None = None,
        bootstraps: bool = False,
        options: LifeOptions | None = None,
    ) -> None:
        options = options or LifeOptions()
        clock = self._clock = options.clock
        self._bootstraps, self._begins_anew = bootstraps, options.begin_anew
        self._heartbeat_s = config.failover_lease_ms / 4000
        self._process = secrets.token_hex(8)
        self.engine_name: Final = config.failover or "memory"
        self.changes: Final = ChangeLog(clock.now_ms)
        engine = open_engine(config, clock=clock) if engine is None else engine
        self._driver: Final = Driver(clock=clock)
        self._engine: Final = EngineTasks(engine, self._driver.give, heartbeat_s=self._heartbeat_s, clock=clock)
        keys = SetKeys(with_host(config))
        keys.log()
        self._lives: Final = Lives(keys.into(with_host(config)), options)
        self._identity_file: Final = IdentityFile(self._lives.config.root)
        self._own_log: Final = OwnLog(self._driver, self._lives, clock=clock)
        self._own_log.on_lost_bytes = self._lost_bytes
        self._roles: Final = Roles(self._driver, self._lives, self._own_log, clock=clock)
        self._sides: Final = Sides(self._driver, self._lives, self._roles, self._own_log, self._process)
        self._lives.member = Membership(self._sides, self, keys)
        self._looks = Periodic("look at the disk", self._heartbeat_s, self._own_log.look, clock=clock)
        self.monitoring: Final = Monitoring(self._lives, lambda: self._roles.serves, clock=clock)
        self._tasks: Final = TaskSet()
        self._changes_role: asyncio.Task[None] | None = None
        self._is_killed = False

    # --- what tools see ---------------------------------------------------------------------------
    @property
    def machine(self) -> MemberMachine:
        """The state machine."""
        return self._driver.machine

    @property
    def broker(self) -> Broker:
        """The broker that is the member's present life, or was its last one."""
        return self._lives.broker

    @property
    def config(self) -> BrokerConfig:
        """The configuration of the present life."""
        return self.broker.config

    @property
    def address(self) -> str:
        """This member's ``host:port`` for clients, also between two lives."""
        return self.machine.options.address

    @property
    def is_serving(self) -> bool:
        """Return whether this member is the master and serves clients."""
        return self._roles.serves and self._sides.epoch > 0

    @property
    def trouble(self) -> str:
        """The reason why this member cannot follow its master, or has refused another member; or an empty text."""
        return self._sides.trouble

    def history(self) -> History:
        """Return the epochs of the own log."""
        return self._sides.history()

    # --- start ------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Open the store as a slave, and begin to look for the set, which decides the role.

        :raises StoreError: the store cannot be opened.
        :raises IdentityError: the store's file with the member's identity is damaged.
        :raises OSError: a port is in use.
        """
        lives, driver = self._lives, self._driver
        await self._open_first_life()
        try:
            identity = await self._identity_file.begin(lives.broker.store, begins_anew=self._begins_anew)
            await lives.listen_for_members()
            now = self._clock.monotonic()
            driver.drive(MemberMachine(self._options(), identity, lives.log_state(), now, self._clock.now_ms))
            await lives.serve()
        except BaseException:
            await self.monitoring.stop()
            await lives.close()
            raise
        _log.info(
            "%s is a member of the set %s, which %s keeps: generation %d, log up to %d in epoch %d",
            *(self.machine.me, lives.config.broker_name, self.engine_name, identity.generation),
            *(self.machine.log.end, self.machine.log.last_epoch),
        )
        self._roles.serves = True
        self._changes_role = asyncio.get_running_loop().create_task(self._roles.run(), name="change the role")
        self._engine.start()
        self._looks.start()
        actions: Actions = {
            **self._roles.actions,
            e.Read: self._engine.read,
            e.Swap: self._engine.swap,
            e.Announce: self._engine.announce,
            e.AskTwin: self._do_ask_twin,
            e.SaveIdentity: self._do_save_identity,
            e.Confirm: lambda _: self._publish(),
        }
        driver.begin(actions, self._settle, self._advanced)

    async def _open_first_life(self) -> None:
        await self.monitoring.start()  # first, since a store can take long to open
        try:
            await self._lives.open()
        except BaseException:
            await self.monitoring.stop()
            raise

    def _options(self) -> MemberOptions:
        config = self._lives.config
        default = _NOT_NAME.sub("-", f"{config.broker_ip1}-{config.listen_port}").lstrip("._-")
        return MemberOptions(
            check_name(config.failover_member or default),
            self.broker.address,
            self._lives.ha_address,
            self._process,
            secrets.token_hex(8),
            lease_s=config.failover_lease_ms / 1000,
            min_in_sync=config.min_in_sync_replicas,
            priority=config.broker_election_priority,
            flushes=config.sync_flush,
            bootstraps=self._bootstraps,
        )

    # --- stop -------------------------------------------------------------------------------------
    async def stop(self) -> None:
        """Hand over if this member is the master, and stop; do nothing before ``start``."""
        changes_role, self._changes_role = self._changes_role, None
        if changes_role is None:
            return
        self._roles.stop()
        if not self._is_killed:
            await changes_role
            if self.machine.state is State.MASTER:
                await self._leave_office()
        self._driver.stop()
        await self._looks.stop()
        await self._tasks.stop()
        changes_role.cancel()
        ends = await asyncio.gather(
            self._engine.stop(withdraws=not self._is_killed),
            self._lives.close(leaves=True),
            changes_role,
            return_exceptions=True,
        )
        for error in ends:
            if isinstance(error, Exception):
                _log.error("a part of the member was not stopped cleanly", exc_info=error)
        await self.monitoring.stop()
        if not self._is_killed and not (self._lives.config.root / "abort").exists():
            await self._save_clean()

    async def _save_clean(self) -> None:
        """Write that everything is on the disk, unless a flush has failed."""
        end = self._lives.closed_end
        if self._lives.flush_failure is not None or end is None:
            return
        try:
            await self._identity_file.write(replace(self.machine.identity, is_clean=True, end=end))
        except OSError as error:
            _log.warning(
                "%s cannot be written: %s; after a loss of power, this member must copy the log's end again",
                *(self._identity_file.path, reason_of(error)),
            )

    async def _leave_office(self) -> None:
        """Hand over; if nobody can take over, wait until the messages are confirmed that were sent before."""
        began = self._clock.monotonic()
        try:
            await wait_for(self._clock, _STOP_SECONDS, self.hand_over("", f"{self.machine.me} stops"))
        except (CommandRefusedError, TimeoutError) as error:
            _log.warning("%s stops without a handover: %s", self.machine.me, error)
        else:
            _log.info("%s has handed over in %.3f s", self.machine.me, self._clock.monotonic() - began)
            return
        broker = self.broker
        self._roles.forbid("the broker stops")
        broker.turn.end()
        self._own_log.moved()
        end = broker.store.max_physical_offset
        try:
            await wait_for(self._clock, _CONFIRM_SECONDS, self._driver.until(lambda: self.machine.confirmed >= end))
        except TimeoutError:
            _log.warning("%s stops before its set has all its messages", self.machine.me)

    async def cut_off(self) -> None:
        """Close every connection immediately, as if the process had been killed; ``stop`` must still be called."""
        self._is_killed = True
        self._driver.stop()
        if self._changes_role is not None:
            self._changes_role.cancel()
        await self._engine.stop(withdraws=False)
        await self.monitoring.stop()
        if self._lives.is_open:
            await self.broker.cut_off()

    # --- commands of people -----------------------------------------------------------------------
    async def hand_over(self, to: str, why: str) -> None:
        """Make another member the master: ``to``, or the one that is furthest. Return once the engine has it.

        :raises CommandRefusedError: nobody can take over now, or the handover took too long.
        """
        machine = self.machine
        epoch = machine.epoch
        to = await self._with_tables(to) or to
        self._driver.command(e.HandOver(to, why))
        await self._driver.until(lambda: machine.epoch > epoch or machine.state in (State.MASTER, State.HALTED))
        if machine.epoch == epoch:
            raise CommandRefusedError(
                "the handover was given up: the members or the engine were too slow",
                next_step="see cometmq failover status, and try again",
            )

    async def _with_tables(self, to: str) -> str:
        """Return the member that can take over, and has copied the tables once more; empty if none has in time.

        Another one may be further a moment later, but its offsets are up to a second old.
        """
        asked: list[Member] = []
        while len(asked) < _ASKED_TO_COPY and (in_sync := self.machine.in_sync) is not None:
            successor = in_sync.best_successor(to, self._clock.monotonic(), but=asked)
            if successor is None:
                break
            asked.append(successor)
            has_copied = await self.broker.ha.copy_tables(successor)
            if has_copied and in_sync.best_successor(successor.name, self._clock.monotonic()) is not None:
                return successor.name
        return ""

    async def force(self, why: str) -> None:
        """Let this member stand for election although it may lack acknowledged messages.

        :raises CommandRefusedError: the set has a master, or this member cannot stand.
        """
        self._driver.command(e.Force(why))

    async def forget(self, name: str) -> None:
        """Remove a replica that never comes back from the document.

        :raises CommandRefusedError: this member is not the master, or the replica is still part of the set.
        """
        self._driver.command(e.Forget(name))

    # --- a process with the same name ---------------------------------------------------------------
    def _do_ask_twin(self, request: e.AskTwin) -> None:
        self._tasks.start(self._ask_twin(request.twin), "ask the process that has this member's name")

    async def _ask_twin(self, twin: Presence) -> None:
        link = self.broker.slave.link
        assert link is not None
        is_alive = await link.has_twin(twin)
        self._driver.give(e.TwinAnswered(twin, is_alive))
        if self.machine.state is State.STARTING and twin.member != self.machine.me:
            _log.warning("%s", self.machine.reason)

    # --- identity ---------------------------------------------------------------------------------
    def _lost_bytes(self) -> None:
        self._identity_file.lost_bytes()
        self._do_save_identity(e.SaveIdentity(self.machine.identity))

    def _do_save_identity(self, request: e.SaveIdentity) -> None:
        self._tasks.start(self._save_identity(request.identity), "save the identity")

    async def _save_identity(self, identity: Identity) -> None:
        while True:
            try:
                await self._identity_file.write(identity)
                break
            except OSError as error:
                self._own_log.failed(f"{self._identity_file.path} cannot be written: {reason_of(error)}")
                await self._clock.sleep(self._heartbeat_s)
        self._driver.give(e.IdentitySaved(identity))
        self._own_log.moved()
        if self._lives.is_open and not self._lives.master_epoch:
            self.broker.slave.report()

    # --- what follows from events -----------------------------------------------------------------
    def _publish(self) -> None:
        """Let consumers read what the set has, and acknowledge it."""
        lives, readable = self._lives, self.machine.readable
        if not lives.is_open or not readable:
            return
        broker = lives.broker
        broker.store.confirm(readable)
        lives.is_confirmed = broker.store.readable_end > 0
        if lives.master_epoch:
            broker.confirms.confirm(readable)
            broker.ha.confirmed()

    def _advanced(self) -> None:
        """Let consumers of a follower read what the set has."""
        lives = self._lives
        if lives.is_open and self.machine.readable > lives.broker.store.readable_end:
            self._publish()

    def _settle(self) -> None:
        """Look at everything that an event may have changed: what may be read, refusals, and the broker id."""
        machine, lives = self.machine, self._lives
        self.changes.observe(machine)
        if not lives.is_open:
            return
        if not lives.is_confirmed:
            self._publish()
        self._advanced()
        if lives.master_epoch:
            self._roles.forbid(machine.refusal or self._own_log.standstill)
        elif machine.state not in (State.STARTING, State.HALTED) and not lives.is_registered and self._roles.serves:
            replica = None if machine.view.document is None else machine.view.document.replica(machine.me.name)
            if replica is not None:
                lives.register(replica.broker_id)
        if lives.broker.monitor is not None and self._roles.serves:
            lives.broker.monitor.not_ready = self._unready()

    def _unready(self) -> str:
        """Return the reason why this member is not ready: it is neither a master that serves nor in sync with it."""
        machine = self.machine
        if self._lives.master_epoch:
            return "" if machine.state is State.MASTER else machine.refusal
        if machine.state is not State.FOLLOWER:
            return self._sides.client_refusal or machine.refusal
        document = machine.view.document
        assert document is not None
        if machine.me not in document.in_sync or not machine.link.is_copying:
            return f"this member catches up with the master {document.master}: it is not in sync yet"
        return self._sides.client_refusal
