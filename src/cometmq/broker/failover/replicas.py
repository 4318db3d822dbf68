"""The replicas that a master keeps in the document: those that sign in, without those that never come back."""

from __future__ import annotations

from collections.abc import Set

from cometmq.broker.failover.document import Document
from cometmq.broker.limits import MAX_FAILOVER_MEMBERS


class Replicas:
    """The addresses of the replicas that have signed in at one master, and the names of those to remove."""

    def __init__(self, name: str, address: str, ha_address: str) -> None:
        self._addresses = {name: (address, ha_address)}
        self._forgotten: set[str] = set()

    def signed_in(self, name: str, addresses: tuple[str, str], document: Document, in_use: Set[str]) -> bool:
        """Note a replica's addresses; return False if the document is full of replicas that are in use.

        A replica that is not in use makes room for a new one.

        :param in_use: the names of the replicas that are present or count.
        """
        self._forgotten.discard(name)
        names = ({one.name for one in document.replicas} | self._addresses.keys()) - self._forgotten
        if name not in names and len(names) >= MAX_FAILOVER_MEMBERS:
            idle = names - in_use
            if not idle:
                return False
            self.forget(min(idle))
        self._addresses[name] = addresses
        return True

    def forget(self, name: str) -> None:
        """Remove a replica from the document, until it signs in again."""
        self._addresses.pop(name, None)
        self._forgotten.add(name)

    def gone_from(self, document: Document) -> set[str]:
        """Return the names of the replicas that a document should not have."""
        return self._forgotten & {one.name for one in document.replicas}

    def into(self, document: Document) -> Document:
        """Return the document with these replicas; the same document if it has them all."""
        gone = self.gone_from(document)
        kept = document.without_replicas(gone) if gone else document
        return kept.with_addresses(self._addresses)
