"""The events that a member of a set is given, and the requests that it returns.

An engine request has a number, which its answer repeats. Exactly one answer follows each ``Read`` and ``Swap``:
``DocumentRead``, ``SwapAnswered`` or ``EngineSilent``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.broker.failover.document import Document, Member, Replica
from cometmq.broker.failover.engines.interface import Guard, Presence
from cometmq.broker.failover.history import History
from cometmq.broker.failover.identity import Identity


@dataclass(frozen=True, slots=True)
class LogState:
    """A member's own log."""

    end: int
    flushed: int
    """Log offset up to which the log is on the disk."""
    last_epoch: int
    """The epoch of the last marker in the log; 0 if there is none."""


# --- answers and news of the engine ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class DocumentRead:
    """The document and all presences at one moment after the request was sent."""

    number: int
    document: Document | None
    version: str
    presences: Mapping[str, Presence]
    """By the name of the replica."""


@dataclass(frozen=True, slots=True)
class SwapAnswered:
    """A swap's outcome, and the document after it."""

    number: int
    is_done: bool
    document: Document | None
    version: str


@dataclass(frozen=True, slots=True)
class EngineSilent:
    """A request has no valid answer; a swap may have landed, or may still land."""

    number: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EngineChanged:
    """The engine has reported a change of the document or of a presence."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The engine no longer has this member's presence."""


@dataclass(frozen=True, slots=True)
class NameTaken:
    """The presence cannot be announced, since another live process has this member's name."""

    by: str


@dataclass(frozen=True, slots=True)
class TwinAnswered:
    """The answer to ``AskTwin``.

    :param is_alive: True if a process with this member's name has answered, and is not this one.
    """

    twin: Presence
    is_alive: bool


# --- replication ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MasterHistory:
    """At a follower: the master has accepted the connection, and has sent its epochs."""

    epoch: int
    mine: History
    masters: History


@dataclass(frozen=True, slots=True)
class Heard:
    """At a follower: bytes or a heartbeat have arrived from the master of an epoch.

    :param confirmed: log offset up to which all counted members have the log.
    """

    epoch: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class LinkLost:
    """At a follower: the connection to the master of an epoch was reset, or could not be made.

    :param is_refused: True if the master's machine answers, but its port for requests refuses: the process is dead.
    """

    epoch: int
    is_refused: bool


@dataclass(frozen=True, slots=True)
class SignedIn:
    """At a master: a replica has connected in this master's epoch."""

    member: Member
    epoch: int
    address: str
    ha_address: str


@dataclass(frozen=True, slots=True)
class Reported:
    """At a master: a replica has the log up to ``end``, in this epoch."""

    member: Member
    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """At a master: a replica's connection is closed."""

    member: Member


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """A registration, a sign-in or a request named an epoch."""

    epoch: int


# --- the own log, disk and identity ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LogMoved:
    """The own log has grown, or was flushed or cut."""

    log: LogState


@dataclass(frozen=True, slots=True)
class FrozenLog:
    """The answer to ``Freeze``: nothing of an older epoch will be appended or reported any more."""

    log: LogState


@dataclass(frozen=True, slots=True)
class InOffice:
    """The answer to ``TakeOffice``: the marker is in the log, and on the disk.

    :param start: log offset after the marker.
    """

    epoch: int
    start: int
    log: LogState


@dataclass(frozen=True, slots=True)
class IdentitySaved:
    """The answer to ``SaveIdentity``."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """The log cannot be written."""

    reason: str


@dataclass(frozen=True, slots=True)
class DiskHealed:
    """The log can be written again."""


# --- people ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class HandOver:
    """Make another member the master: ``to``, or the one that is furthest if ``to`` is empty."""

    to: str
    why: str


@dataclass(frozen=True, slots=True)
class Force:
    """Make this member the master although it may lack acknowledged messages; a person has confirmed it."""

    why: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove a replica that never comes back from the document; it is neither in sync nor present."""

    name: str


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that ``deadline`` named has come."""


Event = (
    DocumentRead
    | SwapAnswered
    | EngineSilent
    | EngineChanged
    | LeaseLost
    | NameTaken
    | TwinAnswered
    | MasterHistory
    | Heard
    | LinkLost
    | SignedIn
    | Reported
    | ReplicaLost
    | EpochSeen
    | LogMoved
    | FrozenLog
    | InOffice
    | IdentitySaved
    | DiskFailed
    | DiskHealed
    | HandOver
    | Force
    | Forget
    | Tick
)


# --- requests -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Read:
    """Read the document and the presences from the engine."""

    number: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Replace the document if its version is still ``version`` ("" if there is none), and the guard holds."""

    number: int
    document: Document
    version: str
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce this presence, and keep it alive."""

    presence: Presence


@dataclass(frozen=True, slots=True)
class Follow:
    """Become a slave: close connections of older epochs, and connect to the master.

    :param master: its addresses; ``None`` while they are not known, or while the master is this replica itself.
    """

    epoch: int
    master: Replica | None


@dataclass(frozen=True, slots=True)
class CopyFrom:
    """Set aside and cut the log's bytes from ``offset`` on, and copy the master's from there."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class AskTwin:
    """Ask the process that has announced this member's name whether it lives, and answer with ``TwinAnswered``."""

    twin: Presence


@dataclass(frozen=True, slots=True)
class Freeze:
    """Append and report nothing of this or an older epoch any more, and answer with ``FrozenLog``."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TakeOffice:
    """Dispatch the log to its end, restore the tables, append and flush the marker, and answer with ``InOffice``."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop being the master: answer waiting sends with an error, and stop timers, checks and POP."""

    reason: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """Acknowledge, and let consumers read, up to this log offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class SaveIdentity:
    """Write the identity file, and answer with ``IdentitySaved``."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class Halt:
    """Serve nobody, and log the reason and the next step; only a start ends this."""

    reason: str
    next_step: str


Request = (
    Read
    | Swap
    | Announce
    | AskTwin
    | Follow
    | CopyFrom
    | Freeze
    | TakeOffice
    | StepDown
    | Confirm
    | SaveIdentity
    | Halt
)
