"""Queries offsets without an event loop: queue bounds, record sizes, group offsets, and offsets by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from cometmq.client.blocking.cluster import BlockingCluster, ClusterOptions, by_broker
from cometmq.client.blocking.connections import borrowed
from cometmq.client.errors import refusal
from cometmq.client.machines import run
from cometmq.client.queries import Query, commit, committed_offset, end_offset, first_at, first_offset
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.message.queues import Queue
from cometmq.remoting.bodies import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    SubscriptionData,
    decode_body,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of offsets in a queue: ``first <= offset < end``."""

    first: int
    end: int


class OffsetClient(BlockingCluster):
    """A client that queries a cluster's brokers for offsets."""

    def __init__(self, options: ClusterOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(options, clock=clock)
        self._introduced: set[tuple[str, str]] = set()
        """Pairs of a group and a broker that knows the group."""

    def bounds(
        self, queues: Iterable[Queue], *, on_silent: Callable[[CometMQError], None] | None = None
    ) -> dict[Queue, Bounds]:
        """Return the bounds of queues, with the requests pipelined for each broker.

        :param on_silent: called for a broker that does not answer the first try, whose queues are then omitted; if it
            is not given, such a broker is asked again until ``patience_s`` has passed.
        """
        found: dict[Queue, Bounds] = {}
        for members in by_broker(queues):
            try:
                found |= self._bounds_of(members, self._cluster_options.patience_s if on_silent is None else 0.0)
            except self.unreachable as error:
                if on_silent is None:
                    raise
                on_silent(error)
        return found

    def _bounds_of(self, members: Sequence[Queue], patience_s: float) -> dict[Queue, Bounds]:
        asked = [(queue, ask(queue)) for queue in members for ask in (first_offset, end_offset)]
        offsets = self.ask(asked, patience_s)
        return {
            queue: Bounds(min(first, end), end)
            for queue, first, end in zip(members, offsets[::2], offsets[1::2], strict=True)
        }

    # Groups ---------------------------------------------------------------------------------------

    def committed_offsets(self, queues: Iterable[Queue], group: str) -> dict[Queue, int]:
        """Return a group's committed offset in each queue, omitting queues that have none."""
        asked = [(queue, committed_offset(group, queue, or_zero=False)) for queue in queues]
        offsets = zip(asked, self.ask(asked), strict=True)
        return {queue: offset for (queue, _), offset in offsets if offset is not None}

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int], *, alone: bool = False) -> None:
        """Commit offsets for a consumer group, creating the group on brokers that do not know it.

        :param alone: refuse to commit if the group has a consumer, since its offsets would be overwritten.
        :raises refused: the group has a consumer.
        """
        for members in by_broker(sorted(offsets)):
            if (group, members[0].broker) not in self._introduced:
                if not self._has_consumers(group, members[0]):
                    self._introduce(group, members)
                elif alone:
                    raise self.refused(
                        f"the group has consumers on {members[0].broker}, whose offsets would be overwritten",
                        next_step="choose a group that has no consumers",
                    )
            updates = [(queue, commit(group, queue, offsets[queue])) for queue in members]
            # The first commit is sent alone: it creates the group's table, which Apache's threads could create twice.
            for part in (updates[:1], updates[1:]):
                self.ask(part)

    def _has_consumers(self, group: str, queue: Queue) -> bool:
        """Return whether a group has consumers on a queue's broker."""
        request = (RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader(group))
        (answer,) = self.ask_broker(queue, [request])
        return answer.code == ResponseCode.SUCCESS and bool(decode_body(ConsumerIdList, answer.body).consumer_id_list)

    def _introduce(self, group: str, members: Sequence[Queue]) -> None:
        """Make a broker create a group and its retry topic, in the same way as the first consumer of a group."""
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
        with borrowed(self.request_address(members[0]), options.security(), options.timeout_s) as connection:
            leave = UnregisterClientRequestHeader(client_id=client_id, consumer_group=group)
            for code, header, sent in (RequestCode.HEART_BEAT, None, body), (RequestCode.UNREGISTER_CLIENT, leave, b""):
                answer = connection.invoke(code, header, sent)
                if answer.code != ResponseCode.SUCCESS:
                    doing = f"introducing group {group}"
                    raise self.refused_by(refusal(members[0].broker, answer.code, answer.remark, doing))
        self._introduced.add((group, members[0].broker))

    # Times ----------------------------------------------------------------------------------------

    def offsets_at(self, bounds: Mapping[Queue, Bounds], times: int | Mapping[str, int]) -> dict[Queue, int]:
        """Find each queue's first offset stored at or after a time, or the queue's end if all messages are older.

        :param times: milliseconds since 1970, for all topics or by topic; topics for which no time is given are
            omitted.
        """
        found = {}
        for queue, held in bounds.items():
            timestamp_ms = times if isinstance(times, int) else times.get(queue.topic)
            if timestamp_ms is not None:
                search = first_at(queue, self._cluster_options.group, held.first, held.end, timestamp_ms)
                found[queue] = run(search, partial(self._ask_one, queue))
        return found

    def _ask_one(self, queue: Queue, query: Query[T]) -> T:
        (result,) = self.ask([(queue, query)])
        return result
