"""The state machine of one member of a set, without sockets, files or clocks (``ReplicasManager``).

``handle`` takes an event and the monotonic time, and returns requests. ``deadline`` is the time of the next ``Tick``.
The package's docstring explains the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, get_args

from cometmq.broker.failover import events as e
from cometmq.broker.failover import halts
from cometmq.broker.failover.announcer import Announcer
from cometmq.broker.failover.candidate import Candidate
from cometmq.broker.failover.commands import check_force, check_forget, successor_for
from cometmq.broker.failover.document import Document, founding_document
from cometmq.broker.failover.engine_view import EngineView, EngineWentBackError, check_set
from cometmq.broker.failover.history import common_end
from cometmq.broker.failover.identity import Identity
from cometmq.broker.failover.in_sync import InSyncSet
from cometmq.broker.failover.leading import Leader
from cometmq.broker.failover.master_link import MasterLink
from cometmq.broker.failover.options import NEVER, MemberOptions
from cometmq.broker.failover.short_way import ShortWay
from cometmq.broker.failover.solid import SolidMark
from cometmq.broker.failover.states import FROZEN, LEADING, TRANSITIONS, Change, State
from cometmq.broker.failover.twins import Twins

_HANDLERS: Final = {kind: "_on" + re.sub("([A-Z])", r"_\1", kind.__name__).lower() for kind in get_args(e.Event)}
"""The method for each event: ``_on_document_read`` for ``DocumentRead``."""


class MemberMachine:
    """One member of a set, from the start of its process to the end.

    :param wall_ms: returns the wall time, which only people read.
    """

    def __init__(
        self, options: MemberOptions, identity: Identity, log: e.LogState, now: float, wall_ms: Callable[[], int]
    ) -> None:
        self.options: Final = options
        self.me: Final = identity.member(options.name)
        self.state = State.STARTING
        self.epoch = 0
        """The highest epoch that this member has read from the engine."""
        self.log = log
        self.reason = "the document has not been read"
        """The cause of the last change of state, for people."""
        self.next_step = ""
        """The step that a person must do, once the member has halted."""
        self.disk_trouble = ""
        self.confirmed = 0
        """Log offset up to which all counted members have the log, as far as this member knows."""
        self.view: Final = EngineView()
        """The newest known document and presences, and the reason why the engine does not answer."""
        self._solid = SolidMark(identity, flushes=options.flushes)
        self._wall_ms = wall_ms
        self._out: list[e.Request] = []
        self.was_short = False
        """True if the last event can have changed only ``log`` and ``confirmed``."""
        self._short_way: Final = ShortWay()
        self._now = self._last_event_at = self._next_read_at = now
        self._announcer: Final = Announcer(self.me, options)
        self._twins: Final = Twins(self.me, options, now)
        self.link: Final = MasterLink(options.silent_s, now)
        self._candidate: Final = Candidate(self.me, options, self.view, self.link, wall_ms)
        self._doubted_at = self._doubted_epoch = 0
        self._leader: Leader | None = None

    def start(self) -> list[e.Request]:
        """Return the first requests."""
        return list(self.view.read())

    def handle(self, event: e.Event, now: float) -> list[e.Request]:
        """Return the requests that follow from an event at a monotonic time.

        :raises CommandRefusedError: a person's command is not possible now.
        :raises HistoryError: this log cannot continue with the master's.
        """
        self._out = []
        was_paused = now - self._last_event_at > 1.5 * self.options.heartbeat_s
        log = None if was_paused else self._short_way.take(event, self.log, now)
        self.was_short = log is not None
        if log is not None:
            self.log, self._now, self._last_event_at = log, now, now
            self._confirm(self._short_way.confirmed_end)
            return self._out
        self._short_way.close()
        if self.state is State.HALTED:
            return self._out
        self._now = self._last_event_at = now
        if was_paused:  # judge nobody by the time in which this process did not run
            self.link.heard_at = now
            self._twins.waits_again(now)
            if self.in_sync is not None:
                self.in_sync.was_paused(now)
        getattr(self, _HANDLERS[type(event)])(event)
        self._settle()
        in_sync = self.in_sync if self.state is State.MASTER and not self.disk_trouble else None
        self._short_way.open_if_steady(in_sync, self.link, self._solid, self.epoch)
        return self._out

    @property
    def deadline(self) -> float:
        """The monotonic time at which the machine needs a ``Tick``."""
        if self.state is State.HALTED:
            return NEVER
        times = [self._last_event_at + self.options.heartbeat_s, self._next_read_at, self.view.retry_at]
        if self.state is State.FROZEN:
            times.append(self._candidate.decide_at)
        if self._leader is not None:
            times.append(self._leader.deadline(judges=self.state is State.MASTER and self.view.pending is None))
        return max(min(times), self._now)

    @property
    def in_sync(self) -> InSyncSet | None:
        """The master's view of the set; ``None`` at other members."""
        return None if self._leader is None else self._leader.in_sync

    @property
    def identity(self) -> Identity:
        """The content of the identity file."""
        return self._solid.identity

    @property
    def refusal(self) -> str:
        """The reason why no message may be appended for clients; empty if the member is a working master."""
        if self.state is not State.MASTER:
            return f"this member is {self.state.value}: {self.reason}"
        if self.disk_trouble:
            return self.disk_trouble
        return "" if self._leader is None else self._leader.refusal

    @property
    def counted_end(self) -> int:
        """The end of the own log that may be reported or acknowledged."""
        return self._solid.counted_end(self.log, is_alone=self._is_alone)

    @property
    def readable(self) -> int:
        """Log offset up to which consumers, pops, timers and checks may read."""
        return min(self.confirmed, self.log.end)

    def copies(self, epoch: int) -> bool:
        """Return whether bytes from the master of an epoch may be appended and reported."""
        return self.link.is_copying and epoch == self.epoch and self.state is State.FOLLOWER

    def _on_document_read(self, event: e.DocumentRead) -> None:
        self._out += self.view.read_ended(event.number)
        has_moved = self._learn(event.number, event.document, event.version)
        if has_moved is None:
            return
        self.view.presences, self.view.read_number = event.presences, event.number
        is_calm = self.state in LEADING or (self.state is State.FOLLOWER and not self.link.is_silent(self._now))
        self._next_read_at = self._now + (self.options.lease_s if is_calm else self.options.heartbeat_s)
        self._decide(has_moved)

    def _on_swap_answered(self, event: e.SwapAnswered) -> None:
        has_moved = self._learn(event.number, event.document, event.version)
        if has_moved:
            self._decide(has_moved)
            return
        self.view.was_refused(event.number, self._now + self.options.heartbeat_s)
        if self.view.pending is None and self.view.document is not None:
            if self.state is State.STANDING:
                self._follow(Change.THAW, "the master's presence has returned")
            elif self.in_sync is not None and has_moved is not None:
                self.in_sync.confirm(self.view.document.in_sync, self._now)
        self._out += self.view.read()

    def _on_engine_silent(self, event: e.EngineSilent) -> None:
        retry_at = self._now + self.options.heartbeat_s
        self.view.was_silent(event.number, event.reason, retry_at)
        self._twins.waits_again(self._now)
        self._next_read_at = min(self._next_read_at, retry_at) if self._next_read_at > self._now else retry_at

    def _on_engine_changed(self, _: e.EngineChanged) -> None:
        self._out += self.view.read()

    def _on_lease_lost(self, _: e.LeaseLost) -> None:
        self._announcer.forget()
        self._out += self.view.read()

    def _on_name_taken(self, event: e.NameTaken) -> None:
        self._announcer.silence()
        self._halt(halts.name_taken(self.me, event.by))

    def _on_twin_answered(self, event: e.TwinAnswered) -> None:
        if event.is_alive and self.state is State.STARTING:
            self._on_name_taken(e.NameTaken(event.twin.address))
        else:
            self._twins.was_silent(event.twin)
            self._out += self.view.read()

    def _learn(self, number: int, document: Document | None, version: str) -> bool | None:
        """Take over a document; return whether its version has moved, or ``None`` if nothing may follow from it."""
        try:
            if document is not None:
                log_epoch = self.log.last_epoch if self.state is State.STARTING else 0
                check_set(document, self.identity.set_id, log_epoch)
            return self.view.learn(number, document, version)
        except EngineWentBackError as error:
            self._halt(error.halt)
            return None

    def _decide(self, has_moved: bool) -> None:
        document = self.view.document
        if document is None:
            self._found()
        elif self.state is State.STARTING:
            self._begin(document)
        elif document.epoch > self.epoch:
            self._enter(document)
        elif self.state is State.FOLLOWER:
            self._suspect(document)
        elif self.state is State.STANDING and has_moved:
            self._follow(Change.THAW, "another change has won")
        elif self.state is State.FROZEN:
            self._vote(document, has_moved)
        elif self.state in LEADING:
            assert self.in_sync is not None
            if has_moved:
                self.in_sync.confirm(document.in_sync, self._now)
            if self.state is State.DOUBTING and self.view.read_number >= self._doubted_at:
                self._move(Change.TRUST, "the document still names this master")

    def _found(self) -> None:
        """Create the set's document, if this may be a new set."""
        if (self.log.end or self.identity.set_id) and not self.options.bootstraps:
            self._halt(halts.no_document())
        elif self.view.pending is None:
            set_id = self.identity.set_id or self.options.set_id
            founded = founding_document(set_id, self.log.last_epoch + 1, self.me, self._wall_ms())
            self._out.append(self.view.propose(self.options.into(founded)))

    def _begin(self, document: Document) -> None:
        twin = self._twins.other(self.view.presences)
        if twin is not None:
            self.reason = halts.waits_for_name(self.me, twin.address)
            self._out += self._twins.ask(twin)
            if self._twins.is_old(self._now):
                self._on_name_taken(e.NameTaken(twin.address))
        elif not self.identity.set_id:
            self._out += self._solid.remember_set(document.set_id)
        else:
            self._enter(document)

    def _enter(self, document: Document) -> None:
        """Take the part that the document of a new epoch gives this member."""
        self.epoch = document.epoch
        if document.master == self.me and self.log.last_epoch < document.epoch and self.state not in LEADING:
            self._move(Change.ELECT, document.why)
            if not self.disk_trouble:
                self._out.append(e.TakeOffice(self.epoch))
            return
        change = Change.THAW if self.state in FROZEN else Change.READ
        if self.state in LEADING or self.state is State.ELECTED:
            self._out.append(e.StepDown(f"epoch {document.epoch}: {document.why}"))
            change = Change.SUPERSEDE
        self._follow(change, document.why)

    def _suspect(self, document: Document) -> None:
        if self.disk_trouble or self.me not in document.in_sync:
            return
        reason = self._candidate.suspicion(document, self._now)
        if reason:
            self._freeze(reason)

    def _freeze(self, reason: str) -> None:
        self._move(Change.SUSPECT, reason)
        self._out.append(e.Freeze(self.epoch))

    def _vote(self, document: Document, has_moved: bool) -> None:
        """Stand for election if nobody present has more, and enough time was given to show it."""
        thaws = "the document has changed" if has_moved else self.disk_trouble or self._candidate.thaws(document)
        if thaws:
            self._follow(Change.THAW, thaws)
        elif self._candidate.may_stand(document, self._now):
            self._move(Change.STAND, self.reason)
            self._out.append(self._candidate.stand(document, self.reason))

    def _on_master_history(self, event: e.MasterHistory) -> None:
        if event.epoch != self.epoch or self.state is not State.FOLLOWER:
            self._see(event.epoch)
            return
        offset = common_end(event.mine, event.masters.checked())
        self.link.accepted(self._now)
        self.log = e.LogState(min(self.log.end, offset), min(self.log.flushed, offset), event.mine.epoch_before(offset))
        self.confirmed = min(self.confirmed, offset)  # lower only after a person has forced an election
        self._out.append(e.CopyFrom(self.epoch, offset))

    def _on_heard(self, event: e.Heard) -> None:
        if not self.copies(event.epoch):
            self._see(event.epoch)
            return
        self.link.heard_at = self._now
        self._confirm(event.confirmed)

    def _on_link_lost(self, event: e.LinkLost) -> None:
        if event.epoch != self.epoch or self.state is not State.FOLLOWER:
            return
        self.link.lost(is_refused=event.is_refused)
        self._out += self.view.read()

    def _on_signed_in(self, event: e.SignedIn) -> None:
        self._see(event.epoch)
        document = self.view.document
        if event.epoch == self.epoch and self._leader is not None and document is not None:
            self._leader.signed_in(event, document, self.view.presences, self.log.end, self._now)

    def _on_reported(self, event: e.Reported) -> None:
        if event.epoch != self.epoch:
            self._see(event.epoch)
        elif self.in_sync is not None:
            self.in_sync.reported(event.member, event.end, self.log.end, self._now)

    def _on_replica_lost(self, event: e.ReplicaLost) -> None:
        if self.in_sync is not None:
            self.in_sync.disconnected(event.member)
            self._out += self.view.read()

    def _on_epoch_seen(self, event: e.EpochSeen) -> None:
        self._see(event.epoch)

    def _see(self, epoch: int) -> None:
        """Stop acknowledging if somebody knows a higher epoch, until the document was read."""
        if epoch <= self.epoch or (self.state is State.DOUBTING and epoch <= self._doubted_epoch):
            return  # known, or the read that answers it is on its way
        self._doubted_at, self._doubted_epoch = self.view.next_number, epoch
        if self.state in (State.MASTER, State.HANDING_OVER):
            self._move(Change.DOUBT, f"somebody has named epoch {epoch}")
        self._out += self.view.read()

    def _on_log_moved(self, event: e.LogMoved) -> None:
        self.log = event.log

    def _on_frozen_log(self, event: e.FrozenLog) -> None:
        self.log = event.log
        if self.state is State.FROZEN:
            self.confirmed = min(self.confirmed, event.log.end)  # lower only if a person forces this election
            self._candidate.freeze(event.log, self.epoch, self._now)
            self._out += self.view.read()

    def _on_in_office(self, event: e.InOffice) -> None:
        self.log = event.log
        document = self.view.document
        if self.state is not State.ELECTED or event.epoch != self.epoch or document is None:
            return
        self._move(Change.SERVE, document.why)
        self._leader = Leader(self.me, self.options, document, event.start, self._now, self._wall_ms)

    def _on_identity_saved(self, event: e.IdentitySaved) -> None:
        self._solid.saved(event.identity)
        if self.state is State.STARTING:
            self._out += self.view.read()

    def _on_disk_failed(self, event: e.DiskFailed) -> None:
        self.disk_trouble = event.reason

    def _on_disk_healed(self, _: e.DiskHealed) -> None:
        self.disk_trouble = ""
        if self.state is State.ELECTED:
            self._out.append(e.TakeOffice(self.epoch))

    def _on_hand_over(self, event: e.HandOver) -> None:
        successor = successor_for(self.me, self.state, self._leader, event.to, self._now)
        assert self._leader is not None
        self._move(Change.HAND_OVER, event.why)
        self._leader.begin_handover(successor, self._now)

    def _on_force(self, event: e.Force) -> None:
        check_force(self.me, self.state, self.view.document, self.view.presences)
        self._candidate.force()
        if self.state is State.FOLLOWER:
            self._freeze(event.why)
        else:
            self.reason = event.why
            self._out += self.view.read()

    def _on_forget(self, event: e.Forget) -> None:
        check_forget(self.me, self.state, self.view.document, self.view.presences, event.name)
        assert self._leader is not None
        self._leader.replicas.forget(event.name)

    def _on_tick(self, _: e.Tick) -> None:
        if self._now >= self._next_read_at:
            self._next_read_at = self._now + self.options.heartbeat_s
            self._out += self.view.read()
        if self.state is State.FROZEN and self._candidate.is_due(self._now):
            self._out += self.view.read()
        if self.state is State.FOLLOWER and self.link.is_silent(self._now):
            self._next_read_at = min(self._next_read_at, self._now + self.options.heartbeat_s)
        self._repeat_swap()

    def _repeat_swap(self) -> None:
        if not self.view.begins_retry(self._now, self.options.heartbeat_s):
            return
        leader, document = self._leader, self.view.document
        if document is not None and self.state is State.STANDING:
            self._out += self._candidate.repeat(document)
        else:
            self._out.append(leader.repeat(self.view) if leader else self.view.repeat())

    @property
    def _is_alone(self) -> bool:
        return self._leader is not None and self._leader.in_sync.is_alone

    def _settle(self) -> None:
        leader, document = self._leader, self.view.document
        if leader is not None and document is not None:
            if self.state is State.MASTER:
                self._lead(leader, document)
            elif self.state is State.HANDING_OVER:
                self._finish_handover(leader, document)
            if self.state is not State.DOUBTING:
                self._confirm(leader.in_sync.confirmed_end(self.counted_end))
        if leader is not None or self.link.is_copying:
            self._out += self._solid.settle(self.log, is_alone=self._is_alone)
        if self.state is not State.STARTING:
            self._announce()

    def _confirm(self, end: int) -> None:
        if end > self.confirmed:
            self.confirmed = end
            self._out += [] if self._leader is None else [e.Confirm(end)]

    def _lead(self, leader: Leader, document: Document) -> None:
        """Change the set if a replica has left or caught up; hand over if the disk fails."""
        successor = leader.in_sync.best_successor("", self._now) if self.disk_trouble else None
        if successor is not None:
            self._move(Change.HAND_OVER, f"{self.me} cannot be the master: {self.disk_trouble}")
            leader.begin_handover(successor.name, self._now)
        elif self.view.pending is None:
            self._out += leader.propose(leader.next_document(document, self.view.presences, self._now), self.view)

    def _finish_handover(self, leader: Leader, document: Document) -> None:
        elected = leader.handover_document(document, self.reason, disk_trouble=self.disk_trouble)
        is_complete = leader.in_sync.confirmed_end(self.counted_end) >= self.log.end or bool(self.disk_trouble)
        if self.view.pending is None and elected is not None and is_complete:
            self._out += leader.propose(elected, self.view)
        elif leader.gives_up(elected, self._now, disk_trouble=self.disk_trouble):
            self._move(Change.KEEP, "the handover was given up: the members or the engine were too slow")

    def _announce(self) -> None:
        has_office = self.state in LEADING or (self.state is State.ELECTED and not self.disk_trouble)
        self._out += self._announcer.announce(
            self.epoch if has_office else 0, self._candidate.ballot, self.disk_trouble
        )

    def _move(self, change: Change, reason: str) -> None:
        self.state = TRANSITIONS[self.state, change]
        self.reason = reason
        self.link.is_copying = False
        if self.state not in LEADING:
            self._leader = None
        elif self._leader is not None and self.state is not State.HANDING_OVER:
            self._leader.handover_ends_at = NEVER
        if self.state not in (State.FROZEN, State.STANDING):
            self._candidate.end()

    def _follow(self, change: Change, reason: str) -> None:
        """Become a follower of the document's master."""
        self._move(change, reason)
        self.link.begin(self._now)
        document = self.view.document
        assert document is not None
        is_mine = document.master.name == self.me.name
        self._out.append(e.Follow(self.epoch, None if is_mine else document.replica(document.master.name)))
        if is_mine:  # served in an earlier process: it stands for the next epoch, as everybody
            self._out += self.view.read()

    def _halt(self, halt: e.Halt) -> None:
        if self.state in LEADING or self.state is State.ELECTED:
            self._out.append(e.StepDown(halt.reason))
        self._move(Change.HALT, halt.reason)
        self.next_step = halt.next_step
        self._out.append(halt)
