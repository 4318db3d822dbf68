"""The lives of topics: one that was deleted and made anew is another topic, whose offsets begin at 0 again.

An offset of an earlier life means nothing in the new one. All records of earlier lives are below the log offset that is
noted here when a topic is deleted. Slaves copy the file, since their queues of that life end there, too.

Consumers that run while their topic is deleted go on with their offsets once it is made anew: they would pass over its
first messages. So a broker remembers them. The first pull of each of them from each queue gets the queue's first offset
instead, at which it goes on; until then it commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from cometmq.broker.limits import EARLIER_READERS_SECONDS, MAX_DELETED_TOPICS
from cometmq.broker.tables.clients import ConsumerManager
from cometmq.broker.tables.table_file import TableFile
from cometmq.clock import Clock
from cometmq.message.names import check_group, check_topic
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.recovery.known_topics import Deleted, DeletedGroup, DeletedTopics

T = TypeVar("T")


class _Readers(msgspec.Struct):
    """The consumers that read a topic when it was deleted."""

    until_s: float
    begun: dict[str, dict[str, set[int]]]
    """Group → client id → the queues in which the client reads the new life."""


class TopicLives:
    """The table; ``path`` is its file."""

    def __init__(self, path: Path, consumers: ConsumerManager, *, clock: Clock) -> None:
        self._file = TableFile(path)
        self._consumers = consumers
        self._clock = clock
        self._deleted: dict[str, Deleted] = {}
        self._groups: dict[str, DeletedGroup] = {}
        self._readers: dict[str, _Readers] = {}
        self.on_due: Callable[[], None] = self.save
        """Called after deletions, which are written before they are answered."""

    def load(self, end: int) -> list[str]:
        """Read the file; return a line for each thing found wrong.

        :param end: the log's end. It is there that topics ended which ended behind it: the log has lost what was there.
        """
        table = self._file.load_body(DeletedTopics) or DeletedTopics()
        self._deleted, self._groups = table.topics, table.groups
        for deleted in (*self._deleted.values(), *self._groups.values()):
            if deleted.position > end:
                deleted.position = end
                self._file.changed()
        return list(self._file.findings)

    def save(self) -> None:
        """Write the file if the table changed; on a full disk it stays due."""
        if self._file.take_due():
            self._file.write_text(msgspec.json.encode(DeletedTopics(topics=self._deleted, groups=self._groups)))

    @property
    def deleted(self) -> Mapping[str, Deleted]:
        """The last deletion of each topic, also of those made anew; not to be changed."""
        return self._deleted

    @property
    def deleted_groups(self) -> Mapping[str, DeletedGroup]:
        """The last deletion of each group, also of those made anew; not to be changed."""
        return self._groups

    def is_later(self, known: Deleted | None, position: int) -> bool:
        """Tell whether a deletion is later than all that are known; only the oldest are ever forgotten.

        :param known: the last known deletion of the same topic or group.
        """
        last = max((deleted.position for deleted in (*self._deleted.values(), *self._groups.values())), default=0)
        return position >= last and (known is None or known.position < position)

    def end(self, topic: str, position: int) -> None:
        """A topic is deleted; ``position`` is the log's end."""
        self._note(topic, Deleted(position=position, time_ms=self._clock.now_ms()))
        now_s = self._clock.monotonic()
        for name in [name for name, readers in self._readers.items() if readers.until_s <= now_s]:
            del self._readers[name]
        groups = {name: self._consumers.groups[name] for name in self._consumers.groups_of(topic)}
        begun = {name: {client_id: set[int]() for client_id in group.client_ids} for name, group in groups.items()}
        self._readers.pop(topic, None)
        if begun:
            self._readers[topic] = _Readers(now_s + EARLIER_READERS_SECONDS, begun)
        if len(self._readers) > MAX_DELETED_TOPICS:
            del self._readers[next(iter(self._readers))]

    def end_group(self, group: str, position: int, *, with_offsets: bool) -> None:
        """A group is deleted; ``position`` is the log's end."""
        self._note_group(
            group, DeletedGroup(position=position, time_ms=self._clock.now_ms(), with_offsets=with_offsets)
        )

    def take_over(self, copy: DeletedTopics) -> None:
        """Take in a master's table."""
        for group, of_group in copy.groups.items():
            if check_group(group) is None and self._groups.get(group) != of_group:
                self._note_group(group, of_group)
        for topic, deleted in copy.topics.items():
            if check_topic(topic) is None and self._deleted.get(topic) != deleted:
                self._note(topic, deleted)

    def _note(self, topic: str, deleted: Deleted) -> None:
        _put_last(self._deleted, topic, deleted)
        self._file.changed()

    def _note_group(self, group: str, deleted: DeletedGroup) -> None:
        _put_last(self._groups, group, deleted)
        self._file.changed()

    # --- readers of an earlier life -------------------------------------------------------------
    @property
    def has_readers(self) -> bool:
        """Tell whether there may be readers of an earlier life of any topic."""
        return bool(self._readers)

    def reads_earlier(self, connection: ServerConnection, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether the offsets of a reader in this queue are of an earlier life of the topic."""
        begun = self._begun(connection, group, topic)
        return begun is not None and queue_id not in begun

    def begins(self, connection: ServerConnection, group: str, topic: str, queue_id: int) -> None:
        """From now on the offsets of a reader in this queue are of the topic's life of now."""
        begun = self._begun(connection, group, topic)
        if begun is not None:
            begun.add(queue_id)

    def _begun(self, connection: ServerConnection, group: str, topic: str) -> set[int] | None:
        """The queues in which a reader reads the new life; ``None`` when it is no reader of an earlier one."""
        readers = self._readers.get(topic)
        clients = None if readers is None else readers.begun.get(group)
        if clients is None:
            return None
        members = self._consumers.get(group)
        channel = None if members is None else members.channels.get(connection)
        if channel is None:  # it has a new connection, and its heartbeat has not come
            return clients.setdefault("", set())
        return clients.get(channel.client_id)


def _put_last(table: dict[str, T], name: str, deleted: T) -> None:
    """Note the newest deletion; the oldest goes when there are too many."""
    table.pop(name, None)
    table[name] = deleted
    if len(table) > MAX_DELETED_TOPICS:
        del table[next(iter(table))]
