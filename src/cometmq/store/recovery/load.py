"""Finds the files of a store: its own are opened, foreign ones are set aside, never deleted.

Set aside means: moved into ``comet/quarantine/`` under its old path joined by ``~`` and a number.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from cometmq.durable import flush_directory
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
"""Small files, of the broker too; anything else in their places is set aside before they are read."""


class Findings:
    """The findings and repairs of opening a store, one line each, and the quarantine for foreign files."""

    def __init__(self, root: Path) -> None:
        self.lines: list[str] = []
        self._root = root
        self._quarantine = root / "comet" / "quarantine"

    def add(self, line: str) -> None:
        """Add a finding and the repair."""
        self.lines.append(line)

    def name(self, path: Path) -> str:
        """Return a path as people know it: below the store's directory."""
        return os.path.relpath(path, self._root)

    def place_for(self, path: Path) -> Path:
        """Return a free name in the quarantine for ``path``."""
        self._quarantine.mkdir(parents=True, exist_ok=True)
        flat = self.name(path).replace("../", "").replace(os.sep, "~")[-200:]
        number = 1
        while (place := self._quarantine / f"{flat}.{number}").exists():
            number += 1
        return place

    def keep_part(self, path: Path, start: int, end: int) -> Path | None:
        """Copy the bytes from ``start`` to ``end`` of a file into the quarantine, so that they survive a power cut.

        Returns the copy, without zeros at its end, or ``None`` if all of them are zero.

        :raises OSError: it cannot be written.
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
        """Move a file or a directory into the quarantine and add a finding with the reason."""
        place = self.place_for(path)
        shutil.move(path, place)
        self.add(f"{self.name(path)}: {why}; moved to {self.name(place)}")


def set_unusable_aside(root: Path, findings: Findings) -> None:
    """Set aside directories that stand where a small file of the store belongs, and a file where their journals do.

    Every such file can be missing; one that cannot be replaced could never be written again.
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
                findings.set_aside(path, "a link that leads nowhere")
            elif path.exists() and not path.is_file():
                findings.set_aside(path, "not a file")
            elif path.is_file() and not os.access(path, os.R_OK | os.W_OK):
                findings.set_aside(path, "cannot be read and written")


def _names_in(directory: Path) -> set[str]:
    """Return the names in a directory; none when it is not there. Most of the small files are not, on each of many
    starts."""
    try:
        return {path.name for path in directory.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def offset_of_name(name: str) -> int | None:
    """Return the offset that a file name stands for, or ``None`` unless it has 20 digits."""
    if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    return None


def load_log(log: CommitLog, findings: Findings) -> list[MappedFile]:
    """Open the log's segments: one gapless sequence of files of the right length.

    Files that are missing between others are made again, full of zeros, so that the files after them stay; returns
    these. Where more are missing than there are, the others are not of one log: the longest gapless part stays.
    """
    starts: list[int] = []
    for entry in sorted(log.directory.iterdir()):
        start = offset_of_name(entry.name)
        if start is None or not entry.is_file():
            findings.set_aside(entry, "not a file of the log")
        elif start % log.segment_size:
            findings.set_aside(entry, f"its name is no multiple of the file size {log.segment_size}")
        else:
            starts.append(start)
    missing = _missing_between(starts, log.segment_size)
    for start in missing:
        path = make_file_again(log, start)
        findings.add(f"{findings.name(path)}: missing; what follows is kept, its own messages are lost")
    starts = sorted([*starts, *missing])
    kept = _longest_run(starts, log.segment_size)
    for start in starts:
        path = log.directory / file_name(start)
        if start not in kept:
            findings.set_aside(path, "a log file beside it is missing")
            continue
        _fix_length(path, log.segment_size, findings)
        log.segments.append(MappedFile(path, start, log.segment_size))
    return [segment for segment in log.segments if segment.start in missing]


def make_file_again(log: CommitLog, start: int) -> Path:
    """Make the missing file of the log that begins at ``start``, full of zeros that take no space."""
    path = log.directory / file_name(start)
    path.touch(0o644, exist_ok=False)
    os.truncate(path, log.segment_size)
    return path


def _missing_between(starts: list[int], size: int) -> list[int]:
    """Return the offsets that are missing in an ascending sequence; none when these are as many as those that are
    there."""
    count = (starts[-1] - starts[0]) // size + 1 - len(starts) if starts else 0
    return sorted({*range(starts[0], starts[-1], size)} - {*starts}) if 0 < count < len(starts) else []


def _longest_run(starts: list[int], size: int) -> list[int]:
    """Return the longest part of ascending offsets without a gap; of two equally long ones the newer."""
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
    """Give a file the length that it must have; surplus bytes go to the quarantine."""
    length = path.stat().st_size
    if length == size:
        return
    if length < size:
        os.truncate(path, size)
        findings.add(f"{findings.name(path)}: {length} bytes long instead of {size}; filled up with zeros")
        return
    kept = findings.keep_part(path, size, length)
    os.truncate(path, size)
    rest = f"moved to {findings.name(kept)}" if kept is not None else "was zeros"
    findings.add(f"{findings.name(path)}: {length} bytes long instead of {size}; the rest {rest}")


def is_zero(segment: MappedFile, at: int = 0) -> bool:
    """Return whether a segment holds nothing from byte ``at`` on."""
    return first_data(segment.fd, at, segment.size) >= segment.size


def topic_directories(root: Path, known: Container[str], findings: Findings) -> Iterator[os.DirEntry[str]]:
    """Yield the directories of topics in ``consumequeue/``, by their names; those of ``known`` topics are not
    checked."""
    if not root.is_dir():
        return
    for topic in _entries(root):
        if topic.is_dir(follow_symlinks=False) and (topic.name in known or is_stored_topic(topic.name)):
            yield topic
        else:
            findings.set_aside(Path(topic.path), "not the directory of a topic")


def queue_directories(topic: str, findings: Findings) -> Iterator[tuple[int, str]]:
    """Yield the directories of queues in that of a topic, with their ids."""
    for queue in _entries(topic):
        if queue.is_dir(follow_symlinks=False) and _is_queue_id(queue.name):
            yield int(queue.name), queue.path
        else:
            findings.set_aside(Path(queue.path), "not the directory of a queue")


def _entries(directory: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a directory by their names: file systems list them in an order of their own."""
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _is_queue_id(name: str) -> bool:
    return (
        name.isascii() and name.isdigit() and len(name) <= 10 and name == str(int(name)) and int(name) <= MAX_QUEUE_ID
    )


def queue_files(directory: str, file_size: int, findings: Findings) -> list[int]:
    """Return the start offsets of a queue's files: the gapless sequence that ends with the newest."""
    starts: list[int] = []
    for entry in _entries(directory):
        start = offset_of_name(entry.name)
        if start is None or start % file_size or not entry.is_file(follow_symlinks=False):
            findings.set_aside(Path(entry.path), "not a file of the queue")
            continue
        starts.append(start)
        if entry.stat(follow_symlinks=False).st_size != file_size:
            _fix_length(Path(entry.path), file_size, findings)
    starts.sort()
    for index in range(len(starts) - 1, 0, -1):
        if starts[index] - starts[index - 1] != file_size:
            for start in starts[:index]:
                findings.set_aside(Path(directory, file_name(start)), "the queue file after it is missing")
            return starts[index:]
    return starts
