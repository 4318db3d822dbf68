"""Resolves the options that set where a read starts and ends into offsets, and saves a stream's start offsets.

``latest`` depends on when it is resolved. Spark writes the offsets of a stream's first batch to its checkpoint, after
which they are fixed. A driver that is killed before that and restarted later would skip the messages in between.
Offsets that are resolved once and stored in a file are the same for every start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cometmq.client.blocking.offsets import Bounds
from cometmq.paths import local_path
from cometmq.spark.errors import OptionError, SparkSourceError
from cometmq.spark.options import demand_present
from cometmq.spark.records.queues import (
    Marks,
    Offsets,
    Queue,
    marks_from_json,
    marks_to_json,
    offsets_from_json,
    offsets_to_json,
)
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.lives import start_in_recreated_queues, within_bounds
from cometmq.spark.source.options import (
    EARLIEST,
    LATEST,
    SourceOptions,
    Start,
    Times,
    named_paths,
    offset_named,
    parse_options,
)
from cometmq.storage import ObjectNotFoundError, Storage, open_storage

_NAMES: Final = ("startingOffsets", "startingTimestamp")


def resolve_start(options: SourceOptions, cluster: Cluster, bounds: dict[Queue, Bounds], default: Start) -> Offsets:
    """Return the offset at which reading begins in each queue.

    :raises DataLossError: a requested offset does not exist, or no longer exists, and ``failOnDataLoss`` is true.
    """
    if options.starting_timestamp is not None:
        first = {queue: held.first for queue, held in bounds.items()}
        return first | cluster.offsets_at(bounds, _times("startingTimestamp", options.starting_timestamp, bounds))
    start = default if options.starting_offsets is None else options.starting_offsets
    _demand_known("startingOffsets", start, bounds)
    return _resolved(options, cluster, bounds, start, EARLIEST)


def resolve_end(options: SourceOptions, cluster: Cluster, bounds: dict[Queue, Bounds]) -> Offsets:
    """Return the offset at which reading ends in each queue.

    :raises DataLossError: see :func:`resolve_start`.
    """
    if options.ending_timestamp is not None:
        last = {queue: held.end for queue, held in bounds.items()}
        return last | cluster.offsets_at(bounds, _times("endingTimestamp", options.ending_timestamp, bounds))
    _demand_known("endingOffsets", options.ending_offsets, bounds)
    return _resolved(options, cluster, bounds, options.ending_offsets, LATEST)


def demand_forward(start: Offsets, end: Offsets) -> None:
    """Check that no queue ends before it begins.

    :raises OptionError: a queue ends before it begins.
    """
    for queue in sorted(start):
        if start[queue] > end[queue]:
            raise OptionError(
                f"the read of {queue} begins at offset {start[queue]} and ends earlier, at {end[queue]}",
                next_step="check whether start and end are swapped",
            )


def _times(name: str, times: Times, queues: Iterable[Queue]) -> Times:
    """Check that an option with times by topic contains only topics that are read."""
    if isinstance(times, dict) and (absent := sorted(set(times) - {queue.topic for queue in queues})):
        raise OptionError(f"contains topic {absent[0]}, which is not read", option=name)
    return times


def demand_topics(options: SourceOptions, queues: Iterable[Queue]) -> None:
    """Check that every named topic has readable queues, and that assigned queues exist.

    :raises OptionError: topics or queues are missing; the error lists them.
    """
    if options.assign is not None:
        queues = _demand_assigned(options)
    there = {queue.topic for queue in queues}
    names: set[str] = set() if there.issuperset(options.topics) else set(Cluster(options).topics())
    if closed := sorted(names.intersection(options.topics) - there):
        raise closed_topic(closed[0])
    demand_present(
        options.topics,
        there,
        f"no broker that is registered with {';'.join(options.namesrv_addr)} has topic",
        next_step="check the name, and that its broker is running",
        known=lambda: names,
    )


def closed_topic(topic: str) -> OptionError:
    """Return the error for a topic that may not be read."""
    return OptionError(
        f"topic {topic} is not readable", next_step=f"allow it: cometmq topic alter {topic} --permission rw"
    )


def _demand_assigned(options: SourceOptions) -> list[Queue]:
    """Check that the queues in ``assign`` exist. Return all queues in their topics."""
    queues = Cluster(replace(options, assign=None)).queues()
    there = {path for queue in queues for path in ((queue.topic,), (queue.topic, queue.queue_id), tuple(queue))}
    for path in _assigned_paths(options):
        if path not in there and path[:1] in there:
            raise OptionError(
                f"names {'/'.join(map(str, path))}, which no registered broker has",
                option="assign",
                next_step=f"cometmq topic describe {path[0]} shows brokers and queues",
            )
    return queues


def _assigned_paths(options: SourceOptions) -> Iterator[tuple[str | int, ...]]:
    for topic, below in (options.assign or {}).items():
        if isinstance(below, Mapping):
            yield from ((topic, broker, of) for broker, ids in below.items() for of in sorted(ids))
        else:
            yield from ((topic, of) for of in sorted(below))


def _demand_known(name: str, start: Start, queues: Iterable[Queue]) -> None:
    """Check that JSON offsets contain only existing queues."""
    if isinstance(start, str):
        return
    known = {queue[:depth] for queue in queues for depth in (1, 2, 3)}
    for path in named_paths(start):
        if path not in known:
            raise OptionError(
                f"names {'/'.join(map(str, path))}, which no registered broker has",
                option=name,
                next_step="use the levels topic, broker and queue; option assign limits the queues",
            )


def _resolved(
    options: SourceOptions, cluster: Cluster, bounds: dict[Queue, Bounds], start: Start, unnamed: str
) -> Offsets:
    found: Offsets = {}
    for queue, held in bounds.items():
        named = offset_named(start, queue)
        if named is None:
            named = unnamed
        if named == EARLIEST:
            found[queue] = held.first
        elif named == LATEST:
            found[queue] = held.end
        elif cluster.has_master(queue):
            found[queue] = within_bounds(options, queue, held, int(named))
        else:  # a slave's answer proves no loss: the tasks wait for messages that it does not have
            found[queue] = int(named)
    return found


def kept_starting_offsets(path: str | Path, options: Mapping[str, str]) -> str:
    """Return ``startingOffsets`` as JSON: the offsets stored in ``path`` or, if there are none, the offsets that
    ``options`` describe, which are then stored.

    This call resolves the offsets of new topics, or of all topics if the start options have changed.

    :param options: source options, by their documented names.
    :raises OptionError: an option is invalid, or a topic does not exist.
    :raises SparkSourceError: the file was not written by this function.
    :raises UnreachableError: nameservers or brokers do not answer.
    """
    path = local_path(path)
    return kept_starting_offsets_in(open_storage(path.parent), path.name, options)


def kept_starting_offsets_in(storage: Storage, key: str, options: Mapping[str, str]) -> str:
    """Return ``startingOffsets``, stored under a key of a storage; see :func:`kept_starting_offsets`."""
    parsed = parse_options(dict(options))
    cluster = Cluster(parsed)
    queues = cluster.queues()
    demand_topics(parsed, queues)
    asked = {name: options[name] for name in _NAMES if name in options}
    saved, marks = _saved(storage, key, asked)
    # Queues of an absent broker stay in the file; otherwise the stream would later begin at other offsets. Queues that
    # were added to a topic since then are not in the file, so they begin at their first message.
    topics, known = {queue.topic for queue in queues}, {queue.topic for queue in saved}
    begin = {queue: offset for queue, offset in saved.items() if queue.topic in topics}
    bounds = cluster.bounds([queue for queue in queues if queue in marks or queue.topic not in known])
    now = resolve_start(
        parsed, cluster, {queue: held for queue, held in bounds.items() if queue.topic not in known}, LATEST
    )
    now |= start_in_recreated_queues(
        parsed, cluster, {queue: held for queue, held in bounds.items() if queue in marks}, begin, marks
    )
    if now:
        begin |= now
        marks = {queue: mark for queue, mark in marks.items() if queue not in now} | cluster.marks_before(now)
        found = {"asked": asked, "offsets": offsets_to_json(saved | begin), "marks": marks_to_json(marks)}
        storage.put(key, json.dumps(found).encode())
    return json.dumps(offsets_to_json(begin))


def _saved(storage: Storage, key: str, asked: Mapping[str, str]) -> tuple[Offsets, Marks]:
    try:
        found: Any = json.loads(storage.read(key))
        if found["asked"] != asked:
            return {}, {}
        return offsets_from_json(found["offsets"]), marks_from_json(found.get("marks", {}))
    except ObjectNotFoundError:
        return {}, {}
    except (ValueError, KeyError, TypeError, OptionError) as error:
        raise SparkSourceError(
            f"{storage.describe(key)} does not contain a stream's starting offsets",
            next_step="use another file, or remove it to let the stream begin as its options specify",
        ) from error
