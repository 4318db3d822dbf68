"""Damages: replaces damaged parts of the log that contain no record (see :mod:`cometmq.store.log.log_reader`).

A damaged part is first copied into the quarantine. Then it is overwritten with records that slaves, tools and Apache
skip; otherwise Apache's broker would end its log there and truncate everything after it. These are records of zeros
that end a transaction by a rollback; neither CometMQ nor Apache adds such records to a queue or to the index. If the
damaged message's queue is known, its record keeps topic, queue and both offsets, so that the queue's unit still points
to a record. At the end of a file, the part becomes a filler. If it cannot be copied, the part is left unchanged and
skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from cometmq.message.record import END_FILE_MIN_BLANK_BYTES, MIN_RECORD_BYTES, encode_record
from cometmq.message.sysflag import TRANSACTION_ROLLBACK
from cometmq.store.disk import Disk
from cometmq.store.log.commit_log import CommitLog, filler
from cometmq.store.log.log_reader import DamagedPart
from cometmq.store.log.mapped_file import MappedFile
from cometmq.store.recovery.load import Findings, is_zero

_NO_HOST: Final = bytes(8)
_NO_TOPIC: Final = "DAMAGED"
"""Topic of a record that replaces a record from an unknown topic."""
_MAX_BYTES: Final = 4 << 20
"""Maximum size of a record that replaces damaged bytes: Apache's default maximum message size."""
_MAX_LINES: Final = 5
"""Maximum number of damaged parts that are reported one by one."""


class LostMessage(NamedTuple):
    """The topic, queue and offsets of a damaged record."""

    topic: str
    queue_id: int
    queue_offset: int


class Replacement(NamedTuple):
    """Log offset of a record to which the unit of a lost message can point."""

    offset: int
    size: int


class Damages:
    """All damaged parts that are found when a store is opened."""

    def __init__(self, log: CommitLog, disk: Disk, findings: Findings) -> None:
        self._log = log
        self._disk = disk
        self._findings = findings
        self._reported = 0
        self._more = 0
        self._more_bytes = 0

    def replace(self, part: DamagedPart, message: LostMessage | None, timestamp: int) -> list[Replacement]:
        """Quarantine a damaged part, and return the records that replace it, which readers skip."""
        segment = self._log.segment_at(part.start)
        assert segment is not None
        start, end = part.start - segment.start, part.end - segment.start
        try:
            kept = self._findings.keep_part(segment.path, start, end)
            replacements = self._write_replacements(part, message, timestamp)
        except OSError as error:
            self._report_part(part, f"not quarantined ({error.strerror}), so it is left unchanged")
            return [Replacement(part.start, part.end - part.start)]
        self._report_part(part, f"copied to {self._findings.name(kept)}" if kept is not None else "all zeros")
        return replacements

    def fill_recreated(self, segments: Iterable[MappedFile]) -> None:
        """Overwrite files that contain only zeros with fillers or with records that readers skip, so that any program
        can read them.
        """
        for segment in segments:
            if is_zero(segment):
                with contextlib.suppress(OSError):  # without disk space they are skipped as they are
                    self._write_replacements(DamagedPart(segment.start, segment.end), None, 0)

    def _write_replacements(self, part: DamagedPart, message: LostMessage | None, timestamp: int) -> list[Replacement]:
        segment = self._log.segment_at(part.start)
        assert segment is not None
        at, end = part
        if end == segment.end:
            if end - at >= END_FILE_MIN_BLANK_BYTES:
                self._disk.write(segment.fd, filler(end - at), at - segment.start)
                self._disk.flush(segment.fd)
            return []
        replacements: list[Replacement] = []
        while end - at > MIN_RECORD_BYTES:
            size = end - at
            if size > _MAX_BYTES:
                size = min(_MAX_BYTES, size - _MAX_BYTES // 2)
            record = placeholder(at, size, message, timestamp)
            self._disk.write(segment.fd, record, at - segment.start)
            replacements.append(Replacement(at, size))
            message = None
            at += size
        self._disk.flush(segment.fd)
        return replacements

    def _report_part(self, part: DamagedPart, done: str) -> None:
        segment = self._log.segment_at(part.start)
        assert segment is not None
        size = part.end - part.start
        if self._reported == _MAX_LINES:
            self._more += 1
            self._more_bytes += size
            return
        self._reported += 1
        name = self._findings.name(segment.path)
        self._findings.add(f"{name}: {size} bytes at {part.start} are damaged; {done}; later messages are kept")

    def report_rest(self) -> None:
        """Report the number of damaged parts that were not reported one by one."""
        if self._more:
            self._findings.add(
                f"the log: {self._more} more damaged parts with {self._more_bytes} bytes, handled in the same way"
            )


def placeholder(at: int, size: int, message: LostMessage | None, timestamp: int) -> bytes:
    """Return a record of ``size`` bytes for log offset ``at``, which every reader skips."""
    room = size - MIN_RECORD_BYTES
    if message is None or not 0 < len(message.topic.encode()) <= min(room, 127):
        message = LostMessage(_NO_TOPIC[:room], 0, 0)
    return encode_record(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=at,
        body=bytes(room - len(message.topic.encode())),
        properties_text="",
        sys_flag=TRANSACTION_ROLLBACK,
        born_timestamp=timestamp,
        born_host=_NO_HOST,
        store_timestamp=timestamp,
        store_host=_NO_HOST,
    )
