"""The checks of a stopped store's log. Files are opened for reading only.

The records are read by recovery's :class:`~cometmq.store.log.log_reader.LogReader`, so a damaged part here is what a
start would replace.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Final

from cometmq.cli.moments import local_time
from cometmq.client.admin.cluster_health import Watch
from cometmq.client.admin.finding import ADVICE, OK, PROBLEM, Finding
from cometmq.quantity import quantity, size_text
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_reader import DamagedPart, LogEvidence, LogReader
from cometmq.store.log.mapped_file import MappedFile, file_name, first_data
from cometmq.store.log.plain_records import PlainRecords, PlainRun
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET, read_log_record
from cometmq.store.recovery.file_sizes import numbered_files
from cometmq.store.recovery.index_recovery import NEVER
from cometmq.store.recovery.load import missing_between
from cometmq.store.recovery.position import Position

RESTORE: Final = "restore it from a slave or a backup before the next start"
_READ_FILES: Final = 2
"""Number of log files that are read without ``--all``. A crash damages only the last one."""
_SHOWN: Final = 3
_MIB: Final = 1 << 20


class StoppedLog(CommitLog):
    """The log of a stopped store, which is never written. Files may be missing or cut short."""

    def __init__(self, config: StoreConfig) -> None:
        super().__init__(config.commit_log, config.mapped_file_size_commit_log, Disk())
        self.files = numbered_files(config.commit_log)
        for file in self.files:
            size = min(file.size, self.segment_size)
            if size and file.start % self.segment_size == 0:
                self.segments.append(MappedFile(file.path, file.start, size, flags=os.O_RDONLY))
                self.segments[-1].rest()
        self._by_start = {segment.start: segment for segment in self.segments}
        self.end = 0
        """Log offset after the last sound record. :meth:`read` sets it."""
        self.queues: set[tuple[str, int]] = set()
        """Topic and queue id of the messages that :meth:`read` has found."""

    def segment_at(self, offset: int) -> MappedFile | None:
        """Return the segment that contains the byte at ``offset``, or ``None`` if there is none."""
        segment = self._by_start.get(offset - offset % self.segment_size)
        return segment if segment is not None and offset < segment.end else None

    # --- files ------------------------------------------------------------------------------------
    def check_files(self) -> Iterator[Finding]:
        """Check the names and lengths of the files."""
        size = self.segment_size
        check = "log files"
        if not self.files:
            yield Finding(check, OK, "none: the store has no messages")
            return
        first, last = self.files[0], self.files[-1]
        times = [time for segment in self.segments[:1] if (time := local_time(_first_time(segment)))]
        since = f"; first message stored at {times[0]}" if times else ""
        kept = f"log offsets {first.start} to {last.start + last.size}{since}"
        yield Finding(check, OK, f"{quantity(len(self.files), 'file')} of {size_text(size)}, {kept}")
        starts = [file.start for file in self.files if file.start % size == 0]
        missing = missing_between(starts, size)
        if missing:
            found = f"{quantity(len(missing), 'file')} missing between others: {_names(missing)}"
            yield Finding(check, PROBLEM, found, f"{RESTORE}, which continues without its messages")
        elif starts and (starts[-1] - starts[0]) // size + 1 != len(starts):
            found = "more files are missing between others than exist"
            todo = "find the missing files: the next start keeps the longest run, and moves the others to quarantine"
            yield Finding(check, PROBLEM, found, todo)
        foreign = [file.start for file in self.files if file.start % size]
        if foreign:
            found = f"not a multiple of the file size: {_names(foreign)}"
            yield Finding(check, PROBLEM, found, "move it away: it is not of this log, and a start puts it aside")
        for file in self.files:
            if file.size != size and file.start not in foreign:
                found = f"{file.path.name} has {file.size:,} bytes, not {size:,}"
                todo = f"if a copy was interrupted, repeat it; otherwise {RESTORE}, which fills it with zeros"
                yield Finding(check, PROBLEM if file.size < size else ADVICE, found, todo)

    # --- records ----------------------------------------------------------------------------------
    def read(self, position: Position | None, watch: Watch, *, reads_all: bool) -> Iterator[Finding]:
        """Read the records of the last log files, or of all files, and check them with their CRCs.

        :param position: the position file, if the store has one.
        """
        full = [segment for segment in self.segments if _has_data(segment)]
        chosen = full if reads_all else full[-_READ_FILES:]
        if not chosen:
            return
        is_ours = position is not None and position.belongs_to(self)
        known = position.offset if position is not None and is_ours else 0
        proven = known or (position.proven_end(self) if position is not None else 0)
        damaged: list[DamagedPart] = []
        total = sum(segment.size for segment in chosen) // _MIB
        with watch("reading the log", total) as progress:
            timestamp = 0
            for run in _runs(chosen):
                reader = LogReader(
                    self,
                    run[0].start,
                    LogEvidence(lambda _: 0, lambda _: proven),
                    check_crc=True,
                    plain=(plain := PlainRecords(NEVER, NEVER, check_crc=True)),
                )
                shown = run[0].start
                for item in reader:
                    if isinstance(item, DamagedPart):
                        damaged.append(item)
                    elif not isinstance(item, PlainRun):
                        follow = not item.sys_flag & NO_QUEUE_OFFSET
                        if follow:
                            self.queues.add((item.topic, item.queue_id))
                        plain.follow_queue_of(item, follow=follow)
                    if reader.end - shown >= _MIB:
                        progress.advance((reader.end - shown) // _MIB)
                        shown = reader.end
                timestamp = max(timestamp, reader.timestamp)
                self.end = reader.end
        yield from self._records(chosen, damaged, timestamp, is_all=len(chosen) == len(full))
        if position is not None and not is_ours:
            lost = f"the log ends at {self.end}, but had reached {position.offset}"
            found = lost if self.end < position.offset else "comet/position.json does not belong to this log"
            todo = (
                f"if it is not the newest copy, or has lost its end, {RESTORE}; otherwise the start checks everything"
            )
            yield Finding("end of the log", PROBLEM, found, todo)

    def _records(
        self, chosen: Sequence[MappedFile], damaged: Sequence[DamagedPart], timestamp: int, *, is_all: bool
    ) -> Iterator[Finding]:
        names = "all files" if is_all else f"the last {quantity(len(chosen), 'file')} with messages"
        read = f"{names} read, {size_text(self.end - chosen[0].start)}"
        last = f"; last message stored at {local_time(timestamp)}" if timestamp else ""
        more = "" if is_all else "; --all reads the others"
        yield Finding("messages", OK, f"{read}; the log ends at {self.end}{last}{more}")
        if damaged:
            bytes_lost = sum(part.end - part.start for part in damaged)
            places = ", ".join(f"{part.start} to {part.end}" for part in damaged[:_SHOWN])
            rest = f" and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
            found = f"{quantity(len(damaged), 'damaged part')} of {size_text(bytes_lost)} at log offsets {places}{rest}"
            todo = f"{RESTORE}; a start serves all other messages, and copies damaged parts to comet/quarantine"
            yield Finding("messages", PROBLEM, found, todo)
        tail = self.segment_at(self.end)
        if tail is not None:
            with tail.opened() as fd:
                at = first_data(fd, self.end - tail.start, tail.size)
            if at < tail.size:
                found = f"bytes after the last complete message, from log offset {tail.start + at}"
                todo = "none: a start copies these bytes to comet/quarantine"
                yield Finding("end of the log", ADVICE, found, todo)


def _runs(segments: Sequence[MappedFile]) -> Iterator[list[MappedFile]]:
    """Yield the runs of segments that follow each other without a gap."""
    run: list[MappedFile] = []
    for segment in segments:
        if run and run[-1].end != segment.start:
            yield run
            run = []
        run.append(segment)
    yield run


def _has_data(segment: MappedFile) -> bool:
    with segment.opened() as fd:
        return first_data(fd, 0, segment.size) < segment.size


def _first_time(segment: MappedFile) -> int:
    """Return the store timestamp of a segment's first record, or 0 if there is none."""
    record = read_log_record(segment.view, 0, segment.start, check_crc=False)
    return record.store_timestamp if record is not None else 0


def _names(starts: Sequence[int]) -> str:
    rest = f" and {len(starts) - _SHOWN} more" if len(starts) > _SHOWN else ""
    return ", ".join(map(file_name, itertools.islice(starts, _SHOWN))) + rest
