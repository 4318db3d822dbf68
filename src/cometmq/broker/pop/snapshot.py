"""The snapshot of the popped messages in ``comet/pop.bin``, from which a broker starts.

With a snapshot, the broker need not read the entire POP log. It contains a position in that log and the state at that
position. For some queues it contains a newer state, since it is written in slices between which the broker serves
requests. It is written once the log keeps the latest included entry (``wait_kept``), so that it is never ahead of the
log, even if the log loses its end. A file that is damaged or from another store is set aside, and the POP log is read
from its first record.

The file is a CRC32 (big-endian) and MessagePack: an array of version, offset in the POP log, and queues. A queue is an
array of topic, group, queue id, next offset, floor, three arrays of little-endian int64 (offset, pop time, due time of
each message), and ``nil`` or next offset, attempt id, messages, all attempt ids and the order of the ordered pops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.limits import POP_SAVE_QUEUES
from cometmq.broker.pop.entries import AnyEntry, Forgotten, Revived, decode_entries
from cometmq.broker.pop.invisible import InvisibleMessages
from cometmq.broker.pop.order import HandedOut, OrderedMessages
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.state import NO_OFFSET, PopQueue, PopState
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.table_file import set_aside
from cometmq.broker.turn.store_turn import StoreTurn
from cometmq.checksum import crc32
from cometmq.durable import replace_file
from cometmq.message.lite_names import LMQ_PREFIX
from cometmq.message.names import POP_LOG_TOPIC
from cometmq.message.record import RecordError, decode_record
from cometmq.store.errors import StoreClosedError, StoreError
from cometmq.store.failure_log import FailureLog
from cometmq.store.message_store import MessageStore
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_VERSION: Final = 1


class SavedOrder(msgspec.Struct, array_like=True):
    """The ordered pops from a queue."""

    next_offset: int
    attempt_id: str
    messages: dict[int, HandedOut]
    attempts: dict[int, str] = {}
    """Attempt IDs by pop time; ``attempt_id`` is the latest one."""
    by_group: bool = False


class SavedQueue(msgspec.Struct, array_like=True):
    """The state of a group in a queue."""

    topic: str
    group: str
    queue_id: int
    next_offset: int
    floor_ms: int
    offsets: bytes
    pop_times: bytes
    due: bytes
    ordered: SavedOrder | None


class Saved(msgspec.Struct, array_like=True):
    """The contents of the snapshot file."""

    version: int
    position: int
    """Offset in the POP log at which the broker continues reading."""
    queues: list[SavedQueue]


class SnapshotError(ValueError):
    """Raised when the snapshot cannot be used."""


class PopSnapshot:
    """Reads and writes the snapshot file.

    :param path: ``comet/pop.bin``.
    """

    def __init__(self, path: Path, store: MessageStore, turn: StoreTurn, log: PopLog) -> None:
        self._path = path
        self._failures = FailureLog(_log)
        self._store = store
        self._turn = turn
        self._log = log
        self._saved_entries = -1

    # --- a start --------------------------------------------------------------------------------
    def load(self, offsets: ConsumerOffsetManager, on_deletion: Callable[[Forgotten], None]) -> None:
        """Load the state from the file and the POP log, and advance group offsets that are behind it.

        :param on_deletion: called for each deletion of a topic or group in the log.
        """
        state = self._log.state
        position = self._load_file(state)
        count = 0
        for entry in self._replay(position):
            count += 1
            if not isinstance(entry, Revived) or self._has_copy(entry):
                state.apply(entry)
            if isinstance(entry, Forgotten) and entry.position and not entry.topic.startswith(LMQ_PREFIX):
                on_deletion(entry)
        for queue in state:
            if queue.next_offset == NO_OFFSET:
                continue
            known = offsets.query(queue.group, queue.topic, queue.queue_id)
            if known < queue.next_offset or queue.is_reset:
                offsets.set_offset(queue.group, queue.topic, queue.queue_id, queue.next_offset)
            elif queue.ordered is not None and known > queue.next_offset:
                queue.ordered.move_to(known)
            queue.is_reset = False
        if count:
            _log.info("read %d entries from the POP log, starting at offset %d", count, position)

    def _load_file(self, state: PopState) -> int:
        queue = self._store.queue(POP_LOG_TOPIC, 0)
        try:
            saved = self._read()
            if saved is not None and saved.position > queue.committed:
                raise SnapshotError("the snapshot belongs to another store or to a later state of this store")
            for found in [] if saved is None else saved.queues:
                state.enter(_queue(found))
        except (SnapshotError, ValueError, OSError, msgspec.MsgspecError) as error:
            state.clear()
            _log.warning(set_aside(self._path, f"cannot be used ({error}), reading the POP log instead"))
            saved = None
        return queue.min_offset() if saved is None else max(saved.position, queue.min_offset())

    def _read(self) -> Saved | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) < 4 or crc32(data[4:]) & 0xFFFFFFFF != int.from_bytes(data[:4], "big"):
            raise SnapshotError("the CRC does not match")
        saved = msgspec.msgpack.decode(data[4:], type=Saved)
        if saved.version != _VERSION:
            raise SnapshotError(f"unknown version {saved.version}")
        return saved

    def _replay(self, offset: int) -> Iterator[AnyEntry]:
        queue = self._store.queue(POP_LOG_TOPIC, 0)
        while offset < queue.committed:
            unit = queue.unit(offset)
            offset += 1
            data = None if unit is None else self._store.record_at(unit[0], unit[1])
            try:
                if data is not None:
                    yield from decode_entries(decode_record(data).body)
            except RecordError as error:
                _log.error("record %d in the POP log is damaged: %s", offset - 1, error)

    def _has_copy(self, entry: Revived) -> bool:
        """Return whether the log also contains the copy that must follow an entry."""
        return not entry.copy_topic or entry.copy_offset < self._store.stored_end(entry.copy_topic, entry.copy_queue)

    # --- writing --------------------------------------------------------------------------------
    async def save(self) -> None:
        """Write the snapshot if entries were added since the last one."""
        entries = self._log.put_entries
        if entries == self._saved_entries:
            return
        queue = self._store.queue(POP_LOG_TOPIC, 0)
        self._end_turn()
        position = queue.committed
        queues: list[SavedQueue] = []
        for found in self._log.state:
            if len(queues) % POP_SAVE_QUEUES == POP_SAVE_QUEUES - 1:
                await asyncio.sleep(0)
                self._end_turn()
            if self._log.state.has(found):
                queues.append(_saved(found))
        try:
            await self._store.wait_kept(self._store.max_physical_offset)
            await in_thread(self._write, Saved(_VERSION, position, queues))
        except StoreClosedError as error:
            _log.info("popped messages are read from the log at the next start: %s", error)
        except (StoreError, OSError) as error:
            self._failures.failed(f"write {self._path}", error)
        else:
            self._failures.ended(f"write {self._path}")
            self._saved_entries = entries

    def _end_turn(self) -> None:
        """Store the turn's entries, because the file may contain only entries in the log."""
        self._log.end_round()
        self._turn.end()

    def _write(self, saved: Saved) -> None:
        data = msgspec.msgpack.encode(saved)
        replace_file(self._path, [(crc32(data) & 0xFFFFFFFF).to_bytes(4, "big"), data])


def _saved(queue: PopQueue) -> SavedQueue:
    ordered = queue.ordered
    saved = None
    if ordered is not None:
        attempt_id = ordered.attempts.get(ordered.latest, "")
        messages, attempts = dict(ordered.messages), dict(ordered.attempts)
        saved = SavedOrder(ordered.next_offset, attempt_id, messages, attempts, ordered.by_group)
    return SavedQueue(
        *(queue.topic, queue.group, queue.queue_id, queue.next_offset, queue.floor_ms),
        *queue.invisible.dump(),
        saved,
    )


def _queue(saved: SavedQueue) -> PopQueue:
    queue = PopQueue(saved.topic, saved.group, saved.queue_id)
    queue.next_offset, queue.floor_ms = saved.next_offset, saved.floor_ms
    queue.invisible = InvisibleMessages.load(saved.offsets, saved.pop_times, saved.due)
    if saved.ordered is not None:
        queue.ordered = ordered = OrderedMessages(saved.ordered.next_offset, by_group=saved.ordered.by_group)
        ordered.messages = saved.ordered.messages
        ordered.attempts = saved.ordered.attempts or {ordered.latest: saved.ordered.attempt_id}
    return queue
