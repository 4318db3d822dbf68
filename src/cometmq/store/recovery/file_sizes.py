"""Determines the sizes of a store's files from the files themselves, regardless of the configuration.

``mappedFileSizeCommitLog`` and similar keys apply only to a new store. Existing files keep their sizes, since a
truncated log file loses messages, and Apache's brokers do not start with files of another size. The size that most
files have is used. A single log file may have been truncated, or may have more bytes after its end, so it is compared
with its records. If this is not conclusive, the sizes at the last start are used, from ``comet/store.json``.

This module only reads. A start that would truncate records is refused before anything is changed.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.message.record import BLANK_MAGIC, END_FILE_MIN_BLANK_BYTES
from cometmq.store.config import CQ_UNIT_BYTES, MIN_LOG_FILE_BYTES, FileSizes, StoreConfig
from cometmq.store.disk import open_file
from cometmq.store.errors import StoreError
from cometmq.store.index.index_file import index_file_bytes
from cometmq.store.index.index_service import is_index_name
from cometmq.store.index.index_sizes import read_index_sizes
from cometmq.store.log.commit_log import FILLER
from cometmq.store.log.log_reader import find_magics
from cometmq.store.log.mapped_file import data_end
from cometmq.store.log.record_scan import read_log_record
from cometmq.store.recovery.load import offset_of_name

_SAMPLE_FILES: Final = 64
"""Number of queue files that are checked first, if the configured sizes are those of the last start. If one differs,
all are checked.
"""
_PAGE_BYTES: Final = 4096
_ASKED_INDEX_FILES: Final = 4
"""Maximum number of index files to read. One undamaged file is enough."""


class _File(NamedTuple):
    """A file in a sequence, named after the offset of its first byte."""

    start: int
    path: Path
    size: int

    def fits(self, size: int) -> bool:
        """Return whether the file fits into a sequence of files of this size."""
        return self.size == size and self.start % size == 0


def use_existing_sizes(config: StoreConfig, recorded: FileSizes | None) -> tuple[StoreConfig, list[str]]:
    """Return the configuration with the sizes of the existing files, and a message for each size that differs.

    :param recorded: the sizes at the last start, if they are known.
    :raises StoreError: every possible size would truncate records in the log.
    """
    slots, entries = _index_sizes(config, recorded)
    before = config.file_sizes
    now = FileSizes(_log_size(config, recorded), _queue_size(config, recorded), slots, entries)
    lines = []
    if now.log != before.log:
        lines.append(f"commitlog: the files have {now.log} bytes, not mappedFileSizeCommitLog={before.log}")
    if now.queue != before.queue:
        lines.append(f"consumequeue: the files have {now.queue} bytes, not mappedFileSizeConsumeQueue={before.queue}")
    if (slots, entries) != (before.index_slots, before.index_entries):
        lines.append(
            f"index: the files have {slots} slots and {entries} entries, "
            f"not maxHashSlotNum={before.index_slots} and maxIndexNum={before.index_entries}"
        )
    return config.with_sizes(now), [f"{line}; their size is kept" for line in lines]


def numbered_files(directory: Path) -> list[_File]:
    """Return the files in the directory of a log or a queue, in order."""
    try:
        found = [
            _File(start, entry, entry.stat().st_size)
            for entry in directory.iterdir()
            if (start := offset_of_name(entry.name)) is not None and entry.is_file()
        ]
    except FileNotFoundError:
        return []
    return sorted(found)


def queue_directories_of(root: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield the directories of a store's queues as ``(topic, queue id, directory)``. Other directories are skipped."""
    try:
        with os.scandir(root / "consumequeue") as entries:
            topics = sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return
    for topic in topics:
        for queue in (root / "consumequeue" / topic).iterdir():
            if queue.name.isdecimal() and queue.is_dir():
                yield topic, int(queue.name), queue


# --- the log --------------------------------------------------------------------------------------
def _log_size(config: StoreConfig, recorded: FileSizes | None) -> int:
    configured = config.file_sizes.log
    before = recorded.log if recorded is not None else None
    files = numbered_files(config.commit_log)
    if all(file.fits(configured) for file in files):
        return configured
    if len(files) == 1:
        size = _size_of_only_file(files[0], configured, before)
    else:
        fitting = Counter(file.size for file in files if file.size >= MIN_LOG_FILE_BYTES and file.fits(file.size))
        size = _most_frequent_size(fitting, configured, before)
    for file in files:
        limit = size if file.start % size == 0 else 0
        if file.size > limit and _has_record_after(file, limit):
            raise StoreError(
                f"the log files in {config.commit_log} are of different sizes: most have {size:,} bytes, and "
                f"{file.path.name} with {file.size:,} bytes has messages that would be lost with this size; "
                "nothing was changed",
                next_step="restore a backup, or read the messages of all these files with Spark's rocketmq_store",
            )
    return size


def _most_frequent_size(fitting: Counter[int], configured: int, recorded: int | None) -> int:
    """Return the size that most files have. In case of a tie, return the size at the last start, or the
    largest size.
    """
    best = max(fitting.values(), default=0)
    sizes = [size for size, count in fitting.items() if count == best]
    if recorded is not None and (not sizes or recorded in sizes):
        return recorded
    return max(sizes, default=configured)


def _size_of_only_file(file: _File, configured: int, recorded: int | None) -> int:
    """Return the size of the log files if there is only one."""
    expected = recorded or configured
    if file.size == recorded and file.fits(recorded):
        return recorded
    with open_file(file.path, os.O_RDONLY) as fd:
        end = data_end(fd, file.size)
        rest, magic = FILLER.unpack(os.pread(fd, FILLER.size, end - FILLER.size)) if end >= FILLER.size else (0, 0)
    ended = end - FILLER.size + rest if magic == BLANK_MAGIC else 0
    if ended >= MIN_LOG_FILE_BYTES and file.start % ended == 0:
        return ended
    if file.size < MIN_LOG_FILE_BYTES or file.start % file.size:
        return expected
    if file.size > expected:
        is_whole = _has_record_after(file, expected) or (recorded is None and end <= expected)
    else:  # truncated or not: unless a record continues after its end, it can be a file of this size
        is_whole = recorded is None and end + END_FILE_MIN_BLANK_BYTES <= file.size and file.size % _PAGE_BYTES == 0
    return file.size if is_whole else expected


def _has_record_after(file: _File, limit: int) -> bool:
    """Return whether a log file contains a record that ends after byte ``limit``."""
    with (
        open_file(file.path, os.O_RDONLY) as fd,
        mmap.mmap(fd, file.size, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
    ):
        for begin, end in ((limit, file.size), (0, limit)):
            for at in find_magics(fd, view, begin, end):
                record = read_log_record(view, at, file.start + at, check_crc=False)
                if record is None or at + record.size <= limit:
                    continue
                if read_log_record(view, at, file.start + at, check_crc=True, may_be_torn=False) is not None:
                    return True
    return False


# --- queues and index -----------------------------------------------------------------------------
def _queue_size(config: StoreConfig, recorded: FileSizes | None) -> int:
    configured = config.file_sizes.queue
    root = config.root
    if recorded is not None and recorded.queue == configured:
        sample = itertools.islice(_queue_files(root), _SAMPLE_FILES)
        if all(file.fits(configured) for file in sample):
            return configured
    before = recorded.queue if recorded is not None else None
    fitting = Counter(
        file.size for file in _queue_files(root) if file.size and not file.size % CQ_UNIT_BYTES and file.fits(file.size)
    )
    if not fitting:
        return configured
    fitting[before or configured] += 1  # a single file may have been truncated
    return _most_frequent_size(fitting, configured, before)


def _queue_files(root: Path) -> Iterator[_File]:
    for _, _, directory in queue_directories_of(root):
        yield from numbered_files(directory)


def _index_sizes(config: StoreConfig, recorded: FileSizes | None) -> tuple[int, int]:
    """Return the slots and entries of the index files: those of the last start if the lengths fit, otherwise those read
    from the files.
    """
    directory = config.root / "index"
    sizes = config.file_sizes
    configured = sizes.index_slots, sizes.index_entries
    if not directory.is_dir():
        return configured
    files = {path: path.stat().st_size for path in directory.iterdir() if is_index_name(path.name) and path.is_file()}
    lengths = Counter(files.values())
    if recorded is not None:
        before = recorded.index_slots, recorded.index_entries
        kept = lengths[index_file_bytes(*before)]
        if kept and kept >= lengths[index_file_bytes(*configured)]:
            return before
    most = max(lengths, key=lambda length: lengths[length], default=0)
    newest = sorted((path for path, length in files.items() if length == most), reverse=True)
    told = (read_index_sizes(path) for path in newest[:_ASKED_INDEX_FILES])
    return next((found for found in told if found is not None), configured)
