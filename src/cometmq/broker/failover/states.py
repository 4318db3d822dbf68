"""The states of a member, and the changes between them."""

from __future__ import annotations

import enum
from typing import Final


class State(enum.Enum):
    """The states of a member. Only ``MASTER`` appends records of clients."""

    STARTING = "starting"
    """It has not read the document, or its name is taken; it serves nobody."""
    FOLLOWER = "follower"
    """It copies the master's log, as a member of the in-sync set or as a learner."""
    FROZEN = "frozen"
    """The master seems to be gone. It appends and reports nothing, and compares its log with those of the others."""
    STANDING = "standing"
    """It has sent the swap that makes it the master, and remains frozen until the document's version has moved."""
    ELECTED = "elected"
    """The document names it for an epoch in which it has not served; it restores tables and appends the marker."""
    MASTER = "master"
    """It appends, and acknowledges what all counted members have."""
    DOUBTING = "doubting"
    """A master that was shown a higher epoch, and has not read the document since; it appends and confirms nothing."""
    HANDING_OVER = "handing over"
    """A master that appends nothing more, so that its successor has everything."""
    HALTED = "halted"
    """A person is needed: the reason is logged, and remains until the next start."""


class Change(enum.Enum):
    """The events that change a member's state."""

    READ = 0
    """The document was read, and another member is the master, or this one was in an earlier process."""
    ELECT = 1
    """The document names this member for an epoch in which it has not served."""
    SUSPECT = 2
    """The master is gone, or seems to be."""
    STAND = 3
    """The swap that makes this member the master was sent."""
    THAW = 4
    """The master is there, or the document's version has moved."""
    SERVE = 5
    """The marker is in the log, and flushed."""
    SUPERSEDE = 6
    """The document has a higher epoch."""
    DOUBT = 7
    """A higher epoch was seen elsewhere than in the document."""
    TRUST = 8
    """The document, read after that, still names this master."""
    HAND_OVER = 9
    """A person asked for another master, the process stops, or the disk fails."""
    KEEP = 10
    """The handover took too long, or nobody can take over."""
    HALT = 11
    """The member cannot go on without a person."""


TRANSITIONS: Final[dict[tuple[State, Change], State]] = {
    (State.STARTING, Change.READ): State.FOLLOWER,
    (State.STARTING, Change.ELECT): State.ELECTED,
    (State.FOLLOWER, Change.READ): State.FOLLOWER,
    (State.FOLLOWER, Change.ELECT): State.ELECTED,
    (State.FOLLOWER, Change.SUSPECT): State.FROZEN,
    (State.FROZEN, Change.THAW): State.FOLLOWER,
    (State.FROZEN, Change.ELECT): State.ELECTED,
    (State.FROZEN, Change.STAND): State.STANDING,
    (State.STANDING, Change.THAW): State.FOLLOWER,
    (State.STANDING, Change.ELECT): State.ELECTED,
    (State.ELECTED, Change.SERVE): State.MASTER,
    (State.ELECTED, Change.SUPERSEDE): State.FOLLOWER,
    (State.MASTER, Change.SUPERSEDE): State.FOLLOWER,
    (State.MASTER, Change.DOUBT): State.DOUBTING,
    (State.MASTER, Change.HAND_OVER): State.HANDING_OVER,
    (State.DOUBTING, Change.TRUST): State.MASTER,
    (State.DOUBTING, Change.SUPERSEDE): State.FOLLOWER,
    (State.HANDING_OVER, Change.KEEP): State.MASTER,
    (State.HANDING_OVER, Change.SUPERSEDE): State.FOLLOWER,
    (State.HANDING_OVER, Change.DOUBT): State.DOUBTING,
    **{(state, Change.HALT): State.HALTED for state in State if state is not State.HALTED},
}
"""The next state by current state and change; no other change is possible."""

LEADING: Final = frozenset({State.MASTER, State.DOUBTING, State.HANDING_OVER})
"""The states of a member that has served the document's epoch in this process."""
FROZEN: Final = frozenset({State.FROZEN, State.STANDING, State.ELECTED})
"""The states in which nothing of an older epoch is appended or reported."""
