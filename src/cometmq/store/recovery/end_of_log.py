"""EndOfLog: sets the end of a log, clears the bytes after it, and replaces a lost end.

A log has lost its end if ``comet/position.json`` refers to records after the last one, because a file system truncated
a file or the last files were deleted. Clients may know the offsets of the lost messages, so these offsets are not used
again: fillers end the files up to the lost end, and the log continues in the next file. At the start of the lost part,
records that every reader skips store the last offset of each queue, and the unit at that offset points to the queue's
record. The unit must not be blank: Apache's broker would treat a blank last unit as pointing beyond the log, and would
not create units for new messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.durable import flush_directory
from cometmq.message.record import END_FILE_MIN_BLANK_BYTES, MIN_RECORD_BYTES
from cometmq.store.disk import Disk
from cometmq.store.log.commit_log import CommitLog, filler
from cometmq.store.log.mapped_file import MappedFile, clear_from
from cometmq.store.recovery.damages import LostMessage, Replacement, placeholder
from cometmq.store.recovery.load import Findings, is_zero, make_file_again

_BODY_BYTES: Final = 8
"""Body of the record that replaces a queue's last message. It is not empty, since Apache's clients convert an empty
body to null.
"""


class EndOfLog:
    """The end of a log that has been read up to its ``position``."""

    def __init__(self, log: CommitLog, disk: Disk, findings: Findings) -> None:
        self._log = log
        self._disk = disk
        self._findings = findings
        self._failed_writes: list[Callable[[], None]] = []
        """Failed writes, in order. The store accepts no messages until they succeed."""

    def truncate(self) -> None:
        """Quarantine the segments after the end, and clear the bytes after the end in the last segment."""
        log = self._log
        end = log.position
        if log.segments and end == log.segments[-1].end:
            return
        while log.segments and log.segments[-1].start >= end and len(log.segments) > 1:
            segment = log.segments.pop()
            if is_zero(segment):
                segment.path.unlink()
            else:
                self._findings.set_aside(segment.path, "does not contain the record after the log's last record")
            segment.close()
        if not log.segments:
            return
        last = log.segments[-1]
        at = end - last.start
        if is_zero(last, at):
            return
        name = self._findings.name(last.path)
        try:
            kept = self._findings.keep_part(last.path, at, last.size)
        except OSError as error:
            self._findings.add(
                f"{name}: the bytes after the last complete record, at {end}, cannot be quarantined: {error.strerror}; "
                "messages are refused until this succeeds"
            )
            self._retry_before_writes(lambda: self._keep_and_clear(last.path, at, last.size))
            return
        aside = f"; the bytes after it were copied to {self._findings.name(kept)}" if kept is not None else ""
        self._findings.add(f"{name}: truncated after the last complete record, at {end}{aside}")
        clear_from(last.path, at, last.size)

    def _keep_and_clear(self, path: Path, at: int, size: int) -> None:
        self._findings.keep_part(path, at, size)
        clear_from(path, at, size)

    def placeholder_offsets(self, messages: list[LostMessage], assigned: int) -> list[Replacement]:
        """Return the log offsets at which :meth:`continue_after` will write the record of each message."""
        log = self._log
        at = log.position if log.segments else -(-assigned // log.segment_size) * log.segment_size
        replacements: list[Replacement] = []
        for message in messages:
            size = MIN_RECORD_BYTES + len(message.topic.encode()) + _BODY_BYTES
            end = at - at % log.segment_size + log.segment_size
            if at + size + END_FILE_MIN_BLANK_BYTES > end:
                at = end
            replacements.append(Replacement(at, size))
            at += size
        return replacements

    def continue_after(self, assigned: int, last: list[tuple[LostMessage, Replacement]], timestamp: int) -> None:
        """Continue the log after ``assigned``, the highest offset ever assigned. Call :meth:`truncate` before.

        :param last: the last message of each queue, with the log offset of the record that replaces it.
        :raises OSError: a missing file cannot be created again.
        """
        log = self._log
        if not log.segments:
            log.position = -(-assigned // log.segment_size) * log.segment_size
        begin = log.position
        content = bytearray()
        for message, replacement in last:
            if replacement.offset != begin + len(content):
                self._append(begin, content, ends=True)
                begin, content = replacement.offset, bytearray()
            content += placeholder(replacement.offset, replacement.size, message, timestamp)
        if content or begin < assigned:
            self._append(begin, content, ends=begin + len(content) < assigned)
        while log.position < assigned:
            self._append(log.position, bytearray(), ends=True)

    def _append(self, begin: int, content: bytearray, *, ends: bool) -> None:
        """Write ``content`` at log offset ``begin``. If ``ends`` is true, also write the filler that ends the file."""
        log = self._log
        segment = log.segment_at(begin)
        if segment is None:
            path = make_file_again(log, begin)
            flush_directory(log.directory)
            segment = MappedFile(path, begin, log.segment_size)
            log.segments.append(segment)
        log.position = begin + len(content)
        rest = segment.end - log.position
        if ends:
            log.position = segment.end
            content += filler(rest) if rest >= END_FILE_MIN_BLANK_BYTES else b""

        def write() -> None:
            self._disk.write(segment.fd, content, begin - segment.start)
            self._disk.flush(segment.fd)

        if self._failed_writes:
            self._retry_before_writes(write)
            return
        try:
            write()
        except OSError as error:
            self._findings.add(
                f"{self._findings.name(segment.path)}: its end cannot be written: {error.strerror}; "
                "messages are refused until this succeeds"
            )
            self._retry_before_writes(write)

    def _retry_before_writes(self, work: Callable[[], None]) -> None:
        self._failed_writes.append(work)
        self._log.run_before_writes(self._retry_writes)

    def _retry_writes(self) -> None:
        while self._failed_writes:
            self._failed_writes[0]()
            del self._failed_writes[0]
