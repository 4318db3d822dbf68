"""LiteExpiry: removes idle lite topics, and messages that retention has deleted.

A lite topic is idle if its last message is older than the parent topic's ``lite.topic.expiration`` and than
``minLiteTTl``. It is removed if nobody subscribes to it and each group that has read it has read all of it. Until a
group has read it, it is kept: unlike in Apache's broker, no unread message vanishes. Retention deletes its messages
in the end, and a lite topic without messages is removed once nobody subscribes to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import LITE_DROPS_AT_ONCE
from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.progress import LiteProgress
from cometmq.broker.lite.snapshot import LiteSnapshot
from cometmq.broker.lite.subscriptions import LiteSubscriptions
from cometmq.broker.pop.entries import Forgotten
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.slices import do_in_slices
from cometmq.broker.tables.topic_attributes import lite_expiration
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.lite_names import lmq_name


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
            for at, number in enumerate(index.idle(end)):
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
        if not index.names.name(number) or self._subscriptions.is_read(index, number):
            return True
        if index.last(number) < index.base:
            return False
        groups = self._progress.of_parent(index.parent)
        known = [progress for progress in groups if progress.is_known(number)]
        if not known or any(progress.has_more(number) or number in progress.flights for progress in known):
            return True
        return bool(self._subscriptions.groups_with_wildcard(index) - {progress.group for progress in known})

    def _remove(self, index: LiteIndex, number: int) -> None:
        try:
            self._log.check()
        except RefusedError:
            return
        name = lmq_name(index.parent, index.name(number))
        self._log.add(Forgotten(name, "", 0, self._store.max_physical_offset))
        self._log.when_stored(_ignore)


def _ignore(_refusal: RefusedError | None) -> None:
    pass
