"""The options of a member, and the error of a command that is not possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.broker.failover.document import Document
from cometmq.errors import CometMQError

NEVER: Final = float("inf")
"""A time that does not come."""


class CommandRefusedError(CometMQError):
    """A person's command is not possible now; nothing has changed."""


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """The options of one member.

    :param name: the name of the replica, which is different for each member of a set.
    :param process: a random number, chosen at the start of the process.
    :param set_id: a random number, used if this member founds the set.
    :param priority: ``brokerElectionPriority``: among equal logs, the member with the lowest number is elected.
    :param flushes: True with SYNC_FLUSH.
    :param bootstraps: True if a person has asked to found the set with this store's messages.
    """

    name: str
    address: str
    ha_address: str
    process: str
    set_id: str
    lease_s: float = 4.0
    min_in_sync: int = 1
    priority: int = 2**31 - 1
    flushes: bool = False
    bootstraps: bool = False

    @property
    def heartbeat_s(self) -> float:
        """Interval of reports, of renewals of the lease, and of repeated requests."""
        return self.lease_s / 4

    def into(self, document: Document) -> Document:
        """Return the document with this replica's addresses."""
        return document.with_addresses({self.name: (self.address, self.ha_address)})

    @property
    def silent_s(self) -> float:
        """Time without a heartbeat after which a peer seems to be gone."""
        return self.lease_s / 2
