"""This broker's log as a copy of its master's: what both kinds of slaves do before they append and report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.replication.frames import ReplicationError
from cometmq.store.message_store import MessageStore
from cometmq.store.replicated_log import ReplicatedLog

KnowTopics = Callable[[], Awaitable[None]]
"""Adds the topics of this broker's messages to its table of topics."""


class CopiedLog:
    """The log of a slave.

    A slave never reports a message whose topic has not been saved, because it would hide the message if it were killed
    and then became the master.
    """

    def __init__(self, broker: BrokerContext, know_topics: KnowTopics) -> None:
        self.store: Final[MessageStore] = broker.store
        self._topics = broker.topics
        self._tables = broker.tables
        self._know_topics = know_topics

    @property
    def log(self) -> ReplicatedLog:
        """Return the log that continues with the master's bytes."""
        return self.store.replicated

    @property
    def end(self) -> int:
        """Return the end of the log, including an incomplete record."""
        return self.store.replicated.end

    def drop_tail(self) -> None:
        """Remove an incomplete record from the end of the log, since a restarted master may store a different one
        there.
        """
        self.store.replicated.drop_tail()

    async def save_topics(self) -> None:
        """Save the topics of all messages in the log.

        :raises ReplicationError: the file of topics cannot be written.
        """
        if self.store.replicated.is_empty:
            return
        await self._know_topics()
        if self._topics.writer.has_new:
            await self._tables.finish()
        if self._topics.cannot_be_saved:
            raise ReplicationError("cannot write the topics, so their messages cannot be acknowledged")

    def when_topics_saved(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the topics of all messages in the log are saved."""
        if self._topics.writer.has_new:
            self._tables.when_durable(callback)
        else:
            callback()

    def check_writable(self) -> None:
        """:raises StoreError: the store cannot be written, for example because the disk is full."""
        error = self.store.writable()
        if error is not None:
            raise error
