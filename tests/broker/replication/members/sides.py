"""Members of a set for tests of replication: they keep what replication tells them, and have no machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cometmq.broker.failover.document import Member, Replica
from cometmq.broker.failover.epochs import EpochLog
from cometmq.broker.failover.history import History, common_end
from cometmq.store.message_store import MessageStore

SET_ID = "5f3c5f3c"
MASTER = Member("m", 1)
FOLLOWER = Member("f", 3)


@dataclass
class FakeMaster:
    """A member that serves as master of an epoch."""

    store: MessageStore
    epoch: int = 1
    known_epoch: int = 1
    confirmed: int = 0
    me: Member = MASTER
    set_id: str = SET_ID
    heartbeat_s: float = 1.0
    joining: set[Member] = field(default_factory=set)
    """Members that are not in sync yet."""
    counted_others: frozenset[Member] = frozenset()
    events: list[tuple[Any, ...]] = field(default_factory=list)
    process: str = "p0"
    address: str = "127.0.0.1:3"
    ha_address: str = "127.0.0.1:4"
    holders: dict[str, str] = field(default_factory=dict)
    """The names of members by address."""
    refusals: list[tuple[str, str]] = field(default_factory=list)
    named: set[str] = field(default_factory=lambda: {"f"})
    """The names in the document."""

    def is_named(self, name: str) -> bool:
        return name in self.named

    def history(self) -> History:
        return EpochLog(self.store).history()

    def holder_of(self, addresses: frozenset[str], name: str) -> str:
        return next((holder for at, holder in self.holders.items() if at in addresses and holder != name), "")

    def refused(self, name: str, reason: str) -> None:
        self.refusals.append((name, reason))

    def is_in_sync(self, member: Member) -> bool:
        return member not in self.joining

    def signed_in(self, member: Member, address: str, ha_address: str) -> None:
        self.events.append(("signed in", str(member), address, ha_address))

    def reported(self, member: Member, end: int) -> None:
        self.events.append(("reported", str(member), end))

    def lost(self, member: Member) -> None:
        self.events.append(("lost", str(member)))

    def epoch_seen(self, epoch: int) -> None:
        self.events.append(("epoch seen", epoch))

    def enter(self, epoch: int) -> None:
        """Begin an epoch, or serve no more (0)."""
        self.epoch = epoch
        self.known_epoch = max(epoch, self.known_epoch)


@dataclass
class FakeFollower:
    """A member that follows; its log must not need to be cut."""

    store: MessageStore
    me: Member = FOLLOWER
    set_id: str = SET_ID
    process: str = "p1"
    address: str = "127.0.0.1:1"
    ha_address: str = "127.0.0.1:2"
    heartbeat_s: float = 1.0
    epoch: int = 0
    known_epoch: int = 1
    is_copying: bool = False
    counts: int | None = None
    """The end that counts, if not the whole log."""
    flushes: bool = False
    events: list[tuple[Any, ...]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """The end of the log at each call of ``log_moved``."""
    heard_confirmed: list[int] = field(default_factory=list)
    cuts: bool = False

    @property
    def counted_end(self) -> int:
        end = self.store.flushed_position if self.flushes else self.store.max_physical_offset
        return end if self.counts is None else min(end, self.counts)

    async def compared(self, epoch: int, masters: History) -> int | None:
        self.events.append(("compared", epoch, masters))
        mine = EpochLog(self.store).history()
        offset = common_end(mine, masters)
        if self.cuts or offset < mine.end:
            return None
        self.epoch, self.is_copying = epoch, True
        return offset

    def copies(self, epoch: int) -> bool:
        return self.is_copying and epoch == self.epoch

    def log_moved(self) -> None:
        self.ends.append(self.store.max_physical_offset)

    def heard(self, epoch: int, confirmed: int) -> None:
        assert epoch == self.epoch
        self.heard_confirmed.append(confirmed)

    def link_lost(self, epoch: int, *, is_refused: bool) -> None:
        self.events.append(("lost", epoch, is_refused))

    def epoch_seen(self, epoch: int) -> None:
        self.events.append(("epoch seen", epoch))

    @property
    def losses(self) -> list[bool]:
        """``is_refused`` of each lost link."""
        return [event[2] for event in self.events if event[0] == "lost"]


def replica(port: int, *, requests: int = 1) -> Replica:
    """The master of this machine, by its ports."""
    return Replica("m", f"127.0.0.1:{requests}", f"127.0.0.1:{port}", 1)
