"""Goes on in queues where an earlier read ended, or says why that cannot be done.

A topic that is deleted and made anew is another topic, which counts its messages from 0 again. So a read that is to be
continued keeps a mark of each queue beside its offset: a message that the queue held then (:class:`Mark`). If the queue
holds another message there now, it is another queue, and none of its messages was read.

Only a master proves that something is lost. A slave may be behind, or not know a topic yet; while it is asked because
no master is registered, queues that it knows less of keep their offsets and are waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cometmq.client.blocking.offsets import Bounds
from cometmq.errors import CometMQError
from cometmq.spark.errors import DataLossError
from cometmq.spark.records.queues import Mark, Offsets, Queue
from cometmq.spark.source.cluster import Cluster, Life
from cometmq.spark.source.options import SourceOptions

log = logging.getLogger("cometmq.spark")

Marks = Mapping[Queue, Mark]
NO_MARKS: Final[Marks] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Continued:
    """The offsets at which some queues go on."""

    offsets: Offsets
    changed: Mapping[Queue, Life]
    """Queues that are not those of their marks."""
    doubtful: frozenset[Queue]
    """Queues of which a slave alone says that something is lost: they keep their offsets, and must not be read."""


def continued(
    options: SourceOptions, cluster: Cluster, bounds: Mapping[Queue, Bounds], reached: Offsets, marks: Marks
) -> Continued:
    """Find where reading goes on in the queues of ``bounds``; those that are not in ``reached`` begin at their first.

    :raises DataLossError: messages are lost and ``failOnDataLoss`` is true.
    :raises UnreachableError: a broker does not answer.
    """
    known = {queue: mark for queue, mark in marks.items() if queue in bounds and queue in reached}
    changed = cluster.changed_lives(known, bounds)
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
            offsets[queue] = _in_other(options, queue, held, offset, changed[queue])
        else:
            offsets[queue] = within_bounds(options, queue, held, offset)
    return Continued(offsets, changed, frozenset(doubtful))


def _in_other(options: SourceOptions, queue: Queue, held: Bounds, offset: int, life: Life) -> int:
    if life is Life.ANEW:
        what, begin = f"{queue} was made anew since it was read up to offset {offset}", held.first
    else:
        what = f"{queue} holds other messages before offset {offset} than were read: its broker has lost the end of it"
        begin = min(offset, held.end)
    if options.fail_on_data_loss:
        raise DataLossError(what, next_step=f"option failOnDataLoss=false goes on at {begin}")
    log.warning("%s; going on at %d", what, begin)
    return begin


def begun_anew(
    options: SourceOptions, cluster: Cluster, bounds: Mapping[Queue, Bounds], reached: Offsets, marks: Marks
) -> Offsets:
    """Find where reading begins in those queues that were made anew.

    :raises DataLossError: there are such, and ``failOnDataLoss`` is true.
    :raises UnreachableError: a broker does not answer.
    """
    changed = cluster.changed_lives({queue: marks[queue] for queue in bounds}, bounds)
    return {
        queue: _in_other(options, queue, bounds[queue], reached[queue], life)
        for queue, life in changed.items()
        if life is Life.ANEW and cluster.has_master(queue)
    }


def within_bounds(options: SourceOptions, queue: Queue, held: Bounds, offset: int) -> int:
    """Return ``offset`` if the queue holds it; else fail, or warn and return the nearest that it holds.

    :raises DataLossError: it does not, and ``failOnDataLoss`` is true.
    """
    if held.first <= offset <= held.end:
        return offset
    nearest = held.first if offset < held.first else held.end
    what = f"{queue} holds offsets {held.first} to {held.end}, not {offset}"
    if options.fail_on_data_loss:
        raise DataLossError(what, next_step=f"option failOnDataLoss=false goes on at {nearest}")
    log.warning("%s; going on at %d", what, nearest)
    return nearest


def lost_with(options: SourceOptions, cluster: Cluster, queues: Iterable[Queue], marks: Marks) -> frozenset[Queue]:
    """Return those of some queues that are not the ones of their marks: what was planned there is lost.

    :raises DataLossError: there are such, and ``failOnDataLoss`` is true.
    :raises UnreachableError: a broker does not answer.
    """
    lost = frozenset(changed_queues(cluster, {queue: marks[queue] for queue in queues if queue in marks}))
    if lost:
        what = f"{min(lost)} was made anew, or lost its end, before a planned batch was read"
        if options.fail_on_data_loss:
            raise DataLossError(what, next_step="option failOnDataLoss=false goes on without these messages")
        log.warning("%s; going on without these messages", what)
    return lost


def changed_queues(cluster: Cluster, marks: Marks) -> dict[Queue, Life]:
    """Return those of some queues that are not the ones of their marks, by the word of masters that answer.

    :raises UnreachableError: no nameserver answers.
    """
    bounds = cluster.bounds([queue for queue in cluster.queues() if queue in marks], on_silent=_warn)
    changed = cluster.changed_lives({queue: marks[queue] for queue in bounds}, bounds)
    return {queue: life for queue, life in changed.items() if cluster.has_master(queue)}


def changed_meanwhile(cluster: Cluster, marks: Marks) -> list[Queue]:
    """Return those of some queues that were made anew since their marks were taken.

    It is one request for each queue, and more only where the message of a mark is gone.

    :raises UnreachableError: a broker does not answer.
    """
    now = cluster.marks({queue: mark.offset for queue, mark in marks.items()})
    changed = [queue for queue, mark in now.items() if mark != marks[queue]]
    gone = {queue: mark for queue, mark in marks.items() if queue not in now and cluster.has_master(queue)}
    lives = cluster.changed_lives(gone, cluster.bounds(gone)) if gone else {}
    return changed + [queue for queue, life in lives.items() if life is Life.ANEW]


def _warn(error: CometMQError) -> None:
    log.warning("%s", error)


def marks_before(cluster: Cluster, offsets: Offsets) -> dict[Queue, Mark]:
    """Return the marks of the messages before some offsets, where they are still there.

    :raises UnreachableError: a broker does not answer.
    """
    return cluster.marks({queue: offset - 1 for queue, offset in offsets.items() if offset > 0})
