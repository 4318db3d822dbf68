"""The epochs of a log, by which two members find the end of what their logs have in common.

Each master first appends a marker record with its epoch. An epoch has one master, which serves it in one process only,
and a slave copies the log from its begin to its end. So the bytes between an epoch's marker and the next marker, or the
end of the shorter log, are the same in each log that has the marker at the same log offset (as Apache's
``EpochFileCache`` and KIP-101 assume).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from cometmq.broker.limits import MAX_FAILOVER_EPOCHS
from cometmq.errors import CometMQError

NEW_STORE_STEP: Final = (
    "save the messages that you need, then start with an empty store, which is filled from the master"
)


class HistoryError(CometMQError):
    """A list of epochs is not valid."""


@dataclass(frozen=True, slots=True)
class History:
    """A log's epochs with the log offsets of their markers, in ascending order, and the end of the log.

    A marker may be before ``begin``: retention deletes it with the messages around it. Bytes before the first marker
    belong to epoch 0: they were stored before the broker became a member of a set.
    """

    epochs: tuple[tuple[int, int], ...]
    end: int
    begin: int = 0
    """Log offset of the first byte that is still there."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last marker, or 0."""
        return self.epochs[-1][0] if self.epochs else 0

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the last marker before a log offset, or 0."""
        return max((epoch for epoch, start in self.epochs if start < offset), default=0)

    def checked(self) -> History:
        """Return the history, which came from another member.

        :raises HistoryError: it cannot be that of a log.
        """
        numbers = [epoch for epoch, _ in self.epochs]
        starts = [start for _, start in self.epochs]
        is_valid = (
            len(numbers) <= MAX_FAILOVER_EPOCHS
            and _rises([0, *numbers])
            and _rises([-1, *starts])
            and 0 <= self.begin <= self.end
            and (not starts or starts[-1] < self.end)
        )
        if not is_valid:
            raise HistoryError(
                "the master sent an invalid list of epochs", next_step="run the same version of CometMQ on all members"
            )
        return self


def _rises(numbers: Iterable[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def common_end(mine: History, masters: History) -> int:
    """Return the log offset up to which this log and the master's are the same.

    :raises HistoryError: the master no longer has the bytes at which the logs part, or those after this log.
    """
    if mine.end == mine.begin and not mine.epochs:  # an empty log
        return masters.begin if masters.begin > mine.end else mine.end
    end = min(_start_after(mine, 0), _start_after(masters, 0))
    known = frozenset(masters.epochs)
    for epoch, start in reversed(mine.epochs):
        if (epoch, start) in known:
            end = min(_start_after(mine, epoch), _start_after(masters, epoch))
            break
    if end < masters.begin:
        raise HistoryError(
            f"the master's log begins at {masters.begin}, after the end of what both logs have, {end}",
            next_step=NEW_STORE_STEP,
        )
    return end


def _start_after(history: History, epoch: int) -> int:
    """Return the log offset of the first marker after ``epoch``, or the log's end."""
    return next((start for number, start in history.epochs if number > epoch), history.end)
