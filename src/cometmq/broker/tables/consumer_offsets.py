"""Consumer offsets: each group's progress in each queue (``ConsumerOffsetManager``).

Offsets arrive by UPDATE_CONSUMER_OFFSET and with pulls. Every ``flushConsumerOffsetInterval`` the changed offsets are
appended to the journal of ``config/consumerOffset.json``; the complete file is written periodically, and when the
broker stops. Both also contain the current end of the log as ``logOffset``, which Apache's broker ignores. If a topic
was deleted after this log offset, its offsets in the file are invalid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq import fastjson
from cometmq.broker.limits import TABLE_ROWS_PER_SLICE
from cometmq.broker.slices import Slice, batches
from cometmq.broker.tables.changed_names import ChangedNames
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.tables.offset_table import SEPARATOR, WHOLE, OffsetTable, Part
from cometmq.broker.tables.queue_offsets import QueueOffsets
from cometmq.broker.tables.table_file import int64, offset_table
from cometmq.clock import Clock
from cometmq.loop import in_rounds
from cometmq.message.names import TRANSACTION_GROUP, check_group, check_topic
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError
from cometmq.store.recovery.known_topics import Deleted, DeletedGroup
from cometmq.threads import in_thread

Changes = dict[str, dict[int, int | None] | None]
"""New offsets by topic-group pair and queue ID; ``None`` for removed offsets."""


class RemovedPairs(Collection[str]):
    """The pairs that were removed with a group or a topic. Their names are put together when they are written."""

    def __init__(self, names: list[str], *, group: str = "", topic: str = "") -> None:
        """Keep the names of a group's topics, or of a topic's groups."""
        self._names = names
        self._group = group
        self._topic = topic

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return any(key == known for known in self)

    def __iter__(self) -> Iterator[str]:
        for name in self._names:
            yield f"{self._topic or name}{SEPARATOR}{self._group or name}"

    def items(self) -> Iterator[tuple[str, None]]:
        """Yield the changes, as those of a map."""
        for key in self:
            yield key, None


_CHANGES_AT_ONCE: Final = 50_000
"""Number of changed pairs in one map, which would otherwise grow in long steps."""
_DEPTH: Final = 3
"""Nesting depth of an offset in the file: table, pair, queue."""
_MAX_QUEUE_ID: Final = 2**31 - 1


class ConsumerOffsetManager:
    """The consumer offsets by ``topic@group`` and queue ID, stored in ``config/consumerOffset.json``."""

    def __init__(self, path: Path, *, clock: Clock, disk: Disk | None = None) -> None:
        self._file = JournaledFile(path, depth=_DEPTH, clock=clock, disk=disk)
        self._open: Changes = {}
        """The newest changes; within one map of changes, no offset is set again after it was removed."""
        self._unwritten: list[Changes | RemovedPairs] = [self._open]
        """Changes since the last write, in order."""
        self._needs_whole = False
        """True if some changes require writing the complete file."""
        self._table = OffsetTable()
        self.changes: Final = ChangedNames()
        """Names of changed pairs, ``topic@group``, for slaves."""
        self.on_back: Final[list[Callable[[str, str, int, int], None]]] = []
        """Functions called with the group, topic, queue ID and new offset before a commit moves an offset back."""
        self.in_flight: Callable[[str, str, int], int] = _no_messages_in_flight
        """Returns the number of popped, unacknowledged messages for a topic, group and queue."""
        self.visible_again: Callable[[str, str, int], int] = _no_messages_in_flight
        """Returns the time at which the first of them can become visible again, in ms since 1970, or 0 if there are
        none.
        """
        self.log_end: Callable[[], int] | None = None
        """Returns the current end of the log, or ``None`` if there is no log."""
        self.wait_flushed: Callable[[], Awaitable[None]] | None = None
        """Waits until the log is on the disk: offsets are behind popped messages, which only the POP log has."""
        self._written_at: int | None = None
        """The end of the log when the loaded file was written, or ``None`` if the file does not contain it."""
        self.is_damaged = False
        """True if ``load`` found fewer offsets than had been written."""
        self.lost_of: frozenset[str] = frozenset()
        """Groups that may have lost offsets because of damage; in queues without an offset they start at the first
        message.
        """

    def load(self) -> list[str]:
        """Load the file; return a line for each problem and each unusable entry."""
        table, self._written_at = self._file.load(_read) or ({}, None)
        findings = list(self._file.findings)
        self.is_damaged = bool(findings)
        topics: set[str] = set()
        groups: set[str] = set()
        for key, queues in table.items():
            topic, _, group = str(key).partition(SEPARATOR)
            if not isinstance(queues, dict) or not (
                _is_name(topic, topics, check_topic) and _is_name(group, groups, check_group)
            ):
                findings.append(f"consumerOffset.json: ignored the entry {key!r}")
                continue
            offsets = QueueOffsets()
            if not offsets.fill(queues):
                for queue_id, offset in queues.items():
                    try:
                        offsets.put(int64(queue_id), int64(offset))
                    except ValueError:
                        self.is_damaged = True
                        findings.append(f"consumerOffset.json: ignored queue {str(queue_id)[:20]} of {key!r}")
            self._table.replace(group, topic, offsets)
        self._needs_whole = self._file.take_due()
        return findings

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the committed offset for a queue, or ``NO_OFFSET``."""
        return self._table.offset(group, topic, queue_id)

    def queues_of(self, group: str, topic: str) -> QueueOffsets | None:
        """Return the committed offsets for a topic, or ``None`` if there are none; callers must not change them."""
        return self._table.of(group, topic)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit a group's offset for a queue; as in RocketMQ, the offset may move back.

        Negative offsets are ignored: clients send −1 for "no offset yet". Offsets for CID_RMQ_SYS_TRANS are also
        ignored, because open transactions would be lost. Return ``False`` if the offset was not set because the table
        is full. The caller must have checked both names.
        """
        if offset < 0 or group == TRANSACTION_GROUP or not 0 <= queue_id <= _MAX_QUEUE_ID:
            return True
        if self.on_back and offset < self.query(group, topic, queue_id):
            for listener in self.on_back:
                listener(group, topic, queue_id, offset)
        return self.set_offset(group, topic, queue_id, offset)

    def set_offset(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set an offset without the checks and listeners of :meth:`commit`; return False if the table is full."""
        known = self._table.offset(group, topic, queue_id)
        if known == offset:
            return True
        if known < 0 and not self._table.has_room(group, topic, 1):
            return False
        self._table.put(group, topic, queue_id, offset)
        key = f"{topic}{SEPARATOR}{group}"
        self.changes.note(key)
        self._changed(key, queue_id, offset)
        return True

    def _changed(self, key: str, queue_id: int, offset: int | None) -> None:
        queues = self._open.get(key)
        if queues is None:
            if key in self._open or len(self._open) >= _CHANGES_AT_ONCE:
                self._open_next()
            queues = self._open[key] = {}
        queues[queue_id] = offset

    def copy_in_slices(self) -> Iterator[dict[str, dict[int, int]]]:
        """Yield copies of all offsets, slice by slice; pairs added or removed in the meantime may be missing.

        A slice may be empty.
        """
        for some in _slices(self._table):
            yield {key: queues.as_dict() for key, queues in some.items()}

    def take_over(
        self,
        rows: Iterable[tuple[str, Mapping[int, int]]],
        ends: Callable[[str, int], int],
        beyond: dict[str, Mapping[int, int]],
        removed: Iterable[str] | None = None,
        part: Part = WHOLE,
    ) -> Generator[None, None, None]:
        """Replace the offsets with a copy of the master's, limited to the ends of this broker's queues.

        Pauses after each slice.

        :param ends: the offset after the last message of a queue.
        :param beyond: receives the rows that have an offset past the end of a queue; completely copied rows are removed
        from it.
        :param removed: the pairs to remove; ``None`` for all pairs of ``part`` that are not in ``rows``.
        """
        slice_ = Slice(TABLE_ROWS_PER_SLICE)
        kept: set[str] = set()
        for key, queues in rows:
            if slice_.ends_after(1 + len(queues)):
                yield
            kept.add(key)
            topic, _, group = key.partition(SEPARATOR)
            is_known = self._table.cells(group, topic) is not None
            if not is_known and (check_topic(topic) is not None or check_group(group) is not None):
                continue
            offsets = {
                queue_id: min(offset, ends(topic, queue_id)) if offset > 0 else offset
                for queue_id, offset in queues.items()
                if 0 <= queue_id <= _MAX_QUEUE_ID and offset >= 0
            }
            self._replace(key, topic, group, offsets)
            if any(offset > offsets.get(queue_id, offset) for queue_id, offset in queues.items()):
                beyond[key] = queues
            else:
                beyond.pop(key, None)
        for keys in self._table.slices(part) if removed is None else batches(removed, TABLE_ROWS_PER_SLICE):
            for key in keys:
                if key not in kept:
                    beyond.pop(key, None)
                    self.drop(key)
            yield

    def _replace(self, key: str, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Set the offsets of a topic-group pair, within the limits."""
        found = self._table.of(group, topic)
        known = {} if found is None else found.as_dict()
        if found is not None and known == offsets:
            return
        if not self._table.has_room(group, topic, len(offsets) - len(known)):
            return
        for queue_id in known.keys() - offsets.keys():
            self._changed(key, queue_id, None)
        for queue_id, offset in offsets.items() - known.items():
            self._changed(key, queue_id, offset)
        self._table.replace(group, topic, QueueOffsets(offsets))
        self.changes.note(key)

    def of_group(self, group: str) -> Iterator[tuple[str, QueueOffsets]]:
        """Yield ``(topic, {queue ID: offset})`` for each topic in which a group has offsets."""
        for topic in self._table.topics_of(group):
            queues = self._table.of(group, topic)
            if queues is not None:
                yield topic, queues

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups with offsets in a topic (``whichGroupByTopic``)."""
        return set(self._table.groups_of(topic))

    def of_queues(self, group: str, topic: str) -> QueueOffsets:
        """Return a group's offsets in a topic, by queue ID; callers must not modify the result."""
        queues = self._table.of(group, topic)
        return _NO_OFFSETS if queues is None else queues

    def drop(self, key: str) -> None:
        """Remove the offsets of a pair, ``topic@group``, if there are any."""
        topic, _, group = key.partition(SEPARATOR)
        if self._table.drop(group, topic):
            self.changes.note(key)
            self._open[key] = None

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Remove the offsets of a group, of a topic, or of a group in a topic."""
        if group is not None and topic is not None:
            self.drop(f"{topic}{SEPARATOR}{group}")
        elif group is not None:
            self._removed(RemovedPairs(self._table.remove_group(group), group=group))
        elif topic is not None:
            self._removed(RemovedPairs(self._table.remove_topic(topic), topic=topic))

    def _removed(self, pairs: RemovedPairs) -> None:
        if pairs:
            self.changes.note_all(pairs)
            self._unwritten.append(pairs)
            self._open_next()

    def _open_next(self) -> None:
        self._open = {}
        self._unwritten.append(self._open)

    def forget_ended(self, topics: Mapping[str, Deleted], groups: Mapping[str, DeletedGroup]) -> None:
        """Remove the offsets of topics and groups that were deleted after the loaded file was written."""
        written_at = self._written_at
        if written_at is None:
            return
        for topic, deleted in topics.items():
            if written_at <= deleted.position:
                self.forget(topic=topic)
        for group, of_group in groups.items():
            if of_group.with_offsets and written_at <= of_group.position:
                self.forget(group=group)

    def has_group(self, group: str) -> bool:
        """Return whether a group has offsets."""
        return self._table.has_group(group)

    @property
    def table(self) -> OffsetTable:
        """Return all offsets in the form for slaves and tools (request code 43); callers must not modify the result."""
        return self._table

    # --- writing ------------------------------------------------------------------------------
    @property
    def _is_for_journal(self) -> bool:
        return self._file.takes_changes and not self._needs_whole

    def _has_changed(self) -> bool:
        return self._needs_whole or any(self._unwritten)

    def save(self) -> None:
        """Write the changes; if the disk is full or broken, the next call tries again."""
        if self._is_for_journal:
            self._needs_whole = not self._append(self._pop_changes(), self._end())
        elif self._has_changed():
            self._pop_changes()
            self._file.write_text(_pieces(self._table, self._end()))
            self._needs_whole = self._file.failed

    async def save_in_background(self) -> None:
        """Write the changes in a thread; when it is due, write the complete file in the background."""
        await in_rounds(self._table.tidy())
        with suppress(StoreError):  # the log cannot be flushed: messages are refused, and the changes stay due
            await self._save()

    async def _save(self) -> None:
        if self._is_for_journal:
            changes, end = self._pop_changes(), self._end()
            if any(changes):
                self._needs_whole = True  # the changes are due again unless they are written
                if self.wait_flushed is not None:
                    await self.wait_flushed()
                self._needs_whole = not await in_thread(self._append, changes, end)
            if self._file.whole_is_due:
                await self._write_whole()
        elif self._has_changed():
            self._needs_whole = True
            self._pop_changes()  # the complete file contains the changes
            self._needs_whole = not await self._write_whole()

    async def _write_whole(self) -> bool:
        pieces = _pieces(self._table, self._end())
        return await self._file.write_in_background(pieces, before_replacing=self.wait_flushed)

    def save_last(self) -> None:
        """Write the complete file if an offset has changed since the last one; called when the broker stops."""
        if self._has_changed():
            self._file.changed()
        self._file.write_last(_pieces(self._table, self._end()))

    def _pop_changes(self) -> list[Changes | RemovedPairs]:
        """Return and clear the changes since the last write; if that write failed, request a complete file."""
        changes, self._unwritten = self._unwritten, []
        self._open_next()
        return changes

    def _append(self, changes: list[Changes | RemovedPairs], end: int | None) -> bool:
        return not any(changes) or self._file.append(_records(changes, end))

    def _end(self) -> int | None:
        return None if self.log_end is None else self.log_end()


_NO_OFFSETS: Final = QueueOffsets()


def _no_messages_in_flight(_topic: str, _group: str, _queue_id: int) -> int:
    return 0


def _is_name(name: str, known: set[str], check: Callable[[str], str | None]) -> bool:
    """Return whether a name is valid; ``known`` has the valid ones that were checked before."""
    if name not in known:
        if check(name) is not None:
            return False
        known.add(name)
    return True


def _read(loaded: Any) -> tuple[dict[str, Any], int | None]:
    end = loaded.get("logOffset")
    return offset_table(loaded), None if end is None else int64(end)


def _records(changes: Iterable[Changes | RemovedPairs], log_end: int | None) -> Iterator[bytes]:
    """Yield changes in the journal's format, in pieces short enough not to delay other threads."""
    for some in changes:
        for rows in batches(some.items(), TABLE_ROWS_PER_SLICE):
            yield msgspec.json.encode({"offsetTable": dict(rows)})
    if log_end is not None:
        yield msgspec.json.encode({"logOffset": log_end})


def _slices(table: OffsetTable) -> Iterator[dict[str, QueueOffsets]]:
    """Split a table into parts that one round of the event loop can handle; a part may be empty."""
    some: dict[str, QueueOffsets] = {}
    part = Slice(TABLE_ROWS_PER_SLICE)
    for keys in table.slices():
        for key in keys:
            queues = table.get(key)
            if queues is None:
                continue
            some[key] = queues
            if part.ends_after(1 + len(queues)):
                yield some
                some = {}
        yield some
        some = {}


def _pieces(table: OffsetTable, log_end: int | None) -> Iterator[bytes]:
    """Yield the file's text in fastjson's pretty format, slice by slice; offsets may change between slices."""
    yield b"{" if log_end is None else b'{\n\t"logOffset":%d,' % log_end
    yield b'\n\t"offsetTable":{'
    before = b"\n\t\t"
    for some in _slices(table):
        rows = [fastjson.dumps(key) + b":" + _pretty(queues.as_dict()) for key, queues in some.items()]
        if rows:
            rows[0] = before + rows[0]
            before = b",\n\t\t"
        yield b",\n\t\t".join(rows)
    yield b"\n\t}\n}" if before.startswith(b",") else b"}\n}"


def _pretty(offsets: Mapping[int, int]) -> bytes:
    """Return the same text as ``fastjson.dumps_pretty``, but more than twice as fast."""
    if not offsets:
        return b"{}"
    return b"{\n\t\t\t" + b",\n\t\t\t".join([b"%d:%d" % each for each in offsets.items()]) + b"\n\t\t}"
