"""The promise of a member that everything that counts is on its disk (``Identity.is_solid``).

The identity file says True only while every byte that this member has reported or acknowledged was flushed before. It
says False before the first unflushed byte counts. With SYNC_FLUSH it always says True; otherwise it says True while the
member is alone in the in-sync set, when nobody else has what it acknowledges.
"""

from __future__ import annotations

from dataclasses import replace

from cometmq.broker.failover.events import LogState, SaveIdentity
from cometmq.broker.failover.identity import Identity


class SolidMark:
    """Decides which end of the own log counts, and when the identity file is written.

    :param flushes: True with SYNC_FLUSH.
    """

    def __init__(self, identity: Identity, *, flushes: bool) -> None:
        self.identity = identity
        """The file's content."""
        self._flushes = flushes
        self._is_wanted = identity.is_solid
        self._from = 0
        """Log offset up to which the log must be flushed before the file may say True."""
        self._saving: Identity | None = None

    def counted_end(self, log: LogState, *, is_alone: bool) -> int:
        """Return the end of the own log that may be reported or acknowledged."""
        return log.flushed if self.counts_flushed(is_alone=is_alone) else log.end

    def counts_flushed(self, *, is_alone: bool) -> bool:
        """Return whether only what was flushed counts."""
        return self._flushes or is_alone or self.identity.is_solid or self._saving is not None

    def is_settled(self, *, is_alone: bool) -> bool:
        """Return whether the file says what it should, so that a longer log changes nothing."""
        is_wanted = self._flushes or is_alone
        return self._saving is None and is_wanted == self._is_wanted == self.identity.is_solid

    def remember_set(self, set_id: str) -> list[SaveIdentity]:
        """Return the request to save the set to which the store belongs."""
        return self._save(replace(self.identity, set_id=set_id))

    def settle(self, log: LogState, *, is_alone: bool) -> list[SaveIdentity]:
        """Return the request to change the file, if it must be changed."""
        is_wanted = self._flushes or is_alone
        if is_wanted and not self._is_wanted:
            self._from = log.end
        self._is_wanted = is_wanted
        if self._saving is not None or is_wanted == self.identity.is_solid:
            return []
        if is_wanted and log.flushed < self._from:
            return []
        return self._save(replace(self.identity, is_solid=is_wanted))

    def saved(self, identity: Identity) -> None:
        """Take over what was written."""
        if identity == self._saving:
            self.identity, self._saving = identity, None

    def _save(self, identity: Identity) -> list[SaveIdentity]:
        if self._saving is not None:
            return []
        self._saving = identity
        return [SaveIdentity(identity)]
