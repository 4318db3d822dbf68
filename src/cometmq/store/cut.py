"""Cuts the end of a closed store's log, which the master of a failover set does not have.

The cut bytes were never acknowledged. They are first copied to ``parted/<epoch>-<offset>`` in the store, so that a
person can look at them.

Theory of operation. After a cut, the store is as if it had never had the bytes. The process can die between any two
system calls; the next opening then finds a sound store that still has all of the bytes, or only the first of them, and
it can be cut again. Therefore the order is:

1. The bytes are copied and flushed.
2. Files that prove a longer log (``comet/position.json``) are removed. Without them, everything is read from the log.
3. Queues and index are cut and flushed, and files are removed or corrected that contain messages after the cut. While
   the log still has the bytes, an opening gives them their units again. The other order would leave units that point
   after the log's end, which an opening takes for a log that has lost its end.
4. The log is shortened from its end on: so it is a log at any time.
5. The store is closed like any other, which writes a new position.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.durable import flush_directory, make_directory, unless_written
from cometmq.message.names import POP_LOG_TOPIC, TIMER_TOPIC
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk, open_file
from cometmq.store.errors import StoreError
from cometmq.store.log.commit_log import CommitLog, store_error
from cometmq.store.log.mapped_file import clear_from
from cometmq.store.log.record_scan import first_record, store_timestamp_of, walk
from cometmq.store.message_store import MessageStore
from cometmq.store.queue.consume_queue import BLANK_SIZE
from cometmq.store.recovery.index_recovery import cut_index
from cometmq.store.recovery.opening import OpenedStore, open_store
from cometmq.store.timer.log import TimerLog
from cometmq.store.timer.position import LogEnd

_log = logging.getLogger(__name__)

PARTED: Final = "parted"
"""The directory of the copies in the store."""
_COPY_BYTES: Final = 1 << 20

_PROOFS: Final = ("comet/position.json", "comet/queueFiles.json")
"""Files that say where the log and its queues end."""
_DELAYS: Final = ("config/delayOffset.json.bak", "config/delayOffset.json", "comet/delayOffset.json")
"""The files with the progress of delay levels, in the order in which they may be removed."""


def cut_log(
    config: StoreConfig, offset: int, epoch: int, *, clock: Clock = SYSTEM_CLOCK, disk: Disk | None = None
) -> Path | None:
    """Cut the log of a closed store at a log offset, at which a record begins.

    Return the path of the copy of the cut bytes, or ``None`` if the log ends there already.

    :param epoch: the epoch of the master that does not have the bytes, for the name of the copy.
    :raises StoreError: the store cannot be opened, no record begins there, or the bytes cannot be copied or cut. The
        store can be opened, and cut again.
    """
    opened = open_store(config, clock, disk or Disk(), is_slave=True)
    try:
        copy = _cut(opened, offset, epoch)
    except BaseException as error:
        _release(opened)
        if isinstance(error, OSError):
            raise store_error(error, "the end of the log") from error
        raise
    MessageStore(opened).close_now()
    if copy is not None:
        _log.warning(
            "the log was cut at %d, since the master of epoch %d does not have what followed; it is kept in %s",
            *(offset, epoch, copy),
        )
    return copy


def _release(opened: OpenedStore) -> None:
    """Close a store without recording a clean stop, since it may be cut in part."""
    if opened.index is not None:
        opened.index.close()
    opened.queues.remover.close()
    opened.queues.files.close()
    opened.log.close()
    opened.lock.release()


def _cut(opened: OpenedStore, offset: int, epoch: int) -> Path | None:
    log, root = opened.log, opened.config.root
    if offset >= log.position:
        return None
    if offset < log.min_offset or first_record(log, offset) is None:
        raise StoreError(
            f"the log from {log.min_offset} to {log.position} has no record that begins at {offset}",
            next_step="save the messages that you need, then start with an empty store, which the master fills",
        )
    copy = _copy(opened, offset, root / PARTED, f"{epoch}-{offset}")
    _remove(root, _PROOFS)
    opened.known_files.pause()
    opened.known_files.resume()
    _cut_queues(opened, offset)
    log.last_record, log.last_timestamp = _last_before(opened, offset)
    _remove(root, _files_with_later_messages(opened, offset))
    _cut_timer(opened, offset)
    _cut_index(opened, offset)
    _shorten(log, offset, opened.disk)
    return copy


def _copy(opened: OpenedStore, start: int, directory: Path, name: str) -> Path:
    """Copy the log from ``start`` to its end into a file, unless a file has these bytes already."""
    make_directory(directory)
    number = 1
    while (path := directory / (name if number == 1 else f"{name}-{number}")).exists():
        if _begins_with(path, opened.log, start):
            return path
        number += 1
    fresh = path.with_name(f"{path.name}.tmp")
    with unless_written(fresh), open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        at = 0
        for part in _parts(opened.log, start):
            opened.disk.write(fd, part, at)
            at += len(part)
        opened.disk.flush(fd)
    fresh.replace(path)
    flush_directory(directory)
    return path


def _begins_with(path: Path, log: CommitLog, start: int) -> bool:
    with path.open("rb") as file:
        return all(file.read(len(part)) == part for part in _parts(log, start))


def _parts(log: CommitLog, start: int) -> Iterator[memoryview]:
    """Yield the bytes from ``start`` to the end of the log, the fillers included."""
    while start < log.position:
        segment = log.segment_at(start)
        assert segment is not None
        end = min(start + _COPY_BYTES, segment.end, log.position)
        yield segment.view[start - segment.start : end - segment.start]
        start = end


def _remove(root: Path, names: Iterable[str]) -> None:
    """Remove files durably, in this order."""
    for name in names:
        path = root / name
        if path.exists():
            path.unlink()
            flush_directory(path.parent)


def _files_with_later_messages(opened: OpenedStore, offset: int) -> Iterator[str]:
    """Yield the files whose content may come from messages after ``offset``.

    A member of a set writes these files only for confirmed messages, which are cut only after a person has forced an
    election.
    """
    comet = opened.config.root / "comet"
    if _number_in(comet / "producers.json", "end") > offset:
        yield "comet/producers.json"
    if _number_in(comet / "delayOffset.json", "position") > offset:
        yield from _DELAYS
    if _pop_log_offset(comet / "pop.bin") > _end(opened, POP_LOG_TOPIC):
        yield "comet/pop.bin"


def _number_in(path: Path, name: str) -> int:
    """Return a number in a JSON file, or -1 if there is none."""
    try:
        number = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).get(name)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return -1  # whoever reads the file reports this
    return number if isinstance(number, int) else -1


def _pop_log_offset(path: Path) -> int:
    """Return the offset in the POP log up to which a snapshot of popped messages includes its entries, or -1."""
    try:
        saved = msgspec.msgpack.decode(path.read_bytes()[4:])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return -1  # whoever reads the file reports this
    return saved[1] if isinstance(saved, list) and len(saved) > 1 and isinstance(saved[1], int) else -1


def _end(opened: OpenedStore, topic: str) -> int:
    queue = opened.queues.get(topic, 0)
    return 0 if queue is None else queue.committed


def _cut_timer(opened: OpenedStore, offset: int) -> None:
    """Let the timer log forget the deliveries after ``offset``, as after the loss of the log's end."""
    directory = opened.config.root / "comet" / "timer"
    path, serial = directory / "position.json", _end(opened, TIMER_TOPIC)
    if _number_in(path, "log_offset") > offset or _number_in(path, "serial") > serial:
        timer = TimerLog(directory, opened.disk)
        timer.open(LogEnd(offset, serial, opened.log.last_timestamp or -1))
        timer.close()


def _cut_queues(opened: OpenedStore, offset: int) -> None:
    for queues in opened.queues.by_topic.values():
        for queue in queues.values():
            end = queue.offset_of_log(offset)
            if end == 0 < queue.committed:
                opened.queues.begin_anew(queue, 0)
            elif end < queue.committed:
                queue.cut(end)
                queue.min_logical = queue.offset_of_log(opened.log.min_offset)
                queue.sync(opened.disk, queue.unsynced)


def _last_before(opened: OpenedStore, offset: int) -> tuple[tuple[int, int], int]:
    """Return the log offset, size and store timestamp of the last record before ``offset``."""
    log = opened.log
    units = [
        queue.unit(queue.committed - 1)
        for queues in opened.queues.by_topic.values()
        for queue in queues.values()
        if queue.committed
    ]
    begin = max((unit[0] for unit in units if unit is not None and unit[1] != BLANK_SIZE), default=0)
    last, timestamp = (-1, 0), 0
    for at, view in walk(log, max(begin, log.min_offset), offset):
        last, timestamp = (at, len(view)), store_timestamp_of(view)
    return last, timestamp


def _cut_index(opened: OpenedStore, offset: int) -> None:
    index = opened.index
    if index is None:
        return
    index.write_pending()
    cut_index(index, offset)
    for file in index.dirty_files():
        file.flush()


def _shorten(log: CommitLog, offset: int, disk: Disk) -> None:
    log.remove_next_segment()
    while len(log.segments) > 1 and log.segments[-1].start >= offset:
        segment = log.segments.pop()
        segment.path.unlink()
        segment.close()
        flush_directory(log.directory)
    last = log.segments[-1]
    if offset < last.end:
        clear_from(last.path, offset - last.start, last.size)
        disk.flush(last.fd)
        last.reserved = 0
    log.position = offset
