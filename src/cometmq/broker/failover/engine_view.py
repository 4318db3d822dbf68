"""A member's view of the engine: the newest document that it knows, and the requests that have no answer yet.

Answers can be late. The view knows for each request whether it was sent after the newest document was learnt. An older
document in the answer to such a request proves that the engine was restored from a backup; in other answers it means
nothing.

**A swap without an answer may still land**, hours later. It is repeated with the same version until the version has
moved; only then is the outcome known. Reading the old version proves nothing. The repeated document may be another one,
since at most one of them lands; what counts for one of them counts for all until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.broker.failover.document import Document
from cometmq.broker.failover.engines.interface import Guard, Presence
from cometmq.broker.failover.events import Halt, Read, Swap
from cometmq.broker.failover.halts import RESTORED, another_set, older_than_log
from cometmq.broker.failover.options import NEVER
from cometmq.errors import CometMQError


class EngineWentBackError(CometMQError):
    """The engine's document is not the newest of this member's set, or was changed by hand."""

    def __init__(self, halt: Halt) -> None:
        super().__init__(halt.reason, next_step=halt.next_step)
        self.halt = halt


def check_set(document: Document, set_id: str, log_epoch: int) -> None:
    """Check that a document belongs to a store.

    :param set_id: the set to which the store belongs; empty if it has never had one.
    :param log_epoch: the epoch of the last marker in the log.
    :raises EngineWentBackError: it belongs to another set, or is older than the log.
    """
    if set_id and document.set_id != set_id:
        raise EngineWentBackError(another_set(document, set_id))
    if document.epoch < log_epoch:
        raise EngineWentBackError(older_than_log(document, log_epoch))


@dataclass(slots=True)
class PendingSwap:
    """A proposed document whose outcome is not known."""

    document: Document
    version: str
    """The version of the document that it replaces."""
    number: int = 0
    """The number of the request that has no answer; 0 if all have one."""
    unknown: int = 0
    """The number of tries that may still land."""
    retry_at: float = 0.0


class EngineView:
    """One member's knowledge of the engine."""

    def __init__(self) -> None:
        self.document: Document | None = None
        self.version = ""
        self.presences: Mapping[str, Presence] = {}
        self.pending: PendingSwap | None = None
        self.trouble = ""
        """The reason why the last request has no answer; empty if it has one."""
        self.read_number = 0
        """The number of the newest answered read."""
        self._issued = 0
        self._learned_at = 0
        """Number of requests that were sent before the newest document was learnt."""
        self._reading = 0
        self._reads_again = False

    @property
    def next_number(self) -> int:
        """The number of the next request."""
        return self._issued + 1

    @property
    def retry_at(self) -> float:
        """The time at which the pending swap is repeated; never if none is pending, or if an answer may come."""
        return NEVER if self.pending is None or self.pending.number else self.pending.retry_at

    def begins_retry(self, now: float, pause_s: float) -> bool:
        """Return whether it is time to repeat the pending swap; the next time is after a pause."""
        if self.pending is None or now < self.retry_at:
            return False
        self.pending.retry_at = now + pause_s
        return True

    def read(self) -> list[Read]:
        """Return a request to read; if one is on its way, another follows its answer."""
        if self._reading:
            self._reads_again = True
            return []
        self._issued += 1
        self._reading = self._issued
        return [Read(self._issued)]

    def read_ended(self, number: int) -> list[Read]:
        """Note that a read has an answer; return the read that was asked for in the meantime."""
        if number != self._reading:
            return []
        self._reading = 0
        again, self._reads_again = self._reads_again, False
        return self.read() if again else []

    def propose(self, document: Document, guard: Guard | None = None) -> Swap:
        """Return the first try of a swap."""
        assert self.pending is None, "the outcome of the last swap is not known"
        self.pending = PendingSwap(document, self.version)
        return self.repeat(guard)

    def repeat(self, guard: Guard | None = None, document: Document | None = None) -> Swap:
        """Return the next try of the pending swap, with another document if one is given."""
        assert self.pending is not None
        self.pending.document = document or self.pending.document
        self._issued += 1
        self.pending.number = self._issued
        return Swap(self._issued, self.pending.document, self.pending.version, guard)

    def was_silent(self, number: int, reason: str, retry_at: float) -> None:
        """Note that a request has no answer."""
        if number == self._reading:
            self._reading, self._reads_again = 0, False
        self.trouble = reason or "the engine has not answered"
        if self.pending is not None and number == self.pending.number:
            self.pending.number = 0
            self.pending.unknown += 1
            self.pending.retry_at = retry_at

    def was_refused(self, number: int, retry_at: float) -> None:
        """Note that one try of the pending swap has not landed, although the version is the same."""
        if self.pending is None or number != self.pending.number:
            return
        self.pending.number = 0
        self.pending.retry_at = retry_at
        if not self.pending.unknown:
            self.pending = None

    def learn(self, number: int, document: Document | None, version: str) -> bool | None:
        """Take over a document from an answer; return whether the version has moved, or ``None`` if it is stale.

        :raises EngineWentBackError: the document is older than the one that is known.
        """
        is_fresh = number > self._learned_at
        known = self.document
        if known is not None and (document is None or document.order < known.order):
            if is_fresh:
                shown = "no document" if document is None else f"epoch {document.epoch}, change {document.serial}"
                had = f"epoch {known.epoch}, change {known.serial}"
                raise EngineWentBackError(Halt(f"the engine has {shown}, and has had {had}", RESTORED))
            return None
        if known is not None and document is not None and document.order == known.order and document != known:
            which = f"epoch {known.epoch}, change {known.serial}"
            raise EngineWentBackError(Halt(f"the engine has two different documents of {which}", RESTORED))
        has_moved = version != self.version
        if not is_fresh and known is not None and document is not None and document.order == known.order:
            return False
        self.trouble = ""
        self.document, self.version = document, version
        self._learned_at = self._issued
        if self.pending is not None and version != self.pending.version:
            self.pending = None
        return has_moved
