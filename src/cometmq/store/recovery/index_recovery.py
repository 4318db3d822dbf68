"""Opens the index: keeps sound files, and indexes the log again from the point where they end."""

from __future__ import annotations

import numpy as np

from cometmq.store.index.index_file import IndexFile, index_file_bytes
from cometmq.store.index.index_service import IndexService, is_index_name
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import record_at
from cometmq.store.recovery.load import Findings
from cometmq.store.recovery.position import Position

NEVER = 1 << 62
"""Log offset from which on no record is indexed."""


def index_from(
    index: IndexService | None,
    log: CommitLog,
    position: Position | None,
    crashed: bool,
    findings: Findings,
) -> int:
    """Open the index files, and return the log offset from which on entries are missing."""
    if index is None:
        return NEVER
    _open_files(index, findings)
    if position is not None:
        return _open_by_position(index, log, position, findings)
    log_end = log.segments[-1].end if log.segments else 0
    kept = next((at for at, file in enumerate(index.files) if not file.sound(log_end)), len(index.files))
    _set_aside(index, kept, "header and entries are inconsistent", findings)
    if crashed and index.files:
        last = index.files[-1]
        last.truncate_entries(last.count, last.end_timestamp)
    return _end_of_last_record(index, log, findings)


def cut_index(index: IndexService, log_end: int) -> None:
    """Remove the entries of records that are no longer in the log."""
    while index.files and index.files[-1].count > 1 and index.files[-1].end_offset >= log_end:
        last = index.files[-1]
        count = 1 + int(np.searchsorted(last.offsets(), log_end))
        last.truncate_entries(count, last.timestamp(count - 1))
        if count > 1 or len(index.files) == 1:
            return
        index.files.pop().remove()


def _open_files(index: IndexService, findings: Findings) -> None:
    if not index.directory.is_dir():
        return
    size = index_file_bytes(index.slots, index.entries)
    for path in sorted(index.directory.iterdir()):
        if not is_index_name(path.name) or not path.is_file():
            findings.set_aside(path, "not an index file")
        elif path.stat().st_size != size:
            findings.set_aside(path, f"{path.stat().st_size} bytes long instead of {size}")
        else:
            index.files.append(IndexFile(path, index.slots, index.entries, index.disk))


def _open_by_position(index: IndexService, log: CommitLog, position: Position, findings: Findings) -> int:
    """Open the index files that the position file lists, or those before the first damaged one."""
    by_name = {file.path.name: file for file in index.files}
    last = len(position.index_files) - 1
    for at, (name, count, end_offset, end_timestamp) in enumerate(position.index_files):
        file = by_name.get(name)
        if (
            file is None
            or index.files[at] is not file
            or not file.agrees(count, end_offset)
            or (at < last and file.count != count)
        ):
            if file is None:
                findings.add(f"index/{name}: missing; messages are indexed again")
            _set_aside(index, min(at, len(index.files)), "does not agree with comet/position.json", findings)
            return _end_of_last_record(index, log, findings)
        if file.count != count or not file.slots_agree():
            file.truncate_entries(count, end_timestamp)
    for file in index.files[last + 1 :]:
        file.remove()  # created after that position: its messages are indexed again
    del index.files[last + 1 :]
    return position.offset


def _set_aside(index: IndexService, start: int, why: str, findings: Findings) -> None:
    for file in index.files[start:]:
        file.close()
        findings.set_aside(file.path, f"{why}; messages are indexed again")
    del index.files[start:]


def _end_of_last_record(index: IndexService, log: CommitLog, findings: Findings) -> int:
    """Return the end of the last record in the index files."""
    filled = [file for file in index.files if file.count > 1]
    if not filled:
        if log.segments and not index.files and log.segments[0].view[:8] != bytes(8):
            findings.add("index: no usable file; the entire log is indexed again")
        return log.min_offset
    offsets: list[int] = np.unique(filled[-1].offsets())[::-1].tolist()
    for offset in offsets:
        record = record_at(log, offset)
        if record is not None:  # the end of a damaged file is unknown
            return offset + record.size
    return log.min_offset
