"""Known files: the state in which the store left its queue files, recorded in ``comet/queueFiles.json``.

A start checks the end of every queue. With 100,000 queues this takes long, although the files have rarely changed since
the last check. This file contains a checksum for each topic, computed from the metadata of its files (inode, size, time
of the last change) and the first and last offsets of its queues. If the checksum is unchanged, the files are still
sound, and what retention has found out about their first records still holds; other topics are checked. The file is
written by checkpoints and by a clean stop. It may be missing, outdated, torn or damaged.

After a crash it is valid only for the boot in which it was written: a power cut can lose the time of a change and keep
the change.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cometmq.store.boot import boot_id
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable
from cometmq.store.recovery.position import crc_of

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_CLOCK_TICK_NS: Final = 20_000_000
"""Resolution of change times. File systems use a clock that ticks every 1 to 10 ms, so within one tick, a file can
change again without a new change time.
"""
_WHOLE_SECONDS_NS: Final = 2_000_000_000
"""Resolution of change times on old file systems, which store full seconds or even seconds."""
_SECOND_NS: Final = 1_000_000_000
_MANY_TOPICS: Final = 256
"""Number of recently changed topics from which on a stop waits until their change times are final."""
_SAVED_SHARE: Final = 16
"""Fraction of topics (one in N) that must have changed before a checkpoint writes the file."""

QueueExtents = Mapping[int, tuple[int, int]]
_NONE: Final[dict[int, int]] = {}
"""Dict shared by all topics whose queues start at the start of a file. It is never changed."""


class _Known(msgspec.Struct, frozen=True):
    boot: str
    """Boot id of the machine, or an empty string if the system does not report one."""
    log: dict[str, int]
    """Checksum of each log file, by name."""
    topics: dict[str, tuple[int, dict[int, int]]]
    """Checksum of each topic's files, and the minOffset of queues whose first unit is not at the start of a file."""
    records: dict[str, dict[int, int]]
    """The log offset of the first record of each topic's queues, of those for which it is known."""
    version: int = _VERSION
    crc: int = 0
    """The checksum of this file, computed with 0 in this field."""


class KnownFiles:
    """The queue files that are known to be unchanged. After the start, only the checkpoint thread uses it."""

    def __init__(self, path: Path, log: CommitLog, queues: ConsumeQueueTable) -> None:
        self._path = path
        self._log = log
        self._queues = queues
        self._root = str(queues.root)
        self._file_size = queues.file_size
        self._boot = boot_id()
        self._topics: dict[str, tuple[int, dict[int, int]]] = {}
        self._records: dict[str, dict[int, int]] = {}
        """Log offsets of the first records of the queues of known topics."""
        self._young: set[str] = set()
        """Topics that changed just before they were checked."""
        self._unsaved = 0
        """Topics that have changed since the file was written."""
        self._is_invalid = False
        self._paused = False

    # --- at the start ---------------------------------------------------------------------------
    def load(self, *, crashed: bool) -> None:
        """Read the file, but ignore it if the log files have changed.

        :param crashed: True after a crash, when the last log file may have changed.
        """
        try:
            known = msgspec.json.decode(self._path.read_bytes(), type=_Known)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if known.version != _VERSION or known.crc != crc_of(known):
            return
        if crashed and (not known.boot or known.boot != self._boot):
            return
        last = max(known.log, default="") if crashed else ""
        if all(name == last or self._log_file(name) == crc for name, crc in known.log.items()):
            self._topics, self._records = known.topics, known.records

    def min_offsets(self, topic: str, extents: QueueExtents) -> Mapping[int, int] | None:
        """Return the minOffset of each of a topic's queues, or ``None`` unless its files are unchanged and have these
        extents.
        """
        known = self._topics.get(topic)
        found = self._checksum_of(topic, extents) if known is not None else None
        if known is None or found is None or found[0] != known[0]:
            self._forget(topic)
            return None
        return {queue_id: known[1].get(queue_id, first) for queue_id, (first, _) in extents.items()}

    def first_records(self, topic: str) -> Mapping[int, int]:
        """Return the log offsets of the first records of a topic's queues, of those for which they are known.

        They are valid only if :meth:`min_offsets` returns the topic's minOffsets.
        """
        return self._records.get(topic, _NONE)

    def _forget(self, topic: str) -> None:
        self._topics.pop(topic, None)
        self._records.pop(topic, None)

    def files_of(self, first: int, end: int) -> list[int]:
        """Return the start offsets of the files of a queue that has this extent."""
        size = self._file_size
        begin = first * CQ_UNIT_BYTES // size * size
        limit = end * CQ_UNIT_BYTES
        return [begin] if begin < limit <= begin + size else list(range(begin, limit, size))

    # --- from then on ---------------------------------------------------------------------------
    def pause(self) -> None:
        """Invalidate the file until :meth:`resume` is called, because the first messages of queues are changing.
        Thread-safe.
        """
        self._paused = self._is_invalid = True

    def resume(self) -> None:
        """Record changed topics again, since the first messages of all queues no longer change."""
        self._paused = False

    def check_flushed(self, changed: Iterable[str], extents: Mapping[str, QueueExtents]) -> None:
        """Check the files of topics that a checkpoint has flushed, and write the file if many topics have changed.

        :param extents: the extents of all topics, as in the position file.
        """
        if self._paused:
            return
        if self._is_invalid:
            self._is_invalid = False
            self._topics.clear()
            self._records.clear()
            self._unsaved = len(extents)
        topics = self._young.union(changed)
        self._young = set()
        now_ns = time.time_ns()
        for topic in topics:
            self._check_topic(topic, extents.get(topic), now_ns)
        self._unsaved += len(topics)
        if self._unsaved * _SAVED_SHARE > len(self._topics):
            self._write_file()

    def save(self, extents: Mapping[str, QueueExtents]) -> None:
        """Check all files that are not known yet, and write the file. This is the last step of a clean stop."""
        self.check_flushed(extents.keys() - self._topics.keys(), extents)
        if len(self._young) >= _MANY_TOPICS:
            time.sleep(_CLOCK_TICK_NS / 1e9)
            self.check_flushed((), extents)
        self._write_file()

    def _check_topic(self, topic: str, extents: QueueExtents | None, now_ns: int) -> None:
        self._forget(topic)
        queues = self._queues.by_topic.get(topic, {})
        if extents is None or not all(
            (queue := queues.get(queue_id)) is not None
            and queue.files == self.files_of(first, end)
            and queue.ends_in_files_at(end)
            for queue_id, (first, end) in extents.items()
        ):
            return
        found = self._checksum_of(topic, extents)
        if found is None:
            return
        checksum, changed_ns = found
        if changed_ns >= now_ns - (_CLOCK_TICK_NS if changed_ns % _SECOND_NS else _WHOLE_SECONDS_NS):
            self._young.add(topic)
            return
        inner = {
            queue_id: queues[queue_id].min_logical
            for queue_id, (first, _) in extents.items()
            if queues[queue_id].min_logical != first
        }
        self._topics[topic] = checksum, inner or _NONE
        records = {queue_id: begin for queue_id in extents if (begin := queues[queue_id].records_from)}
        if records:
            self._records[topic] = records

    def _write_file(self) -> None:
        """Replace the file unless it has been invalidated. It is not flushed, since it may be missing after a power
        failure.
        """
        if self._is_invalid:
            return
        known = _Known(
            boot=self._boot,
            log={name: self._log_file(name) for name in [segment.path.name for segment in self._log.segments]},
            topics=self._topics,
            records=self._records,
        )
        fresh = self._path.with_suffix(".tmp")
        try:
            fresh.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, crc=crc_of(known))))
            fresh.replace(self._path)
        except OSError as error:
            _log.warning("%s cannot be written, so the next start will check more queues: %s", self._path, error)
            with suppress(OSError):
                fresh.unlink()
        self._unsaved = 0

    def _checksum_of(self, topic: str, extents: QueueExtents) -> tuple[int, int] | None:
        """Return the checksum of a topic's extents and files, and the time (ns) of their last change, or ``None`` if
        there are no files.

        The checksum is a hash of numbers, since hashes of strings differ between processes.
        """
        root = f"{self._root}/{topic}"
        numbers = [self._log.min_offset]
        paths = [root]
        for queue_id, (first, end) in sorted(extents.items()):
            directory = f"{root}/{queue_id}"
            paths.append(directory)
            paths += [f"{directory}/{start:020d}" for start in self.files_of(first, end)]
            numbers += (queue_id, first, end)
        try:
            stats = [os.stat(path, follow_symlinks=False) for path in paths]  # noqa: PTH116 - of 200,000 files at a start
        except OSError:
            return None
        changed_ns = [stat.st_ctime_ns for stat in stats]
        for stat, changed in zip(stats, changed_ns, strict=True):
            numbers += (stat.st_ino, stat.st_size, changed)
        return hash(tuple(numbers)), max(changed_ns)

    def _log_file(self, name: str) -> int:
        """Return the checksum of a log file, or -1 if it is missing. A backup's hard link to the file does not change
        it."""
        try:
            stat = (self._log.directory / name).stat()
        except OSError:
            return -1
        return hash((stat.st_ino, stat.st_size, stat.st_mtime_ns))
