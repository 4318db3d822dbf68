"""KnownTopics: the topics of a store, and the end of the log when each of them was last deleted.

A topic that was deleted and created again is a different topic, whose offsets start at 0 again. The log keeps the
records from before the deletion until retention deletes them, but its queues do not contain them.
``config/topics.json`` lists the existing topics, and ``comet/deletedTopics.json`` contains the end of the log at each
deletion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq import fastjson
from cometmq.fastjson import FastjsonError
from cometmq.message.names import EPOCHS_TOPIC, SYSTEM_TOPICS
from cometmq.store.disk import Disk
from cometmq.store.queue.consume_queue import BLANK_SIZE, ConsumeQueue
from cometmq.store.recovery.load import Findings
from cometmq.store.table_journal import TABLE_DEPTH, TableJournal

DELETED_TOPICS: Final = "deletedTopics.json"
"""The name of the deletion file in the directory ``comet``."""


class Deleted(msgspec.Struct, rename="camel", kw_only=True):
    """The deletion of a topic."""

    position: int
    """The end of the log at the time of the deletion."""
    time_ms: int


class DeletedGroup(Deleted, rename="camel", kw_only=True):
    """The deletion of a consumer group."""

    with_offsets: bool
    """True if the group's offsets were also removed."""


class DeletedTopics(msgspec.Struct, rename="camel", kw_only=True):
    """The content of the deletion file: the last deletion of each topic and each group."""

    topics: dict[str, Deleted] = {}
    groups: dict[str, DeletedGroup] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class KnownTopics:
    """The known topics of a store."""

    names: frozenset[str] | None = None
    """Names of the topics, or ``None`` if every topic in the log counts as known."""
    begins: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """End of the log when a topic was last deleted, for topics that have ever been deleted."""

    def __contains__(self, topic: str) -> bool:
        """Return whether the topic exists according to ``config/topics.json``."""
        return self.names is None or topic in self.names or topic in SYSTEM_TOPICS or topic == EPOCHS_TOPIC

    def begin_of(self, topic: str) -> int:
        """Return the end of the log when the topic was last deleted, or 0; records below it do not belong to the
        topic.
        """
        return self.begins.get(topic, 0)

    def end_of(self, queue: ConsumeQueue, end: int) -> int:
        """Return ``end``, or 0 if the queue's files with this end were left by an interrupted deletion."""
        begin = self.begin_of(queue.topic)
        unit = queue.unit(end - 1) if begin and end else None
        return 0 if unit is not None and unit[1] != BLANK_SIZE and unit[0] < begin else end


def known_topics(root: Path, findings: Findings) -> KnownTopics:
    """Read the topics of a store from its table files."""
    return KnownTopics(_read_names(root, findings), _read_begins(root))


def _read_names(root: Path, findings: Findings) -> frozenset[str] | None:
    """Return the topics in ``config/topics.json`` and its journal, or ``None`` if they are unknown.

    The ``.bak`` is not read: it lacks the topic created last.
    """
    path = root / "config" / "topics.json"
    journal = TableJournal(path, Disk())
    try:
        text = path.read_bytes()
        table = fastjson.loads(text)
        if isinstance(table, dict):
            journal.merge_into(table, text, TABLE_DEPTH)
    except FileNotFoundError:
        return None
    except (OSError, FastjsonError) as error:
        findings.add(f"config/topics.json: cannot be read ({error}); every topic in the log is kept")
        return None
    if journal.is_damaged:
        return None  # the broker reports this, since the table is its own
    topics = table.get("topicConfigTable") if isinstance(table, dict) else None
    return frozenset(topics) if isinstance(topics, dict) and topics else None


def _read_begins(root: Path) -> dict[str, int]:
    """Read the end of the log at each topic's last deletion. The broker reports a damaged file."""
    path = root / "comet" / DELETED_TOPICS
    for place in (path, path.with_name(f"{DELETED_TOPICS}.bak"), None):
        try:
            text = b"{}" if place is None else place.read_bytes()
            loaded = msgspec.json.decode(text, type=dict[str, Any])
            TableJournal(path, Disk()).merge_into(loaded, text if place == path else None, TABLE_DEPTH)
            table = msgspec.convert(loaded, DeletedTopics)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        return {topic: deleted.position for topic, deleted in table.topics.items()}
    return {}
