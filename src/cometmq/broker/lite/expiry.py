"""LiteExpiry: removes idle lite topics, and messages that retention has deleted.

A lite topic is idle if its last message is older than the parent topic's ``lite.topic.expiration`` and than
``minLiteTTl``. It is removed if nobody subscribes to it and each group that has read it has read all of it. Until a
group has read it, it is kept: unlike in Apache's broker, no unread message vanishes. A promoted slave may not know all
groups that have read a lite topic, so it keeps those with messages from before its promotion. Retention deletes its
messages in the end, and a lite topic without messages is removed once nobody subscribes to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import LITE_DROPS_AT_ONCE
from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.progress import LiteProgress
from cometmq.broker.lite.snapshot import LiteSnapshot
from cometmq.broker.lite.subscriptions import LiteSubscriptions
from cometmq.broker.pop.entries import Forgotten
from cometmq.broker.pop.pop_log import Done, PopLog
from cometmq.broker.slices import do_in_slices
from cometmq.broker.tables.topic_attributes import lite_expiration
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.lite_names import lmq_name

_COST_OF_REMOVAL: Final = 40
_GROUPS_AT_COST: Final = 8
"""Number of groups that cost as much as the comparison of a name."""


class Need(enum.Enum):
    """A reason to keep a lite topic."""

    READ = "read"
    """A client subscribes to it, or holds messages of it, or a message is just being stored."""
    UNREAD = "unread"
    """A group has not read all of its messages, or no group has read it."""


class LiteExpiry:
    """Removes lite topics and entries that are not needed any more."""

    def __init__(
        self,
        broker: BrokerContext,
        log: PopLog,
        indexes: LiteIndexes,
        progress: LiteProgress,
        subscriptions: LiteSubscriptions,
        snapshot: LiteSnapshot,
    ) -> None:
        self._live = broker.live
        self._store = broker.store
        self._topics = broker.topics
        self._clock = broker.clock
        self._log = log
        self._indexes = indexes
        self._progress = progress
        self._subscriptions = subscriptions
        self._snapshot = snapshot

    def drop_deleted(self) -> None:
        """Remove the messages that retention has deleted, in slices."""
        do_in_slices(self._drop_deleted())

    def _drop_deleted(self) -> Iterator[None]:
        for index in list(self._indexes.by_parent.values()):
            while not self._snapshot.is_saving and index.drop_before(self._store.min_physical_offset):
                yield

    def expire(self) -> None:
        """Remove the idle lite topics, in slices."""
        do_in_slices(self._expire())

    def _expire(self) -> Iterator[None]:
        for index in list(self._indexes.by_parent.values()):
            config = self._topics.get(index.parent)
            minutes = lite_expiration(None if config is None else config.attributes)
            end = index.base
            if minutes > 0:
                idle_ms = max(minutes * 60_000, self._live.current.min_lite_ttl)
                end = self._indexes.first_entry_since(index, self._clock.now_ms() - idle_ms)
            for at, number in enumerate(memoryview(index.idle(end)).cast("i")):
                if at % LITE_DROPS_AT_ONCE == LITE_DROPS_AT_ONCE - 1:
                    yield
                if self._snapshot.is_saving or self._indexes.by_parent.get(index.parent) is not index:
                    return
                if index.keeps:
                    break
                if index.last(number) < end and not self._is_needed(index, number):
                    self._remove(index, number)
            yield

    def _is_needed(self, index: LiteIndex, number: int) -> bool:
        return not index.raw_name(number) or self.need(index, number) is not None

    def need(self, index: LiteIndex, number: int) -> Need | None:
        """Return the reason why a lite topic must not be removed without a person's consent, or ``None``."""
        groups = self._progress.of_parent(index.parent)
        known = [progress for progress in groups if progress.is_known(number)]
        last = index.last(number)
        if self._subscriptions.is_read(index, number) or any(number in progress.flights for progress in known):
            return Need.READ
        if last >= index.end - index.unstored:
            return Need.READ
        if last < index.base:
            return None
        if index.log_offset(last) < self._snapshot.unsure_until:
            return Need.UNREAD
        if not known or any(progress.has_more(number) for progress in known):
            return Need.UNREAD
        waiting = self._subscriptions.groups_with_wildcard(index) - {progress.group for progress in known}
        return Need.UNREAD if waiting else None

    def may_remove(self, index: LiteIndex) -> bool:
        """Return whether lite topics may be removed now: not while their snapshot is written or a long change holds
        their numbers.
        """
        return not self._snapshot.is_saving and not index.keeps

    @property
    def cost(self) -> int:
        """Return the cost of :meth:`need` and :meth:`remove` beside the messages, in comparisons of a name."""
        return _COST_OF_REMOVAL + self._progress.group_count // _GROUPS_AT_COST

    def remove(self, index: LiteIndex, number: int, done: Done) -> None:
        """Remove a lite topic; ``done`` is called once this is stored.

        :raises RefusedError: nothing can be stored now.
        """
        self._log.check()
        name = lmq_name(index.parent, index.name(number))
        self._log.add(Forgotten(name, "", 0, self._store.max_physical_offset))
        self._log.when_stored(done)

    def _remove(self, index: LiteIndex, number: int) -> None:
        with suppress(RefusedError):
            self.remove(index, number, _ignore)


def _ignore(_refusal: RefusedError | None) -> None:
    pass
