"""Finds the files of a store: opens its own files and quarantines foreign files. No file is deleted.

A quarantined file is moved to ``comet/quarantine/``. Its new name is its old path with ``~`` for ``/``, and a number.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from cometmq.durable import flush_directory, make_directory
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.mapped_file import MappedFile, file_name, first_data
from cometmq.store.log.record_scan import is_stored_topic
from cometmq.store.queue.consume_queue import MAX_QUEUE_ID

_NAME_DIGITS: Final = 20
_COPY_BYTES: Final = 1 << 18

_SMALL_FILES: Final = (
    "abort",
    "checkpoint",
    "comet/copiedTables",
    "comet/deletedTopics.json",
    "comet/delayOffset.json",
    "comet/locks.json",
    "comet/position.json",
    "comet/producers.json",
    "comet/queueFiles.json",
    "comet/timer/position.json",
    "config/consumerFilter.json",
    "config/consumerOffset.json",
    "config/delayOffset.json",
    "config/subscriptionGroup.json",
    "config/timercheck",
    "config/topics.json",
)
"""Small files of the store and the broker. If something else has one of these paths, it is quarantined first."""


class Findings:
    """Findings and repairs from the opening of a store, and the quarantine for foreign files."""

    def __init__(self, root: Path) -> None:
        self.lines: list[str] = []
        self._root = root
        self._quarantine = root / "comet" / "quarantine"

    def add(self, line: str) -> None:
        """Add a line to the report: a problem that was found, and how it was repaired."""
        self.lines.append(line)

    def name(self, path: Path) -> str:
        """Return a path relative to the store's directory, for messages."""
        return os.path.relpath(path, self._root)

    def place_for(self, path: Path) -> Path:
        """Return a path in the quarantine that is still free, for the file ``path``."""
        make_directory(self._quarantine)
        flat = self.name(path).replace("../", "").replace(os.sep, "~")[-200:]
        number = 1
        while (place := self._quarantine / f"{flat}.{number}").exists():
            number += 1
        return place

    def keep_part(self, path: Path, start: int, end: int) -> Path | None:
        """Copy the bytes from ``start`` to ``end`` of a file into the quarantine and flush the copy.

        Return the path of the copy, which omits trailing zeros, or ``None`` if all bytes are zero.

        :raises OSError: the copy cannot be written.
        """
        with path.open("rb", buffering=0) as source:
            at = first_data(source.fileno(), start, end)
            if at >= end:
                return None
            place = self.place_for(path.with_name(f"{path.name}@{start}"))
            try:
                with place.open("xb", buffering=0) as target:
                    while at < end:
                        block = os.pread(source.fileno(), min(_COPY_BYTES, end - at), at)
                        used = block.rstrip(b"\0")
                        written = 0
                        while written < len(used):
                            written += os.pwrite(target.fileno(), used[written:], at - start + written)
                        at = first_data(source.fileno(), at + len(block), end) if block else end
                    os.fsync(target.fileno())
            except BaseException:
                place.unlink(missing_ok=True)
                raise
        flush_directory(self._quarantine)
        return place

    def set_aside(self, path: Path, why: str) -> None:
        """Move a file or directory into the quarantine and add a finding with the reason."""
        place = self.place_for(path)
        shutil.move(path, place)
        self.add(f"{self.name(path)}: {why}; moved to {self.name(place)}")


def set_unusable_aside(root: Path, findings: Findings) -> None:
    """Quarantine directories that have the paths of small files, and a file that has the path of the journals'
    directory.

    The store works without these files, but it must be able to write them.
    """
    journals = root / "comet" / "tables"
    if (journals.exists() or journals.is_symlink()) and not journals.is_dir():
        findings.set_aside(journals, "not a directory")
    there: dict[str, set[str]] = {}
    for name in _SMALL_FILES:
        directory, _, file = name.rpartition("/")
        if directory not in there:
            there[directory] = _names_in(root / directory)
        for one in (file, f"{file}.bak", f"{file}.tmp", f"{file.removesuffix('.json')}.tmp"):
            if one not in there[directory]:
                continue
            path = root / directory / one
            if path.is_symlink() and not path.exists():
                findings.set_aside(path, "a dangling link")
            elif path.exists() and not path.is_file():
                findings.set_aside(path, "not a file")
            elif path.is_file() and not os.access(path, os.R_OK | os.W_OK):
                findings.set_aside(path, "cannot be read and written")


def _names_in(directory: Path) -> set[str]:
    """Return the names in a directory, or no names if it does not exist."""
    try:
        return {path.name for path in directory.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def offset_of_name(name: str) -> int | None:
    """Return the offset in a file name of 20 digits, or ``None`` for any other name."""
    if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    return None


def load_log(log: CommitLog, findings: Findings) -> list[MappedFile]:
    """Open the log's segments: a sequence of files that have the right length, without gaps.

    Missing files between others are created again, full of zeros, so that the files after them are kept. They are
    returned as well. If more files are missing than exist, the files do not belong to one log, and only the longest
    sequence without a gap is kept.
    """
    starts: list[int] = []
    for entry in sorted(log.directory.iterdir()):
        start = offset_of_name(entry.name)
        if start is None or not entry.is_file():
            findings.set_aside(entry, "not a log file")
        elif start % log.segment_size:
            findings.set_aside(entry, f"its name is not a multiple of the file size {log.segment_size}")
        else:
            starts.append(start)
    missing = missing_between(starts, log.segment_size)
    for start in missing:
        path = make_file_again(log, start)
        findings.add(f"{findings.name(path)}: missing; its messages are lost, and the files after it are kept")
    starts = sorted([*starts, *missing])
    kept = _longest_run(starts, log.segment_size)
    for start in starts:
        path = log.directory / file_name(start)
        if start not in kept:
            findings.set_aside(path, "an adjacent log file is missing")
            continue
        _fix_length(path, log.segment_size, findings)
        log.segments.append(MappedFile(path, start, log.segment_size))
        if start != starts[-1]:
            log.segments[-1].rest()
    return [segment for segment in log.segments if segment.start in missing]


def make_file_again(log: CommitLog, start: int) -> Path:
    """Create a missing file of the log that starts at ``start``, full of zeros that use no disk space."""
    path = log.directory / file_name(start)
    path.touch(0o644, exist_ok=False)
    os.truncate(path, log.segment_size)
    return path


def missing_between(starts: list[int], size: int) -> list[int]:
    """Return the offsets of files that are missing in an ascending sequence, or no offsets if at least as many are
    missing as exist.
    """
    count = (starts[-1] - starts[0]) // size + 1 - len(starts) if starts else 0
    return sorted({*range(starts[0], starts[-1], size)} - {*starts}) if 0 < count < len(starts) else []


def _longest_run(starts: list[int], size: int) -> list[int]:
    """Return the longest run of ascending offsets without a gap. If several are equally long, return the newest."""
    best: list[int] = []
    run: list[int] = []
    for start in starts:
        if run and start != run[-1] + size:
            run = []
        run.append(start)
        if len(run) >= len(best):
            best = run
    return best


def _fix_length(path: Path, size: int, findings: Findings) -> None:
    """Change a file to the right length. Surplus bytes are copied to the quarantine."""
    length = path.stat().st_size
    if length == size:
        return
    if length < size:
        os.truncate(path, size)
        findings.add(f"{findings.name(path)}: {length} bytes long instead of {size}; padded with zeros")
        return
    kept = findings.keep_part(path, size, length)
    os.truncate(path, size)
    rest = f"moved to {findings.name(kept)}" if kept is not None else "was zeros"
    findings.add(f"{findings.name(path)}: {length} bytes long instead of {size}; the rest {rest}")


def is_zero(segment: MappedFile, at: int = 0) -> bool:
    """Return whether a segment contains only zeros from byte ``at``."""
    with segment.opened() as fd:
        return first_data(fd, at, segment.size) >= segment.size


def topic_directories(root: Path, known: Container[str], findings: Findings) -> Iterator[os.DirEntry[str]]:
    """Yield the directories of topics in ``consumequeue/``, sorted by name. Directories in ``known`` are not
    checked.
    """
    if not root.is_dir():
        return
    for topic in _sorted_entries(root):
        if topic.is_dir(follow_symlinks=False) and (topic.name in known or is_stored_topic(topic.name)):
            yield topic
        else:
            findings.set_aside(Path(topic.path), "not a topic directory")


def queue_directories(topic: str, findings: Findings) -> Iterator[tuple[int, str]]:
    """Yield the directories of a topic's queues, with their ids."""
    for queue in _sorted_entries(topic):
        if queue.is_dir(follow_symlinks=False) and _is_queue_id(queue.name):
            yield int(queue.name), queue.path
        else:
            findings.set_aside(Path(queue.path), "not a queue directory")


def _sorted_entries(directory: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a directory, sorted by name."""
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _is_queue_id(name: str) -> bool:
    return (
        name.isascii() and name.isdigit() and len(name) <= 10 and name == str(int(name)) and int(name) <= MAX_QUEUE_ID
    )


def queue_files(directory: str, file_size: int, findings: Findings) -> list[int]:
    """Return the start offsets of a queue's newest files that follow one another without a gap.

    Set aside the others.
    """
    starts: list[int] = []
    for entry in _sorted_entries(directory):
        start = offset_of_name(entry.name)
        if start is None or start % file_size or not entry.is_file(follow_symlinks=False):
            findings.set_aside(Path(entry.path), "not a queue file")
            continue
        starts.append(start)
        if entry.stat(follow_symlinks=False).st_size != file_size:
            _fix_length(Path(entry.path), file_size, findings)
    starts.sort()
    for index in range(len(starts) - 1, 0, -1):
        if starts[index] - starts[index - 1] != file_size:
            for start in starts[:index]:
                findings.set_aside(Path(directory, file_name(start)), "the next queue file is missing")
            return starts[index:]
    return starts
