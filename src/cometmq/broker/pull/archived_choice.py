"""Applies filters to archived messages."""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.broker.limits import ARCHIVE_FILTER_SECONDS
from cometmq.broker.pull.filters import MessageFilter, matches_filter
from cometmq.clock import SYSTEM_CLOCK


def choose_records(
    records: Iterable[memoryview], wanted: MessageFilter, most: int, most_bytes: int
) -> tuple[list[bytes | memoryview], memoryview | None]:
    """Choose the records that a filter accepts.

    :param most: maximum number of records, with at most ``most_bytes`` together; a single record may be larger.
    :returns: the chosen records, and the first one that was not decided or that does not fit; ``None`` if all were
        decided.
    """
    chosen: list[bytes | memoryview] = []
    size = 0
    until: float | None = None
    for record in records:
        if until is None:
            until = SYSTEM_CLOCK.monotonic() + ARCHIVE_FILTER_SECONDS
        elif SYSTEM_CLOCK.monotonic() >= until:  # a filter may be long, and a message may have many properties
            return chosen, record
        if not wanted.wants_all and not matches_filter(wanted, record):
            continue
        if len(chosen) >= most or (chosen and size + len(record) > most_bytes):
            return chosen, record
        chosen.append(record)
        size += len(record)
    return chosen, None
