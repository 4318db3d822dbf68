"""What the parties of an audit say of the queues of a topic: brokers, the log of an archive, groups. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cometmq.spark.archive_commit import QueueTotals
from cometmq.spark.audit_report import QueueAudit
from cometmq.spark.cluster import Bounds
from cometmq.spark.queues import Queue


@dataclass(frozen=True, slots=True)
class Parties:
    """What each of them says."""

    topic: str
    bounds: Mapping[Queue, Bounds]
    """What brokers held when the audit began …"""
    kept_from: Mapping[Queue, int]
    """… and the first offset of it that they did not delete while it was being read."""
    totals: Mapping[Queue, QueueTotals]
    """What the archive's log counts; empty without an archive."""
    consumed: Mapping[str, Mapping[Queue, int]]
    """Next offsets of each group."""

    @property
    def held(self) -> int:
        """Messages that brokers held when the audit began."""
        return sum(held.end - held.first for held in self.bounds.values())

    @property
    def archived(self) -> int:
        """Messages in the archive, by its log."""
        return sum(of.rows for of in self.totals.values())

    def without_deleted(self, now: Mapping[Queue, Bounds]) -> Parties:
        """The same, where brokers hold only ``now`` of it any more."""
        kept_from = {
            queue: min(max(held.first, self.bounds[queue].first), self.bounds[queue].end) for queue, held in now.items()
        }
        return replace(self, kept_from={**self.kept_from, **kept_from})

    def deleted(self) -> list[int]:
        """How many messages of each queue brokers deleted meanwhile."""
        return [self.kept_from[queue] - held.first for queue, held in self.bounds.items()]

    def limits(self) -> list[tuple[str, int, int, int, int, int, int]]:
        """For each queue what :func:`~.audit_frames.minutes_of` compares."""
        limits = []
        for queue, held in self.bounds.items():
            of = self.totals.get(queue)
            first, end = (0, 0) if of is None else (max(self.kept_from[queue], of.first), min(held.end, of.next))
            expired = (0, 0) if of is None else (of.expired_to, of.expired_before_ms)
            reached = [offsets.get(queue, 0) for offsets in self.consumed.values()]
            limits.append((queue.broker, queue.queue_id, first, max(first, end), *expired, min(reached, default=0)))
        return limits

    def queues(self, counted: Mapping[Queue, Any]) -> tuple[QueueAudit, ...]:
        """Every queue, for the report.

        :param counted: as of :func:`~.audit_sums.counted`.
        """
        found = []
        for queue in sorted({*self.bounds, *self.totals}):
            held, of, row = self.bounds.get(queue), self.totals.get(queue), counted.get(queue)
            found.append(
                QueueAudit(
                    broker=queue.broker,
                    queue_id=queue.queue_id,
                    first=None if held is None else held.first,
                    end=None if held is None else held.end,
                    stored=None if held is None else (row["stored"] if row else 0),
                    archived=None if of is None else (row["archived"] if row else 0),
                    archived_from=None if of is None else of.first,
                    archived_to=None if of is None else of.next,
                    consumed={g: offsets[queue] for g, offsets in self.consumed.items() if queue in offsets},
                )
            )
        return tuple(found)
