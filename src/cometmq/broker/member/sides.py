"""A member, as replication sees it: events of connections go to the state machine."""

from __future__ import annotations

from cometmq.broker.failover import events as e
from cometmq.broker.failover.document import Member, is_member
from cometmq.broker.failover.history import History
from cometmq.broker.failover.states import LEADING, State
from cometmq.broker.limits import MAX_FAILOVER_MEMBERS, REFUSAL_SHOWN_SECONDS
from cometmq.broker.member.driver import Driver
from cometmq.broker.member.lives import Lives
from cometmq.broker.member.own_log import OwnLog
from cometmq.broker.member.roles import Roles


class Sides:
    """Implements :class:`~cometmq.broker.membership.MemberSides`.

    :param process: a random number, chosen at the start of the process.
    """

    def __init__(self, driver: Driver, lives: Lives, roles: Roles, log: OwnLog, process: str) -> None:
        self._driver = driver
        self._lives = lives
        self._roles = roles
        self._log = log
        self._refused: dict[str, tuple[str, float]] = {}
        """The reason and the time of the last refused sign-in for which a person must do something, by member."""
        self.process = process

    # --- both sides -------------------------------------------------------------------------------
    @property
    def me(self) -> Member:
        """This member."""
        return self._driver.machine.me

    @property
    def set_id(self) -> str:
        """The id of the set to which this store belongs."""
        return self._driver.machine.identity.set_id

    @property
    def heartbeat_s(self) -> float:
        """Interval of heartbeats and repeated reports in seconds."""
        return self._driver.machine.options.heartbeat_s

    @property
    def readable(self) -> int:
        """Log offset up to which messages may be read."""
        return self._driver.machine.readable if self._driver.has_machine else 0

    def epoch_seen(self, epoch: int) -> None:
        """Another member, or a nameserver, has named an epoch."""
        self._driver.give(e.EpochSeen(epoch))

    # --- the master's side ------------------------------------------------------------------------
    @property
    def epoch(self) -> int:
        """The epoch in which this member serves as master, or 0 if it does not."""
        machine = self._driver.machine
        serves = machine.state in LEADING and self._lives.master_epoch == machine.epoch
        return machine.epoch if serves else 0

    @property
    def known_epoch(self) -> int:
        """The highest epoch that this member knows."""
        return self._driver.machine.epoch

    @property
    def registered_epoch(self) -> int:
        """The epoch of the present life as a master, even if it has lost its office; otherwise the highest known."""
        return self._lives.master_epoch or self._driver.machine.epoch

    @property
    def confirmed(self) -> int:
        """Log offset up to which all counted members have the log."""
        return self._driver.machine.confirmed

    def history(self) -> History:
        """Return the epochs of this member's log."""
        return self._lives.epochs.history()

    @property
    def counted_others(self) -> frozenset[Member]:
        """The members, except this one, for which an acknowledgement waits."""
        in_sync = self._driver.machine.in_sync
        return frozenset() if in_sync is None else in_sync.counted - {self.me}

    def is_in_sync(self, member: Member) -> bool:
        """Return whether a member is in the confirmed in-sync set."""
        in_sync = self._driver.machine.in_sync
        return in_sync is not None and member in in_sync.confirmed

    def is_named(self, name: str) -> bool:
        """Return whether the set's document names a replica."""
        document = self._driver.machine.view.document
        return document is not None and document.replica(name) is not None

    def holder_of(self, addresses: frozenset[str], name: str) -> str:
        """Return the name of another member that counts or is connected, and has one of these addresses; or empty."""
        machine = self._driver.machine
        document, in_sync = machine.view.document, machine.in_sync
        if document is None or in_sync is None:
            return ""
        names = {member.name for member in in_sync.known} - {name}
        found = (one.name for one in document.replicas if addresses & {one.address, one.ha_address})
        return next((one for one in found if one in names), "")

    def refused(self, name: str, reason: str) -> None:
        """A member's sign-in was refused, and a person must do something."""
        if is_member(name):
            self._refused.pop(name, None)
            while len(self._refused) >= MAX_FAILOVER_MEMBERS:
                del self._refused[next(iter(self._refused))]
            self._refused[name] = reason, self._driver.now

    @property
    def trouble(self) -> str:
        """The reason why this member cannot follow its master, or why others cannot follow it; or an empty text."""
        lives, since = self._lives, self._driver.now - REFUSAL_SHOWN_SECONDS
        if lives.is_open and not lives.master_epoch and lives.broker.slave.link is not None:
            own = lives.broker.slave.link.refusal
            if own:
                return f"it cannot follow the master: {own}"
        return "; ".join(reason for reason, at in self._refused.values() if at > since)

    def signed_in(self, member: Member, address: str, ha_address: str) -> None:
        """A follower's log has been compared."""
        self._refused.pop(str(member), None)
        self._driver.give(e.SignedIn(member, self._driver.machine.epoch, address, ha_address))

    def reported(self, member: Member, end: int) -> None:
        """A follower has the log up to ``end``."""
        self._driver.give(e.Reported(member, self._driver.machine.epoch, end))

    def lost(self, member: Member) -> None:
        """A follower's last connection is closed."""
        self._driver.give(e.ReplicaLost(member))

    def round_ended(self) -> None:
        """Something may have been stored in this round of the event loop."""
        self._log.moved()

    # --- the follower's side ----------------------------------------------------------------------
    @property
    def address(self) -> str:
        """This member's ``host:port`` for requests."""
        return self._driver.machine.options.address

    @property
    def ha_address(self) -> str:
        """This member's ``host:port`` for followers."""
        return self._driver.machine.options.ha_address

    @property
    def counted_end(self) -> int:
        """The end of the log that may be reported; nothing after a failed flush."""
        return 0 if self._lives.flush_failure is not None else self._driver.machine.counted_end

    async def compared(self, epoch: int, masters: History) -> int | None:
        """Return the log offset from which to copy; ``None`` if the log must be cut first, or the epoch has ended.

        :raises HistoryError: this log cannot continue with the master's.
        """
        mine = self._lives.epochs.history()
        if not mine.epochs and mine.end > mine.begin:
            await self._lives.broker.slave.compare_log()
        offset = self._roles.compare(e.MasterHistory(epoch, mine, masters))
        if offset is None:
            return None
        if offset < mine.end:
            self._roles.cut(offset, masters.last_epoch)
            return None
        if offset > mine.end:
            self._lives.epochs.adopt(masters)
        return offset

    def copies(self, epoch: int) -> bool:
        """Return whether bytes from the master of an epoch may be appended and reported."""
        return self._driver.machine.copies(epoch)

    def log_moved(self) -> None:
        """The log has grown, or was flushed."""
        self._log.moved()

    def heard(self, epoch: int, confirmed: int) -> None:
        """Bytes or a heartbeat have come from the master."""
        self._driver.give(e.Heard(epoch, confirmed))

    def link_lost(self, epoch: int, *, is_refused: bool) -> None:
        """The connection to the master was lost, or could not be made."""
        self._driver.give(e.LinkLost(epoch, is_refused))

    # --- clients ----------------------------------------------------------------------------------
    @property
    def client_refusal(self) -> str:
        """The reason why requests that read messages are refused, or an empty text."""
        machine = self._driver.machine
        if machine.state is State.HALTED:
            return f"this member waits for a person: {machine.reason}"
        if self._lives.is_confirmed:
            return ""
        return f"this member is {machine.state.value}, and does not know yet what its set has"

    @property
    def change_refusal(self) -> str:
        """The reason why a master refuses offsets, locks and pops, which its successor would not have; or empty."""
        machine = self._driver.machine
        if machine.state is not State.MASTER:
            return f"this member is {machine.state.value}: {machine.reason}"
        return self._log.standstill
