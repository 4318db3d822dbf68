"""Offsets asked of brokers without an event loop: bounds, sizes of records, consumer groups, offsets by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from cometmq.client.blocking.cluster import BlockingCluster, ClusterOptions, Queue
from cometmq.client.blocking.connections import borrowed
from cometmq.client.by_time import LOOKED, first_at, pull_header, search_header
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.message.record import decode_record
from cometmq.remoting.admin_bodies import QueryConsumeQueueResponseBody
from cometmq.remoting.admin_headers import QueryConsumeQueueRequestHeader
from cometmq.remoting.bodies import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    SubscriptionData,
    decode_body,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    Header,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

_SAMPLE: Final = 32
"""Records of a queue whose mean size is taken for that of all its records."""
_MARKS_AT_ONCE: Final = 32
"""Messages that are asked of one broker together: 128 MiB if they are as large as they may be."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets that a queue holds: ``first <= offset < end``."""

    first: int
    end: int


class Mark(NamedTuple):
    """A message of a queue, by which the life of the queue is known.

    A topic that is deleted and made anew counts its messages from 0 again. No two messages of a broker have the same
    place in its log and the same store time, so the message at this offset is another one then.
    """

    offset: int
    physical_offset: int
    stored_ms: int


class Life(Enum):
    """The queue of a mark, compared with what the queue holds now."""

    ANEW = auto()
    """It was deleted and made anew: its first message is newer than the one of the mark."""
    CUT = auto()
    """It has older messages, but not the one of the mark: its end was lost, by a backup or a slave that took over."""


class OffsetClient(BlockingCluster):
    """The brokers behind some nameservers, asked for offsets."""

    def __init__(self, options: ClusterOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(options, clock=clock)
        self._introduced: set[tuple[str, str]] = set()
        """Groups and the brokers that know them."""

    def bounds(
        self, queues: Iterable[Queue], *, on_silent: Callable[[CometMQError], None] | None = None
    ) -> dict[Queue, Bounds]:
        """Ask the brokers for the bounds of queues, all requests of a broker at once.

        :param on_silent: called for a broker that does not answer at once, whose queues are left out; without it such
            a broker is asked again until ``patience_s`` is over.
        :raises unreachable: a broker does not answer.
        """
        found: dict[Queue, Bounds] = {}
        for members in _by_broker(queues):
            try:
                found |= self._bounds_of(members, self._cluster_options.patience_s if on_silent is None else 0.0)
            except self.unreachable as error:
                if on_silent is None:
                    raise
                on_silent(error)
        return found

    def _bounds_of(self, members: Sequence[Queue], patience_s: float) -> dict[Queue, Bounds]:
        requests: list[tuple[int, Header]] = []
        for queue in members:
            requests.append((RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(queue.topic, queue.queue_id)))
            requests.append((RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(queue.topic, queue.queue_id)))
        answers = [
            self._success(answer).header(GetMaxOffsetResponseHeader).offset
            for answer in self.ask_broker(members[0], requests, patience_s)
        ]
        return {
            queue: Bounds(min(first, end), end)
            for queue, first, end in zip(members, answers[::2], answers[1::2], strict=True)
        }

    def record_sizes(self, places: Sequence[tuple[Queue, int, int]]) -> list[float | None]:
        """Return the mean size in bytes of some stored records at each place: queue, offset, number of records.

        ``None`` means that nothing is stored there, or that the broker does not know the request.

        :raises unreachable: a broker does not answer.
        """
        found: list[float | None] = [None] * len(places)
        by_broker: dict[str, list[int]] = {}
        for at, (queue, _, _) in enumerate(places):
            by_broker.setdefault(queue.broker, []).append(at)
        for members in by_broker.values():
            requests: list[tuple[int, Header]] = [
                (
                    RequestCode.QUERY_CONSUME_QUEUE,
                    QueryConsumeQueueRequestHeader(queue.topic, queue.queue_id, at, count),
                )
                for queue, at, count in (places[member] for member in members)
            ]
            answers = self.ask_broker(places[members[0]][0], requests, self._cluster_options.patience_s)
            for member, answer in zip(members, answers, strict=True):
                if answer.code == ResponseCode.SUCCESS and answer.body:
                    units = decode_body(QueryConsumeQueueResponseBody, answer.body).queue_data
                    if units:
                        found[member] = max(sum(unit.physic_size for unit in units) / len(units), 1.0)
        return found

    def mean_sizes(self, start: Mapping[Queue, int], bounds: Mapping[Queue, Bounds]) -> dict[Queue, float]:
        """Return the mean size of a stored record, in bytes, of each queue that holds any from ``start`` on."""
        places = [
            (queue, start.get(queue, held.first), _SAMPLE)
            for queue, held in bounds.items()
            if start.get(queue, held.first) < held.end
        ]
        means = zip(places, self.record_sizes(places), strict=True)
        return {queue: mean for (queue, _, _), mean in means if mean is not None}

    # Lives ----------------------------------------------------------------------------------------

    def marks(self, places: Mapping[Queue, int]) -> dict[Queue, Mark]:
        """Return the mark of the message at an offset of each queue; queues that have none there are left out.

        :raises unreachable: a broker does not answer.
        """
        found = {}
        for members in _by_broker(places):
            for first in range(0, len(members), _MARKS_AT_ONCE):
                some = members[first : first + _MARKS_AT_ONCE]
                requests: list[tuple[int, Header]] = [
                    (RequestCode.PULL_MESSAGE, pull_header(queue, places[queue], 1, self._cluster_options.group))
                    for queue in some
                ]
                answers = self.ask_broker(some[0], requests, self._cluster_options.patience_s)
                for queue, answer in zip(some, answers, strict=True):
                    if answer.code != ResponseCode.SUCCESS:
                        continue
                    record = decode_record(answer.body, check_crc=False)
                    if record.queue_offset <= places[queue]:  # else that message is gone, and this is a later one
                        found[queue] = Mark(places[queue], record.physical_offset, record.store_timestamp)
        return found

    def changed_lives(self, marks: Mapping[Queue, Mark], bounds: Mapping[Queue, Bounds]) -> dict[Queue, Life]:
        """Return those of the queues whose mark is not the message that they hold, or held, at its offset.

        A message that retention deleted proves nothing.

        :raises unreachable: a broker does not answer.
        """
        held = {queue: mark for queue, mark in marks.items() if bounds[queue].first <= mark.offset < bounds[queue].end}
        there = self.marks({queue: mark.offset for queue, mark in held.items()})
        other = [queue for queue, mark in there.items() if mark != marks[queue]]
        other += [queue for queue, mark in marks.items() if bounds[queue].first < bounds[queue].end <= mark.offset]
        first = self.marks({queue: bounds[queue].first for queue in other})
        return {queue: Life.ANEW if _is_newer(first[queue], marks[queue]) else Life.CUT for queue in first}

    # Groups ---------------------------------------------------------------------------------------

    def committed_offsets(self, queues: Iterable[Queue], group: str) -> dict[Queue, int]:
        """Return the offset that a group has committed in each queue; queues without one are left out.

        :raises unreachable: a broker is not registered, or does not answer.
        """
        found: dict[Queue, int] = {}
        for members in _by_broker(queues):
            requests: list[tuple[int, Header]] = [
                (
                    RequestCode.QUERY_CONSUMER_OFFSET,
                    QueryConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, set_zero_if_not_found=False),
                )
                for queue in members
            ]
            for queue, answer in zip(members, self.ask_broker(members[0], requests), strict=True):
                if answer.code != ResponseCode.QUERY_NOT_FOUND:
                    found[queue] = self._success(answer).header(QueryConsumerOffsetResponseHeader).offset
        return found

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int], *, alone: bool = False) -> None:
        """Write offsets into a consumer group; the group is made by a heartbeat where the broker does not know it.

        :param alone: refuse where a consumer is in the group, since its offsets would be overwritten.
        :raises unreachable: a broker does not answer.
        :raises refused: a consumer is in the group.
        """
        for members in _by_broker(sorted(offsets)):
            if (group, members[0].broker) not in self._introduced:
                if not self._has_consumers(group, members[0]):
                    self._introduce(group, members)
                elif alone:
                    raise self.refused(
                        f"it has consumers at {members[0].broker}, whose offsets would be overwritten",
                        next_step="name a group in which nobody consumes",
                    )
            updates = [
                (
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    UpdateConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, offsets[queue]),
                )
                for queue in members
            ]
            # The first one alone: it makes the group's table, which Apache's threads would make more than once.
            for part in (updates[:1], updates[1:]):
                for answer in self.ask_broker(members[0], part):
                    self._success(answer)

    def _has_consumers(self, group: str, queue: Queue) -> bool:
        """Tell whether the broker of a queue has consumers of the group; then it knows group and subscriptions."""
        request = (RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader(group))
        (answer,) = self.ask_broker(queue, [request])
        return answer.code == ResponseCode.SUCCESS and bool(decode_body(ConsumerIdList, answer.body).consumer_id_list)

    def _introduce(self, group: str, members: Sequence[Queue]) -> None:
        """Let a broker make the group and its retry topic, as a group's first consumer does; then leave the group."""
        client_id = f"cometmq-spark-{group}"
        subscriptions = [SubscriptionData(topic=topic, sub_string="*") for topic in {queue.topic for queue in members}]
        body = encode_body(
            HeartbeatData(
                client_id=client_id,
                consumer_data_set=[
                    ConsumerData(
                        group_name=group,
                        consume_type="CONSUME_ACTIVELY",
                        message_model="CLUSTERING",
                        consume_from_where="CONSUME_FROM_LAST_OFFSET",
                        subscription_data_set=subscriptions,
                    )
                ],
            )
        )
        options = self._cluster_options
        with borrowed(self.asked_at(members[0]), options.security(), options.timeout_s) as connection:
            self._success(connection.invoke(RequestCode.HEART_BEAT, body=body))
            leave = UnregisterClientRequestHeader(client_id=client_id, consumer_group=group)
            self._success(connection.invoke(RequestCode.UNREGISTER_CLIENT, leave))
        self._introduced.add((group, members[0].broker))

    # Times ----------------------------------------------------------------------------------------

    def offsets_at(self, bounds: Mapping[Queue, Bounds], times: int | Mapping[str, int]) -> dict[Queue, int]:
        """Find in each queue the first offset stored at or after a time; its end if there is none.

        :param times: milliseconds since 1970, for all topics or by topic; topics that are not named are left out.
        """
        found = {}
        for queue, held in bounds.items():
            timestamp_ms = times if isinstance(times, int) else times.get(queue.topic)
            if timestamp_ms is not None:
                found[queue] = self._first_at(queue, held, timestamp_ms)
        return found

    def _first_at(self, queue: Queue, held: Bounds, timestamp_ms: int) -> int:
        if held.first == held.end:
            return held.end
        wish = search_header(queue, timestamp_ms)
        (hint,) = self.ask_broker(queue, [(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, wish)])
        group = self._cluster_options.group
        search = first_at(queue, group, held.first, held.end, self._success(hint), timestamp_ms)
        try:
            look = next(search)
            while True:
                (answer,) = self.ask_broker(queue, [(RequestCode.PULL_MESSAGE, look)])
                look = search.send(answer if answer.code in LOOKED else self._success(answer))
        except StopIteration as found:
            return int(found.value)


def _is_newer(mark: Mark, than: Mark) -> bool:
    return mark.stored_ms > than.stored_ms or mark.physical_offset > than.physical_offset


def _by_broker(queues: Iterable[Queue]) -> Iterable[list[Queue]]:
    found: dict[str, list[Queue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, []).append(queue)
    return found.values()
