"""The logs of all members are equal below the confirmed end, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.failover.checker.findings import Finding

from cometmq.message.record import iter_records

CONTEXT = 16


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
    data = b"".join(file.read_bytes() for file in files)
    return LogCopy(int(files[0].name), data.rstrip(b"\0"))


def values_of(log: LogCopy) -> dict[str, int]:
    """Return the number of copies of each body in a log."""
    found: dict[str, int] = {}
    for record in iter_records(log.data):
        value = record.body.decode(errors="replace")
        found[value] = found.get(value, 0) + 1
    return found


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
