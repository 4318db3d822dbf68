"""The snapshot of lite topics in ``comet/lite.bin``, from which a broker starts.

It contains, for each parent topic, the names and entries of its lite topics up to a position in each of its queues,
and the progress of its groups up to a position in the POP log. A start reads the records and POP log entries after
these positions. The rest of the index is computed. The file is written once the log keeps what it contains
(``wait_kept``). A file that is damaged or from another store is set aside, and everything is read from the log.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    LITE_SAVE_CHANGES,
    LITE_SAVE_ENTRIES,
    LITE_SAVE_SECONDS,
)
from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.progress import LiteProgress
from cometmq.broker.lite.snapshot_file import VERSION, CopiedGroup, CopiedIndex, Saved, SavedIndex, encode, with_crc
from cometmq.broker.pop.entries import AnyEntry, Forgotten, Revived, decode_entries
from cometmq.broker.pop.order import OrderedMessages
from cometmq.broker.tables.table_file import set_aside
from cometmq.checksum import crc32
from cometmq.durable import replace_file
from cometmq.message.lite_names import LMQ_PREFIX
from cometmq.message.names import POP_LOG_TOPIC
from cometmq.message.record import RecordError, decode_record
from cometmq.store.errors import StoreClosedError, StoreError
from cometmq.store.failure_log import FailureLog
from cometmq.store.message_store import ConsumeQueue, MessageStore
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_NAMES: Final = 100_000
"""Number of names that are copied in one step."""


class _SnapshotError(ValueError):
    """Raised when the snapshot cannot be used."""


class LiteSnapshot:
    """Reads and writes the snapshot.

    :param path: ``comet/lite.bin``.
    """

    def __init__(self, path: Path, broker: BrokerContext, indexes: LiteIndexes, progress: LiteProgress) -> None:
        self._path = path
        self._failures = FailureLog(_log)
        self._store = broker.store
        self._turn = broker.turn
        self.end_pops: Callable[[], object] = _do_nothing
        """Puts the waiting entries of the POP log into the turn."""
        self._clock = broker.clock
        self._topics = broker.topics
        self._indexes = indexes
        self._progress = progress
        self._ends: dict[str, dict[int, int]] = {}
        self._saved_at = broker.clock.monotonic()
        self.unsure_until = 0
        """Position in the log before which groups may have read lite topics of which no entry is left."""
        self.is_saving = False
        """True while the snapshot is written; lite topics must not be removed then."""

    # --- a start ----------------------------------------------------------------------------------
    def load(self) -> None:
        """Load the lite topics and the progress from the file and the log."""
        position = self._load_file()
        parents = [name for name in self._topics.table if self._indexes.is_parent(name)]
        for parent in parents:
            index = self._indexes.of(parent)
            while index.drop_before(self._store.min_physical_offset):
                pass
            for _ in self._indexes.catch_up(index, self._ends.setdefault(parent, {})):
                pass
        for parent in set(self._indexes.by_parent) - set(parents):
            self._progress.forget(parent, "")
        for entry in replay(self._store, position):
            if entry.topic.startswith(LMQ_PREFIX):
                if not isinstance(entry, Revived) or self._has_copy(entry):
                    self._progress.replay(entry)
            elif isinstance(entry, Forgotten):  # the index is newer: it has the messages of the topic's next life
                self._progress.forget_offsets(entry.topic, entry.group)
        if self._indexes.count:
            _log.info("read %d lite topics; the POP log from offset %d", self._indexes.count, position)

    def _has_copy(self, entry: Revived) -> bool:
        """Return whether the log also contains the dead letter that must follow an entry."""
        return not entry.copy_topic or entry.copy_offset < self._store.stored_end(entry.copy_topic, entry.copy_queue)

    def _load_file(self) -> int:
        queue = self._store.queue(POP_LOG_TOPIC, 0)
        try:
            saved = self._read()
            if saved is not None:
                if saved.pop_position > queue.committed or saved.log_end > self._store.max_physical_offset:
                    raise _SnapshotError("the snapshot belongs to another store or to a later state of this store")
                for found in saved.indexes:
                    self._enter(found, saved.log_end)
                self.unsure_until = saved.unsure_until
                return self._begin_at(saved.pop_position)
        except (ValueError, OverflowError, OSError, msgspec.MsgspecError) as error:
            self._indexes.by_parent.clear()
            self._progress.forget("", "")
            self._ends.clear()
            _log.warning(set_aside(self._path, f"cannot be used ({error}), reading the log instead"))
        return self._begin_at(0)

    def _begin_at(self, position: int) -> int:
        """Return where to read the POP log; if entries after a position are deleted, note that groups are not known."""
        begin = self._store.queue(POP_LOG_TOPIC, 0).min_offset()
        if begin > position:
            self.unsure_until = self._store.max_physical_offset
        return max(begin, position)

    def _read(self) -> Saved | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) < 4 or crc32(memoryview(data)[4:]) & 0xFFFFFFFF != int.from_bytes(data[:4], "big"):
            raise _SnapshotError("the CRC does not match")
        saved = msgspec.msgpack.decode(memoryview(data)[4:], type=Saved)
        if saved.version != VERSION:
            raise _SnapshotError(f"unknown version {saved.version}")
        return saved

    def _enter(self, saved: SavedIndex, log_end: int) -> None:
        queues = self._store.queues().get(saved.parent, {})
        for queue_id, end in saved.ends.items():
            queue = queues.get(queue_id)
            if end and (queue is None or queue.committed < end or _is_after(queue, end - 1, log_end)):
                return  # the topic was deleted since then, and perhaps made again
        index = self._indexes.of(saved.parent)
        index.load((saved.names, saved.lengths, saved.starts), saved.begins, saved.logs, saved.owners)
        self._ends[saved.parent] = dict(saved.ends)
        for group in saved.groups:
            progress = self._progress.of(saved.parent, group.group)
            progress.offsets = array("q", group.offsets)
            progress.nears = array("q", [-1]) * len(progress.offsets)
            progress.floor_ms = group.floor_ms
            for flight in group.flights:
                ordered = progress.flights[flight.number] = OrderedMessages(flight.next_offset)
                ordered.messages, ordered.attempts = flight.messages, flight.attempts

    # --- writing ----------------------------------------------------------------------------------
    @property
    def _changes(self) -> int:
        return sum(index.unsaved for index in self._indexes.by_parent.values()) + self._progress.unsaved

    async def save_if_due(self) -> None:
        """Write the snapshot if much has changed, or if anything has changed and the last one is old."""
        changes = self._changes
        size = sum(index.count for index in self._indexes.by_parent.values())
        age = self._clock.monotonic() - self._saved_at
        if changes >= max(LITE_SAVE_CHANGES, size // 10) or (changes and age >= LITE_SAVE_SECONDS):
            await self.save()

    async def save(self) -> None:
        """Write the snapshot if anything has changed."""
        if not self._changes and self._path.exists():
            return
        if not self._indexes.by_parent and not self._path.exists():
            return
        self._saved_at = self._clock.monotonic()
        self.is_saving = True
        try:
            self._end_turn()
            log_end = self._store.max_physical_offset
            position = self._store.queue(POP_LOG_TOPIC, 0).committed
            # Progress first: its entries are applied again. The messages that it counts are in the index by then.
            indexes = list(self._indexes.by_parent.values())
            groups = {index.parent: list(map(CopiedGroup, self._progress.of_parent(index.parent))) for index in indexes}
            ends = {index.parent: self._queue_ends(index.parent) for index in indexes}
            extents = {index.parent: (index.base, index.end, index.size) for index in indexes}
            unsaved = [(index, index.unsaved) for index in indexes]
            progress_unsaved = self._progress.unsaved
            copied = [
                await self._copy(index, extents[index.parent], ends[index.parent], groups[index.parent])
                for index in indexes
            ]
            await self._store.wait_kept(self._store.max_physical_offset)  # the offsets may be newer than log_end
            await in_thread(self._write, position, log_end, copied, self.unsure_until)
        except StoreClosedError as error:
            _log.info("lite topics are read from the log at the next start: %s", error)
        except (StoreError, OSError) as error:
            self._failures.failed(f"write {self._path}", error)
        else:
            self._failures.ended(f"write {self._path}")
            for index, count in unsaved:
                index.unsaved -= count
            self._progress.unsaved -= progress_unsaved
        finally:
            self.is_saving = False

    def _queue_ends(self, parent: str) -> dict[int, int]:
        return {queue_id: queue.committed for queue_id, queue in self._store.queues().get(parent, {}).items()}

    async def _copy(
        self, index: LiteIndex, extent: tuple[int, int, int], ends: dict[int, int], groups: list[CopiedGroup]
    ) -> CopiedIndex:
        first, end, size = extent
        for group in groups:
            self._end_turn()
            for _ in group.copy_offsets():
                await asyncio.sleep(0)
                self._end_turn()
        logs: list[bytes] = []
        owners: list[bytes] = []
        for at in range(first, end, LITE_SAVE_ENTRIES):
            some_logs, some_owners = index.dump_entries(at, min(at + LITE_SAVE_ENTRIES, end))
            logs.append(some_logs)
            owners.append(some_owners)
            await asyncio.sleep(0)
        names: list[bytes] = []
        lengths: list[bytes] = []
        begins: list[bytes] = []
        starts: list[bytes] = []
        for at in range(0, size, _NAMES):
            some_names, some_lengths, some_starts = index.dump_names(at, min(at + _NAMES, size))
            names.append(some_names)
            lengths.append(some_lengths)
            starts.append(some_starts)
            begins.append(index.dump_begins(at, min(at + _NAMES, size)))
            await asyncio.sleep(0)
        return CopiedIndex(index.parent, ends, (names, lengths, starts, begins, logs, owners), groups)

    def _end_turn(self) -> None:
        """Store or take back what is in the turn, so that the progress has nothing that the log lacks."""
        self.end_pops()
        self._turn.end()

    def _write(self, position: int, log_end: int, copied: list[CopiedIndex], unsure_until: int) -> None:
        replace_file(self._path, with_crc(encode(position, log_end, copied, unsure_until)))


def replay(store: MessageStore, offset: int) -> Iterator[AnyEntry]:
    """Yield the entries in the POP log from an offset on."""
    queue = store.queue(POP_LOG_TOPIC, 0)
    while offset < queue.committed:
        unit = queue.unit(offset)
        offset += 1
        data = None if unit is None else store.record_at(unit[0], unit[1])
        try:
            if data is not None:
                yield from decode_entries(decode_record(data).body)
        except RecordError as error:
            _log.error("record %d in the POP log is damaged: %s", offset - 1, error)


def _is_after(queue: ConsumeQueue, offset: int, log_end: int) -> bool:
    unit = queue.unit(offset) if offset >= queue.min_offset() else None
    return unit is not None and unit[0] >= log_end


def _do_nothing() -> None:
    pass
