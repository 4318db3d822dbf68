"""An engine in memory, for clusters in one process.

:class:`MemoryStore` holds the content, without a loop: simulators move its time. :class:`MemoryEngine` is one member's
connection to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from cometmq.broker.failover.document import Document
from cometmq.broker.failover.engines.interface import (
    EngineError,
    Guard,
    Outcome,
    Presence,
    Snapshot,
    demand_same_member,
)
from cometmq.clock import SYSTEM_CLOCK, Clock


class MemoryStore:
    """The document and the presences of one set; each change has the next version."""

    def __init__(self) -> None:
        self.document: Document | None = None
        self._version = 0
        self._document_version = 0
        self._presences: dict[str, Presence] = {}
        self._ends_at: dict[str, float] = {}
        self.listeners: set[Callable[[], None]] = set()
        """Called after each change."""

    @property
    def version(self) -> str:
        """The version of the document; "" if there is none."""
        return str(self._document_version) if self._document_version else ""

    def _changed(self) -> int:
        self._version += 1
        for listener in tuple(self.listeners):
            listener()
        return self._version

    def next_expiry(self) -> float | None:
        """Return the time at which the next lease ends."""
        return min(self._ends_at.values(), default=None)

    def expire(self, now: float) -> None:
        """Remove the presences whose leases have ended."""
        for name in [name for name, ends_at in self._ends_at.items() if ends_at <= now]:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a replica's presence."""
        if self._presences.pop(name, None) is not None:
            del self._ends_at[name]
            self._changed()

    def presences(self) -> dict[str, Presence]:
        """Return the presences by name."""
        return dict(self._presences)

    def snapshot(self, now: float) -> Snapshot:
        """Return the content."""
        self.expire(now)
        return Snapshot(self.document, self.version, self.presences())

    def swap(self, document: Document, version: str, guard: Guard | None, now: float) -> Outcome:
        """Replace the document if its version is ``version``, and the guard holds."""
        self.expire(now)
        is_held = True
        if guard is not None:
            presence = self._presences.get(guard.name)
            is_held = guard.version == ("" if presence is None else presence.version)
        is_done = version == self.version and is_held
        if is_done:
            self.document = document
            self._document_version = self._changed()
            if guard is not None and guard.removes:
                self.remove(guard.name)
        return Outcome(is_done, self.document, self.version)

    def announce(self, presence: Presence, lease_s: float, now: float, *, is_first: bool = True) -> bool:
        """Announce or renew a presence; return False if it had gone.

        :param is_first: True until this process has announced itself.
        :raises NameTakenError: another member with this name is present.
        """
        self.expire(now)
        name = presence.member.name
        known = self._presences.get(name)
        if known is not None:
            demand_same_member(presence, known, is_first=is_first)
        was_there = known is not None and known.process == presence.process
        self._ends_at[name] = now + lease_s
        if known is None or known != presence:
            self._presences[name] = presence
            self._presences[name] = presence.at(str(self._changed()))
        return was_there


class MemoryEngine:
    """One member's connection to a :class:`MemoryStore`.

    :param lease_s: time after which a presence that is not renewed is gone.
    """

    def __init__(self, store: MemoryStore, *, lease_s: float = 4.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._lease_s = lease_s
        self._clock = clock
        self._name = ""
        self.is_cut = False
        """True while requests get no answer."""

    def _reach(self) -> float:
        if self.is_cut:
            raise EngineError("the engine in memory does not answer", next_step="set is_cut to False")
        return self._clock.monotonic()

    async def read(self) -> Snapshot:
        """Return the content."""
        return self._store.snapshot(self._reach())

    async def swap(self, document: Document, version: str, guard: Guard | None = None) -> Outcome:
        """Replace the document if its version is ``version``, and the guard holds."""
        return self._store.swap(document, version, guard, self._reach())

    async def announce(self, presence: Presence) -> bool:
        """Announce or renew a presence; return False if it had gone."""
        now = self._reach()
        is_first = not self._name
        was_there = self._store.announce(presence, self._lease_s, now, is_first=is_first) or is_first
        self._name = presence.member.name
        return was_there

    async def withdraw(self) -> None:
        """Remove this process's presence at once."""
        self._reach()
        if self._name:
            self._store.remove(self._name)

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each change; a lease that ends counts once time has come."""
        changed = asyncio.Event()
        self._store.listeners.add(changed.set)
        try:
            yield
            while True:
                await self._changed(changed)
                changed.clear()
                yield
        finally:
            self._store.listeners.discard(changed.set)

    async def _changed(self, changed: asyncio.Event) -> None:
        """Wait for a change, or for the end of a lease."""
        while not changed.is_set():
            expiry = self._store.next_expiry()
            now = self._clock.monotonic()
            timer = None if expiry is None else self._clock.call_later(max(0.0, expiry - now), changed.set)
            try:
                await changed.wait()
            finally:
                if timer is not None:
                    timer.cancel()
            self._store.expire(self._clock.monotonic())

    async def close(self) -> None:
        """Do nothing: there is no connection."""
