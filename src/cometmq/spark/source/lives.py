"""Determines where reading continues after an earlier read, or reports why it cannot continue.

A topic that was deleted and recreated is a different topic, which counts its messages from 0. So a read that can be
continued stores a mark with each queue's offset: a message that the queue contained
(:class:`~cometmq.spark.records.queues.Mark`). If the queue now contains a different message at the mark's offset, it is
a different queue, and none of its messages has been read.

Only a master can prove that messages are lost. A slave may be behind, or may not know a topic yet. While a slave
answers because no master is registered, the queues on which it is behind keep their offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cometmq.client.blocking.offsets import Bounds
from cometmq.spark.errors import DataLossError
from cometmq.spark.records.queues import Marks, Offsets, Queue
from cometmq.spark.source.cluster import Cluster, Life
from cometmq.spark.source.options import SourceOptions

log = logging.getLogger("cometmq.spark")


@dataclass(frozen=True, slots=True)
class Continued:
    """The offsets at which reading continues."""

    offsets: Offsets
    doubtful: frozenset[Queue]
    """Queues that are lost according to a slave. They keep their offsets and must not be read."""


def continue_reading(
    options: SourceOptions,
    cluster: Cluster,
    bounds: Mapping[Queue, Bounds],
    reached: Offsets,
    changed: Mapping[Queue, Life],
) -> Continued:
    """Return the offsets at which reading continues in the queues in ``bounds``. Queues that are not in ``reached`` are
    read from their start.

    :param changed: queues that were recreated after they were read.
    :raises DataLossError: messages are lost and ``failOnDataLoss`` is true.
    """
    offsets: Offsets = {}
    doubtful = set()
    for queue, held in bounds.items():
        offset = reached.get(queue, held.first)
        if held.first <= offset <= held.end and queue not in changed:
            offsets[queue] = offset
        elif not cluster.has_master(queue):
            doubtful.add(queue)
            offsets[queue] = offset
        elif queue in changed:
            offsets[queue] = _begin_in_changed_queue(options, queue, held, offset, changed[queue])
        else:
            offsets[queue] = within_bounds(options, queue, held, offset)
    return Continued(offsets, frozenset(doubtful))


def _begin_in_changed_queue(options: SourceOptions, queue: Queue, held: Bounds, offset: int, life: Life) -> int:
    if life is Life.ANEW:
        what, begin = f"{queue} has been recreated since it was read up to offset {offset}", held.first
    else:
        what = f"{queue} contains other messages before offset {offset} than were read: its broker lost its end"
        begin = min(offset, held.end)
    if options.fail_on_data_loss:
        raise DataLossError(what, next_step=f"set failOnDataLoss=false to continue at {begin}")
    log.warning("%s; continuing at %d", what, begin)
    return begin


def start_in_recreated_queues(
    options: SourceOptions, cluster: Cluster, bounds: Mapping[Queue, Bounds], reached: Offsets, marks: Marks
) -> Offsets:
    """Return the offsets at which reading begins in queues that were recreated.

    :raises DataLossError: a queue was recreated, and ``failOnDataLoss`` is true.
    :raises UnreachableError: a broker does not answer.
    """
    changed = cluster.changed_lives({queue: marks[queue] for queue in bounds}, bounds)
    return {
        queue: _begin_in_changed_queue(options, queue, bounds[queue], reached[queue], life)
        for queue, life in changed.items()
        if life is Life.ANEW and cluster.has_master(queue)
    }


def within_bounds(options: SourceOptions, queue: Queue, held: Bounds, offset: int) -> int:
    """Return ``offset`` if the queue contains it. Otherwise, fail, or warn and return the nearest offset in the queue.

    :raises DataLossError: the queue does not contain the offset, and ``failOnDataLoss`` is true.
    """
    if held.first <= offset <= held.end:
        return offset
    nearest = held.first if offset < held.first else held.end
    what = f"{queue} contains offsets {held.first} to {held.end}, not {offset}"
    if options.fail_on_data_loss:
        raise DataLossError(what, next_step=f"set failOnDataLoss=false to continue at {nearest}")
    log.warning("%s; continuing at %d", what, nearest)
    return nearest


def lost_queues(options: SourceOptions, cluster: Cluster, queues: Iterable[Queue], marks: Marks) -> frozenset[Queue]:
    """Return the queues that were recreated since their marks were taken. The messages planned for these queues are
    lost.

    :raises DataLossError: a queue was recreated, and ``failOnDataLoss`` is true.
    :raises UnreachableError: a broker does not answer.
    """
    lost = frozenset(cluster.changed_queues({queue: marks[queue] for queue in queues if queue in marks}))
    if lost:
        what = f"{min(lost)} was recreated, or lost its end, before a planned batch was read"
        if options.fail_on_data_loss:
            raise DataLossError(what, next_step="set failOnDataLoss=false to skip these messages")
        log.warning("%s; continuing without these messages", what)
    return lost
