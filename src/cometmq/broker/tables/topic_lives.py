"""The lives of topics: a topic that is deleted and created again is a new topic whose offsets start at 0.

The time from a topic's creation to its deletion is one *life* of the topic. An offset from an earlier life is invalid
in the new one. All records from earlier lives are below the log offset that is recorded here when a topic is deleted.
Slaves copy the file, since their queues from that life end at the same offset.

Consumers that run while their topic is deleted continue with their old offsets once it is created again, and would skip
its first messages. Therefore the broker remembers these consumers. It answers each consumer's first pull from each
queue with the queue's first offset, from which the consumer continues. Earlier commits from the consumer are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cometmq.broker.limits import EARLIER_READERS_SECONDS, MAX_DELETED_TOPICS
from cometmq.broker.tables.clients import ConsumerManager
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.tables.row_writer import RowWriter
from cometmq.clock import Clock
from cometmq.message.names import check_group, check_topic
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.recovery.known_topics import Deleted, DeletedGroup, DeletedTopics
from cometmq.store.table_journal import TABLE_DEPTH

T = TypeVar("T")
D = TypeVar("D", bound=Deleted)

_TOPICS: Final = "topics"
_GROUPS: Final = "groups"
"""The fields of the file: the deletions of topics, and those of groups."""


class _Readers(msgspec.Struct):
    """The consumers that were reading a topic when it was deleted."""

    until_s: float
    begun: dict[str, dict[str, set[int]]]
    """The queues in which each client reads the topic's new life, by group and client ID."""


class TopicLives:
    """The deletions of topics and groups, stored in the file ``path``."""

    def __init__(self, path: Path, consumers: ConsumerManager, *, clock: Clock) -> None:
        self._file = JournaledFile(path, depth=TABLE_DEPTH, clock=clock)
        self.writer: Final = RowWriter(self._file, self._changed_rows, self._pieces)
        self._consumers = consumers
        self._clock = clock
        self._deleted: dict[str, Deleted] = {}
        self._groups: dict[str, DeletedGroup] = {}
        self._readers: dict[str, _Readers] = {}
        self.on_due: Callable[[], None] = self.writer.save
        """Called after deletions, which must be written before their requests are answered."""

    def load(self, end: int) -> list[str]:
        """Load the file; return a line for each problem.

        :param end: the end of the log. Recorded ends beyond this end are set to it, because the log has lost its last
            records.
        """
        table = self._file.load_body(DeletedTopics) or DeletedTopics()
        self._deleted, self._groups = _oldest_first(table.topics), _oldest_first(table.groups)
        for topic, deleted in self._deleted.items():
            if deleted.position > end:
                deleted.position = end
                self.writer.changed((_TOPICS, topic))
        for group, of_group in self._groups.items():
            if of_group.position > end:
                of_group.position = end
                self.writer.changed((_GROUPS, group))
        return list(self._file.findings)

    def _changed_rows(self, keys: Iterable[tuple[str, str]]) -> bytes:
        rows: dict[str, dict[str, Deleted | None]] = {_TOPICS: {}, _GROUPS: {}}
        for field, name in keys:
            rows[field][name] = self._deleted.get(name) if field == _TOPICS else self._groups.get(name)
        return msgspec.json.encode(rows)

    def _pieces(self) -> Iterator[bytes]:
        yield msgspec.json.encode(DeletedTopics(topics=self._deleted, groups=self._groups))

    @property
    def deleted(self) -> Mapping[str, Deleted]:
        """Return each topic's last deletion, even if the topic was created again; callers must not modify the
        result.
        """
        return self._deleted

    @property
    def deleted_groups(self) -> Mapping[str, DeletedGroup]:
        """Return each group's last deletion, even if the group was created again; callers must not modify the
        result.
        """
        return self._groups

    def is_later(self, known: Deleted | None, position: int) -> bool:
        """Return whether a deletion is newer than all known ones.

        :param known: the last known deletion of the same topic or group.
        """
        last = max((deleted.position for deleted in (*self._deleted.values(), *self._groups.values())), default=0)
        return position >= last and (known is None or known.position < position)

    def end(self, topic: str, position: int) -> None:
        """Record the deletion of a topic; ``position`` is the end of the log."""
        self._record_deletion(topic, Deleted(position=position, time_ms=self._clock.now_ms()))
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
        """Record the deletion of a group; ``position`` is the end of the log."""
        self._record_group_deletion(
            group, DeletedGroup(position=position, time_ms=self._clock.now_ms(), with_offsets=with_offsets)
        )

    def take_over(self, copy: DeletedTopics) -> None:
        """Merge the master's table of deletions into this one."""
        for group, of_group in copy.groups.items():
            if check_group(group) is None and self._groups.get(group) != of_group:
                self._record_group_deletion(group, of_group)
        for topic, deleted in copy.topics.items():
            if check_topic(topic) is None and self._deleted.get(topic) != deleted:
                self._record_deletion(topic, deleted)

    def _record_deletion(self, topic: str, deleted: Deleted) -> None:
        names = _put_last(self._deleted, topic, deleted)
        self.writer.changed(*((_TOPICS, name) for name in names))

    def _record_group_deletion(self, group: str, deleted: DeletedGroup) -> None:
        names = _put_last(self._groups, group, deleted)
        self.writer.changed(*((_GROUPS, name) for name in names))

    # --- readers of an earlier life -------------------------------------------------------------
    @property
    def has_readers(self) -> bool:
        """Return whether readers of an earlier life of any topic may exist."""
        return bool(self._readers)

    def reads_earlier(self, connection: ServerConnection, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a reader's offsets in this queue belong to an earlier life of the topic."""
        begun = self._begun(connection, group, topic)
        return begun is not None and queue_id not in begun

    def record_reader(self, connection: ServerConnection, group: str, topic: str, queue_id: int) -> None:
        """Record that a reader's offsets in this queue now belong to the topic's current life."""
        begun = self._begun(connection, group, topic)
        if begun is not None:
            begun.add(queue_id)

    def _begun(self, connection: ServerConnection, group: str, topic: str) -> set[int] | None:
        """Return the queues in which a reader of an earlier life has started reading the new one, or ``None`` for other
        readers.
        """
        readers = self._readers.get(topic)
        clients = None if readers is None else readers.begun.get(group)
        if clients is None:
            return None
        members = self._consumers.get(group)
        channel = None if members is None else members.channels.get(connection)
        if channel is None:  # the client has a new connection without a heartbeat so far
            return clients.setdefault("", set())
        return clients.get(channel.client_id)


def _put_last(table: dict[str, T], name: str, deleted: T) -> Iterable[str]:
    """Record the newest deletion, and forget the oldest one if there are too many; return the names that changed."""
    table.pop(name, None)
    table[name] = deleted
    if len(table) <= MAX_DELETED_TOPICS:
        return (name,)
    oldest = next(iter(table))
    del table[oldest]
    return (name, oldest)


def _oldest_first(table: dict[str, D]) -> dict[str, D]:
    """Return deletions sorted by time."""
    return dict(sorted(table.items(), key=lambda row: (row[1].position, row[1].time_ms)))
