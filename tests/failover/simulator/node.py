"""One member's process and disk: the driver that production has, without sockets, around the real state machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.failover.simulator.engine import LEASE_S
from tests.failover.simulator.log import Entry, Log

from cometmq.broker.failover import events as e
from cometmq.broker.failover.document import Member
from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.failover.history import History, HistoryError
from cometmq.broker.failover.identity import Identity, next_identity
from cometmq.broker.failover.machine import MemberMachine
from cometmq.broker.failover.options import CommandRefusedError, MemberOptions
from cometmq.broker.failover.states import LEADING, State

if TYPE_CHECKING:
    from tests.failover.simulator.world import World

RETRY_S = 0.2
"""Pause before a follower connects again."""


@dataclass
class Disk:
    """What a machine keeps when its process dies."""

    log: Log = field(default_factory=Log)
    flushed: int = 0
    identity: Identity | None = None
    boot: int = 0
    lost_power: bool = False
    generation_seed: int | None = None


@dataclass
class Session:
    """At a master: a replica's connection."""

    follower: str
    number: int
    """The number of the connection."""
    member: Member
    position: int
    reported_at: float


class Node:
    """A member: its disk, its process and its clock."""

    def __init__(self, world: World, name: str, *, flushes: bool) -> None:
        self.world = world
        self.name = name
        self.disk = Disk()
        self.flushes = flushes
        self.is_up = False
        self.is_paused = False
        self.is_disk_bad = False
        self.disk_delay = 0.01
        self.incarnation = 0
        self.rate = 1.0
        self.offset = 0.0
        self.backlog: list[tuple[Any, tuple[Any, ...]]] = []
        self.machine: MemberMachine
        self.presence: Presence | None = None
        self.link: tuple[int, str] | None = None
        self.link_epoch = 0
        self.link_heard = 0.0
        self.is_linked = False
        self.sessions: dict[str, Session] = {}
        self.tick_at = float("inf")
        self.is_flushing = False
        self.is_announced = False

    # --- clock and disk ---------------------------------------------------------------------------
    @property
    def now(self) -> float:
        """This machine's monotonic clock."""
        return self.offset + self.rate * self.world.now

    def later(self, seconds: float, action: Any, *args: Any) -> None:
        """Run an action of this process later, if it still runs then."""
        self.world.at(self.world.now + seconds, self._mine, self.incarnation, action, args)

    def _mine(self, incarnation: int, action: Any, args: tuple[Any, ...]) -> None:
        if not self.is_up or incarnation != self.incarnation:
            return
        if self.is_paused:
            self.backlog.append((action, args))
        else:
            action(*args)

    @property
    def member(self) -> Member | None:
        """The member that this disk is, or will be at the next start; ``None`` for an empty disk."""
        identity = self.disk.identity
        if identity is None:
            return None
        if not self.is_up:
            identity = next_identity(identity, str(self.disk.boot))
        return identity.member(self.name)

    def history(self) -> History:
        """Return the epochs of the log."""
        return History(self.disk.log.epochs(), len(self.disk.log))

    def log_state(self) -> e.LogState:
        """Return the ends of the log."""
        log = self.disk.log
        epochs = log.epochs()
        return e.LogState(len(log), self.disk.flushed, epochs[-1][0] if epochs else 0)

    # --- life -------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the process."""
        if self.is_up:
            return
        self.is_up, self.is_paused = True, False
        self.incarnation += 1
        self.backlog = []
        self.sessions = {}
        self.link, self.is_linked, self.presence, self.is_flushing = None, False, None, False
        self.is_announced = False
        self.tick_at = float("inf")
        disk = self.disk
        first = self.world.first_generation()
        disk.identity = next_identity(disk.identity, str(disk.boot), first)
        disk.lost_power = False
        options = MemberOptions(
            self.name,
            f"{self.name}:1",
            f"{self.name}:2",
            str(self.incarnation),
            self.world.set_id,
            lease_s=LEASE_S,
            min_in_sync=self.world.min_in_sync,
            flushes=self.flushes,
        )
        self.machine = self.world.machine_class(options, disk.identity, self.log_state(), self.now, self.world.wall_ms)
        self.world.note(self, "starts as", disk.identity)
        if self.is_disk_bad:
            self.give(e.DiskFailed("the disk is full"))
        self.do(self.machine.start())
        self.later(0.1, self.beat)

    def kill(self) -> None:
        """Kill the process; the kernel tells its peers."""
        if not self.is_up:
            return
        self.is_up = False
        self.world.note(self, "is killed", "")
        self.world.connections_reset(self)

    def lose_power(self) -> None:
        """Lose all bytes that were not flushed."""
        self.is_up = False
        disk = self.disk
        keep = self.world.rng.randint(disk.flushed, len(disk.log)) if len(disk.log) > disk.flushed else len(disk.log)
        self.world.note(self, "loses power, and its log beyond", keep)
        del disk.log[keep:]
        disk.flushed = len(disk.log)
        disk.boot += 1
        disk.lost_power = True
        self.world.is_dirty = True

    def wipe(self) -> None:
        """Lose the disk."""
        self.is_up = False
        boot = self.disk.boot + 1
        self.disk = Disk(boot=boot)
        self.world.note(self, "loses its disk", "")
        self.world.is_dirty = True

    def pause(self) -> None:
        """Stop the process without its knowledge."""
        self.is_paused = True

    def resume(self) -> None:
        """Let a paused process run: it handles what has arrived."""
        if not self.is_paused:
            return
        self.is_paused = False
        backlog, self.backlog = self.backlog, []
        for action, args in backlog:
            if self.is_up and not self.is_paused:
                action(*args)

    # --- the machine ------------------------------------------------------------------------------
    def give(self, event: e.Event) -> None:
        """Give the machine an event, and do what it asks for."""
        before = self.machine.confirmed
        epoch = self.machine.epoch
        try:
            requests = self.machine.handle(event, self.now)
        except (CommandRefusedError, HistoryError) as error:
            self.world.note(self, "refuses", error)
            return
        if self.world.trace is not None:
            self.world.note(self, f"{self.machine.state.value} after", event)
        self.world.check.after_event(self, event, epoch, before)
        self.do(requests)
        self.schedule_tick()

    def schedule_tick(self) -> None:
        """Wake the machine at its deadline."""
        deadline = self.machine.deadline
        if deadline >= self.tick_at - 1e-9 or deadline == float("inf"):
            return
        self.tick_at = deadline
        self.later(max(0.0, deadline - self.now) / self.rate, self.tick, deadline)

    def tick(self, deadline: float) -> None:
        """Give the machine its tick, if nothing else has happened."""
        if deadline != self.tick_at:
            return
        self.tick_at = float("inf")
        if self.machine.deadline <= self.now + 1e-6:
            self.give(e.Tick())
        else:
            self.schedule_tick()

    def do(self, requests: list[e.Request]) -> None:
        """Do what the machine asks for."""
        for request in requests:
            if self.world.trace is not None:
                self.world.note(self, "asks", request)
            getattr(self, f"do_{type(request).__name__}")(request)

    def do_Read(self, request: e.Read) -> None:  # noqa: N802
        self.world.engine.read(self, request)

    def do_Swap(self, request: e.Swap) -> None:  # noqa: N802
        self.world.engine.swap(self, request)

    def do_Announce(self, request: e.Announce) -> None:  # noqa: N802
        self.presence = request.presence
        self.world.engine.announce(self, request.presence)

    def do_AskTwin(self, request: e.AskTwin) -> None:  # noqa: N802
        """Nobody answers: each name has one disk here, and one process."""
        answered = e.TwinAnswered(request.twin, False)
        self.later(self.world.rng.choice((0.001, 0.01, 0.75)), self.give, answered)

    def do_Confirm(self, request: e.Confirm) -> None:  # noqa: N802
        self.world.check.confirmed(self, request.offset)

    def do_StepDown(self, _: e.StepDown) -> None:  # noqa: N802
        self.sessions = {}

    def do_Halt(self, request: e.Halt) -> None:  # noqa: N802
        self.world.check.halted(self, request)

    def do_Follow(self, request: e.Follow) -> None:  # noqa: N802
        self.link, self.is_linked = None, False
        self.link_epoch = request.epoch
        if request.master is not None:
            self.connect(request.master.name, request.epoch)

    def do_Freeze(self, _: e.Freeze) -> None:  # noqa: N802
        self.link = None
        self.later(self.world.rng.random() * 0.02, self.frozen)

    def frozen(self) -> None:
        """Answer Freeze."""
        if self.machine.state is State.FROZEN:
            self.give(e.FrozenLog(self.log_state()))

    def do_TakeOffice(self, request: e.TakeOffice) -> None:  # noqa: N802
        self.link = None
        self.later(self.world.rng.choice((0.01, 0.1, 0.5)), self.take_office, request.epoch)

    def take_office(self, epoch: int) -> None:
        """Append and flush the marker."""
        machine = self.machine
        if machine.state is not State.ELECTED or machine.epoch != epoch or self.is_disk_bad:
            return
        self.world.check.takes_office(self, epoch)
        self.disk.log.append((epoch, 0))
        self.disk.flushed = len(self.disk.log)
        self.give(e.InOffice(epoch, len(self.disk.log), self.log_state()))

    def do_SaveIdentity(self, request: e.SaveIdentity) -> None:  # noqa: N802
        self.later(self.disk_delay, self.save_identity, request.identity)

    def save_identity(self, identity: Identity) -> None:
        """Write the identity file."""
        self.disk.identity = identity
        self.world.is_dirty = True
        self.give(e.IdentitySaved(identity))

    # --- the log ----------------------------------------------------------------------------------
    def append(self, count: int) -> None:
        """Append records of clients, if the machine allows it."""
        if not self.is_up or self.is_paused or self.machine.refusal or self.is_disk_bad:
            return
        self.world.check.appends(self)
        for _ in range(count):
            self.world.number += 1
            self.disk.log.append((self.machine.epoch, self.world.number))
        self.moved()
        for session in list(self.sessions.values()):
            self.send_entries(session)

    def moved(self) -> None:
        """Tell the machine about its log, and flush it soon."""
        self.give(e.LogMoved(self.log_state()))
        if not self.is_flushing and self.disk.flushed < len(self.disk.log) and not self.is_disk_bad:
            self.is_flushing = True
            self.later(self.disk_delay * (1 + self.world.rng.random()), self.flush, len(self.disk.log))

    def flush(self, end: int) -> None:
        """The disk has everything up to ``end``."""
        self.is_flushing = False
        if self.is_disk_bad:
            return
        self.disk.flushed = max(self.disk.flushed, min(end, len(self.disk.log)))
        self.moved()
        if self.flushes and self.machine.copies(self.link_epoch):
            self.report()

    def do_CopyFrom(self, request: e.CopyFrom) -> None:  # noqa: N802
        disk = self.disk
        if request.offset < len(disk.log):
            del disk.log[request.offset :]
            disk.flushed = min(disk.flushed, request.offset)
            self.world.is_dirty = True
        if self.link is not None:
            self.send(self.link[1], "on_fetch", self.link, self.machine.me, request.offset, request.epoch)
        self.give(e.LogMoved(self.log_state()))

    # --- a follower's link ------------------------------------------------------------------------
    def send(self, name: str, action: str, *args: Any) -> None:
        """Send a message to another member."""
        self.world.send(self, name, action, args)

    def connect(self, name: str, epoch: int) -> None:
        """Connect to the master."""
        if self.link_epoch != epoch or self.machine.state is not State.FOLLOWER or self.is_linked:
            return
        self.world.number += 1
        self.link, self.is_linked = (self.world.number, name), False
        self.link_heard = self.now
        self.send(name, "on_hello", self.link, self.name, epoch)
        self.later(RETRY_S, self.connect, name, epoch)

    def lose_link(self, *, is_refused: bool) -> None:
        """The connection to the master is lost; connect again soon."""
        assert self.link is not None
        name, epoch = self.link[1], self.link_epoch
        self.is_linked = False
        self.give(e.LinkLost(epoch, is_refused))
        self.later(RETRY_S, self.connect, name, epoch)

    def on_history(self, link: tuple[int, str], epoch: int, history: History) -> None:
        """The master has sent its epochs."""
        if link == self.link:
            self.is_linked = True
            self.link_heard = self.now
            self.give(e.MasterHistory(epoch, self.history(), history))

    def on_epoch(self, epoch: int) -> None:
        """A member or the nameserver has named an epoch."""
        self.give(e.EpochSeen(epoch))

    def on_entries(self, link: tuple[int, str], epoch: int, at: int, entries: list[Entry], confirmed: int) -> None:
        """The master has sent records, or a heartbeat."""
        if link != self.link:
            return
        self.link_heard = self.now
        if not self.machine.copies(epoch):
            return
        log = self.disk.log
        if at > len(log) or (entries and self.is_disk_bad):  # bytes were lost on the way: TCP closes the connection
            self.lose_link(is_refused=False)
            return
        if entries and at <= len(log) < at + len(entries):
            self.world.check.copies(self)
            log += entries[len(log) - at :]
            self.moved()
            self.report()
        self.give(e.Heard(epoch, confirmed))

    def report(self) -> None:
        """Report the end of the log."""
        if self.link is not None and self.machine.copies(self.link_epoch):
            self.world.check.reports(self)
            end = self.machine.counted_end
            self.send(self.link[1], "on_report", self.link, self.machine.me, self.link_epoch, end)
            if self.world.rng.random() < self.world.rates.echo_share:
                args = (None, self.machine.me, self.link_epoch, end)
                self.world.at(
                    self.world.now + self.world.rng.random() * 6, self.world.arrive, self.link[1], "on_report", args
                )

    # --- a master's sessions ----------------------------------------------------------------------
    def on_hello(self, link: tuple[int, str], name: str, epoch: int) -> None:
        """A replica has connected."""
        machine = self.machine
        if epoch != machine.epoch or machine.state not in LEADING:
            self.give(e.EpochSeen(epoch))
            if epoch < self.machine.epoch:
                self.send(name, "on_epoch", self.machine.epoch)
            return
        self.send(name, "on_history", link, machine.epoch, self.history())

    def on_fetch(self, link: tuple[int, str], member: Member, offset: int, epoch: int) -> None:
        """A replica asks for the log from an offset on."""
        machine = self.machine
        if epoch != machine.epoch or machine.state not in LEADING:
            return
        self.sessions[member.name] = Session(member.name, link[0], member, offset, self.now)
        self.give(e.SignedIn(member, epoch, f"{member.name}:1", f"{member.name}:2"))
        session = self.sessions.get(member.name)
        if session is not None:
            self.send_entries(session)

    def send_entries(self, session: Session) -> None:
        """Send what a replica lacks."""
        log = self.disk.log
        entries = log[session.position : session.position + 20]
        link = (session.number, self.name)
        machine = self.machine
        self.send(session.follower, "on_entries", link, machine.epoch, session.position, entries, machine.confirmed)
        session.position += len(entries)
        if session.position < len(log):
            self.later(0.01, self.continue_session, session)

    def continue_session(self, session: Session) -> None:
        """Send more."""
        if self.sessions.get(session.follower) is session:
            self.send_entries(session)

    def on_report(self, link: tuple[int, str] | None, member: Member, epoch: int, end: int) -> None:
        """A replica has reported its end; an echo has no link."""
        session = self.sessions.get(member.name)
        if session is not None and link is not None and session.number == link[0]:
            session.reported_at = self.now
        self.give(e.Reported(member, epoch, end))

    def on_reset(self, name: str, is_refused: bool) -> None:
        """The connection to a peer was reset."""
        session = self.sessions.pop(name, None)
        if session is not None:
            self.give(e.ReplicaLost(session.member))
        if self.link is not None and self.link[1] == name and self.machine.state is State.FOLLOWER:
            self.lose_link(is_refused=is_refused)

    # --- heartbeats -------------------------------------------------------------------------------
    def beat(self) -> None:
        """Renew the lease, report, send heartbeats, and close silent connections; once in a heartbeat."""
        beat_s = LEASE_S / 4
        self.later(beat_s / self.rate, self.beat)
        if self.presence is not None:
            self.world.engine.announce(self, self.presence)
        state = self.machine.state
        if state is State.FOLLOWER and self.link is not None:
            if self.is_linked and self.now - self.link_heard > 2 * beat_s:
                self.lose_link(is_refused=False)
            elif self.is_linked:
                self.report()
        if state in LEADING:
            self.world.register(self)
            for session in list(self.sessions.values()):
                if self.now - session.reported_at > 3 * beat_s:
                    del self.sessions[session.follower]
                    self.give(e.ReplicaLost(session.member))
                elif self.machine.state in LEADING:
                    self.send_entries(session)
