"""Compares what was acknowledged, stored, consumed, archived and replayed, queue by queue and event by event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cometmq.cli.demo.lake import Lake
from cometmq.cli.demo.ledger import Rows
from cometmq.cli.demo.orders import STEPS

_OFFSET_BITS = 40
"""A queue offset of the demo has fewer bits, so queue and offset fit one number."""


@dataclass(frozen=True)
class QueueCounts:
    """The counts of one queue."""

    queue: int
    acknowledged: int
    """Events whose storing was confirmed to a producer, each once."""
    copies: int
    """Records stored although an earlier attempt was stored too: its acknowledgement got lost."""
    stored: int
    """Records in the queue, told by the broker."""
    consumed: int
    """Records that the group received, each once."""
    archived: int
    """Records in the archive, each once."""
    replayed: int
    """Records that the replay has sent from the archive to the queue of the same number of another topic."""
    copied: int
    """Records in that queue, told by the broker."""

    @property
    def agrees(self) -> bool:
        """Whether the counts tell the same."""
        parties = {self.stored, self.consumed, self.archived, self.replayed, self.copied}
        return parties == {self.acknowledged + self.copies}


@dataclass(frozen=True)
class Comparison:
    """The verdict of the demo."""

    queues: tuple[QueueCounts, ...]
    redelivered: int
    """Deliveries of a record that the group had received before: those not yet committed at the crash."""
    differences: tuple[str, ...]
    """What does not agree, a sentence each; empty when all is well."""

    @property
    def agrees(self) -> bool:
        """Whether nothing is lost, made up or out of order."""
        return not self.differences

    def total(self, name: str) -> int:
        """Sum of one count over the queues."""
        return sum(getattr(counts, name) for counts in self.queues)


def compare(
    expected_events: int,
    acked: Rows,
    stored: Mapping[int, int],
    consumed: Rows,
    archived: Rows,
    lake: Lake,
    copied: Mapping[int, int],
) -> Comparison:
    """Compare the ledgers with what Spark found.

    `stored` and `copied` are the numbers of records by queue id of the topic and of the one that the archive was
    replayed to, as the broker tells them.
    """
    received, received_first = np.unique(_places(consumed), return_index=True)
    kept, kept_first = np.unique(_places(archived), return_index=True)
    confirmed = np.unique(acked["event"])
    differences: list[str] = []

    def note(wrong: int, sentence: str) -> None:
        if wrong:
            differences.append(f"{wrong:,} {sentence}")

    note(abs(expected_events - len(confirmed)), "events of the plan were not acknowledged")
    note(len(archived) - len(kept), "records are in the archive more than once")
    note(len(np.setdiff1d(_places(acked), received)), "acknowledged records were not consumed")
    note(len(np.setdiff1d(_places(acked), kept)), "acknowledged records are not in the archive")
    note(len(np.setxor1d(received, kept)), "records were only consumed or only archived")
    events_archived = archived["event"][kept_first]
    events_consumed = consumed["event"][received_first]
    note(len(np.setxor1d(events_archived, confirmed)), "events are in the archive, but not acknowledged, or not there")
    if len(received) == len(kept) and not differences:
        note(int((events_archived != events_consumed).sum()), "records have another event in the archive")
    note(_out_of_order(archived[kept_first]), "changes of orders stand before an earlier change")
    note(len(lake.unlike), "queues of the replay hold other messages than the archive")
    queues = tuple(
        QueueCounts(
            queue,
            *_acknowledged(acked, archived[kept_first], queue),
            stored=stored.get(queue, 0),
            consumed=int(((received >> _OFFSET_BITS) == queue).sum()),
            archived=int((archived["queue"][kept_first] == queue).sum()),
            replayed=lake.replayed.get(queue, 0),
            copied=copied.get(queue, 0),
        )
        for queue in sorted({*stored, *copied, *acked["queue"].tolist(), *archived["queue"].tolist()})
    )
    note(sum(not counts.agrees for counts in queues), "queues have counts that differ")
    for audited, counted in ((lake.of_archive, stored), (lake.of_copy, copied)):
        note(_unlike(audited.stored, counted), "queues have another count in their audit")
        differences += audited.disagreements
    return Comparison(queues, len(consumed) - len(received), tuple(differences))


def _acknowledged(acked: Rows, archived: Rows, queue: int) -> tuple[int, int]:
    """Events of a queue that were acknowledged, and records there that an earlier attempt left."""
    here = archived["event"][archived["queue"] == queue]
    return len(np.unique(acked["event"][acked["queue"] == queue])), len(here) - len(np.unique(here))


def _unlike(counts: Mapping[int, int], others: Mapping[int, int]) -> int:
    return sum(counts.get(queue, 0) != others.get(queue, 0) for queue in counts.keys() | others.keys())


def _places(rows: Rows) -> NDArray[np.int64]:
    """Queue and offset as one number."""
    places: NDArray[np.int64] = (rows["queue"].astype(np.int64) << _OFFSET_BITS) | rows["offset"]
    return places


def _out_of_order(rows: Rows) -> int:
    """Count events whose first record stands before that of an earlier change of the same order."""
    ordered = rows[np.argsort(_places(rows), kind="stable")]
    events, first = np.unique(ordered["event"], return_index=True)
    same_order = events[1:] // STEPS == events[:-1] // STEPS
    return int((same_order & (first[1:] < first[:-1])).sum())
