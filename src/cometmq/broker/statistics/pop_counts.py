"""POP log counters for metrics (``PopMetricsManager``), which are updated once for each log record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from typing import Final

from cometmq.metrics.family import Histogram

SCAN_BOUNDS_MS: Final = (1, 10, 100, 1_000, 2_000, 3_000)
CHECKPOINT: Final = "CK"
ACK: Final = "ACK"
"""Entry kinds in the metrics: acknowledgements and pops (``PopReviveMessageType``)."""
STORED: Final = "PUT_OK"
REFUSED: Final = "SERVICE_NOT_AVAILABLE"
"""Store results under Apache's names (``PutMessageStatus``)."""

Ends = tuple[str, str, str]
"""A group, a topic, and :data:`CHECKPOINT` or :data:`ACK`."""


class PopCounts:
    """Counts POP log entries and retry copies, and measures the checks for due messages."""

    def __init__(self) -> None:
        self.put: Final[Counter[tuple[Ends, str]]] = Counter()
        """Number of entries by kind and store status."""
        self.copies: Final[Counter[tuple[str, str, str]]] = Counter()
        """Number of retry copies by group, topic and store status."""
        self.scans: Final = Histogram(SCAN_BOUNDS_MS)

    def logged(self, entries: Iterable[Ends], copies: Iterable[tuple[str, str]], *, stored: bool) -> None:
        """Count the entries in a record.

        :param copies: group and topic of the retry copies in the record.
        """
        status = STORED if stored else REFUSED
        for entry in entries:
            self.put[entry, status] += 1
        for group, topic in copies:
            self.copies[group, topic, status] += 1

    def keep(self, topics: Set[str], groups: Set[str]) -> None:
        """Remove topics and groups that no longer exist."""
        for entry in [key for key in self.put if key[0][0] not in groups or key[0][1] not in topics]:
            del self.put[entry]
        for copy in [key for key in self.copies if key[0] not in groups or key[1] not in topics]:
            del self.copies[copy]
