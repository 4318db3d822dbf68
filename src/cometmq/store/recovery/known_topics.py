"""KnownTopics: the topics of a store, and where in the log the present life of each begins.

A topic that was deleted and made anew is another topic, whose offsets begin at 0 again. The log keeps the records of
its earlier lives until retention takes them; they have no place in its queues. ``config/topics.json`` tells which
topics there are, ``comet/deletedTopics.json`` where the log ended when one was deleted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq import fastjson
from cometmq.fastjson import FastjsonError
from cometmq.message.names import SYSTEM_TOPICS
from cometmq.store.disk import Disk
from cometmq.store.queue.consume_queue import BLANK_SIZE, ConsumeQueue
from cometmq.store.recovery.load import Findings
from cometmq.store.table_journal import TABLE_DEPTH, TableJournal

DELETED_TOPICS: Final = "deletedTopics.json"
"""The name of the table of deletions below ``comet``."""


class Deleted(msgspec.Struct, rename="camel", kw_only=True):
    """The end of a topic's life."""

    position: int
    """The log's end then."""
    time_ms: int


class DeletedGroup(Deleted, rename="camel", kw_only=True):
    """The deletion of a consumer group."""

    with_offsets: bool
    """Its offsets were removed, too."""


class DeletedTopics(msgspec.Struct, rename="camel", kw_only=True):
    """The file: the last deletion of each topic and each group."""

    topics: dict[str, Deleted] = {}
    groups: dict[str, DeletedGroup] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class KnownTopics:
    """The topics of one store."""

    names: frozenset[str] | None = None
    """``None`` when every topic of the log counts as known."""
    begins: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The log offset at which the present life of a topic begins, of those that were ever deleted."""

    def __contains__(self, topic: str) -> bool:
        """True when the topic exists, as far as ``config/topics.json`` tells."""
        return self.names is None or topic in self.names or topic in SYSTEM_TOPICS

    def begin_of(self, topic: str) -> int:
        """The log offset below which all records of the topic are of earlier lives."""
        return self.begins.get(topic, 0)

    def end_of(self, queue: ConsumeQueue, end: int) -> int:
        """``end``; 0 where an interrupted deletion has left the files of a queue that ends there."""
        begin = self.begin_of(queue.topic)
        unit = queue.unit(end - 1) if begin and end else None
        return 0 if unit is not None and unit[1] != BLANK_SIZE and unit[0] < begin else end


def known_topics(root: Path, findings: Findings) -> KnownTopics:
    """Read what the small files of a store say of its topics."""
    return KnownTopics(_names(root, findings), _begins(root))


def _names(root: Path, findings: Findings) -> frozenset[str] | None:
    """The topics of ``config/topics.json`` and its journal; ``None`` when they are not known.

    Its ``.bak`` is not read: it lacks the topic that was created last.
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
        findings.add(f"config/topics.json: cannot be read ({error}); every topic of the log is kept")
        return None
    if journal.is_damaged:
        return None  # the broker, whose table it is, tells of it
    topics = table.get("topicConfigTable") if isinstance(table, dict) else None
    return frozenset(topics) if isinstance(topics, dict) and topics else None


def _begins(root: Path) -> dict[str, int]:
    """The begins of lives; none where no deletion is known. The broker, whose table it is, tells of a damaged file."""
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
