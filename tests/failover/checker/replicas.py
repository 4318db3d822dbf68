"""The logs of all members are equal below the confirmed end, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.failover.checker.findings import Finding

from cometmq.message.names import EPOCHS_TOPIC
from cometmq.message.record import BLANK_MAGIC, StoredRecord, decode_record

CONTEXT = 16
_HEAD = struct.Struct(">ii")
"""The size of a record, or of the blank at the end of a log file, and its magic."""


@dataclass(frozen=True, slots=True)
class LogCopy:
    """A member's log: its bytes from offset ``begin`` on."""

    begin: int
    data: bytes

    @property
    def end(self) -> int:
        """The log offset after its last byte."""
        return self.begin + len(self.data)


def read_log(store: Path) -> LogCopy:
    """Return the log of a store that nobody writes, to the end of its last record."""
    files = sorted((store / "commitlog").iterdir())
    if not files:
        return LogCopy(0, b"")
    log = LogCopy(int(files[0].name), b"".join(file.read_bytes() for file in files))
    end = log.begin
    for offset, record in records_of(log):
        end = offset + record.size
    return LogCopy(log.begin, log.data[: end - log.begin])


def records_of(log: LogCopy) -> Iterator[tuple[int, StoredRecord]]:
    """Yield all records of a log with their offsets, up to bytes that were never written.

    :raises RecordError: a record is damaged.
    """
    at = 0
    while any(head := log.data[at : at + _HEAD.size]):
        size, magic = _HEAD.unpack(head)
        if magic != BLANK_MAGIC:
            record = decode_record(log.data, at)
            assert record.size == size
            yield log.begin + at, record
        at += size


def epochs_of(log: LogCopy) -> list[tuple[int, int]]:
    """Return the epochs of a log with the offsets of their markers."""
    return [(int(one.body), offset) for offset, one in records_of(log) if one.topic == EPOCHS_TOPIC]


def check_replicas(logs: Mapping[str, LogCopy], confirmed: int) -> list[Finding]:
    """Return where logs differ below the confirmed end, or end before it."""
    names = sorted(logs)
    findings = [
        Finding("short replica", f"the log of {name} ends at {logs[name].end}; {confirmed} was confirmed")
        for name in names
        if logs[name].end < confirmed
    ]
    first, *others = names
    for name in others:
        a, b = logs[first], logs[name]
        begin, end = max(a.begin, b.begin), min(a.end, b.end, confirmed)
        mine, its = a.data[begin - a.begin : end - a.begin], b.data[begin - b.begin : end - b.begin]
        if mine != its:
            at = next(i for i, (x, y) in enumerate(zip(mine, its, strict=False)) if x != y)
            findings.append(
                Finding(
                    "different replicas",
                    f"the logs of {first} and {name} differ at {begin + at}, below the confirmed end {confirmed}: "
                    f"{mine[at : at + CONTEXT].hex()} and {its[at : at + CONTEXT].hex()}",
                )
            )
    return findings
