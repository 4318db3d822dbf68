"""What a reader asks the nameserver and the brokers: topics, queues, their bounds, and offsets by time."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import MAX_ROUTE_QUEUES
from cometmq.message.names import DLQ_PREFIX, MASTER_ID, PERM_READ, RETRY_PREFIX, SYSTEM_TOPICS
from cometmq.message.sysflag import PULL_SUBSCRIPTION
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import (
    ClusterInfo,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    QueryConsumeQueueResponseBody,
    SubscriptionData,
    TopicList,
    TopicRouteData,
    decode_body,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumeQueueRequestHeader,
    SearchOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.spark.connections import borrowed, invoke_all
from cometmq.spark.errors import SparkSourceError, UnreachableError
from cometmq.spark.namesrv import ask_namesrv, demand_success
from cometmq.spark.options import SourceOptions, Times
from cometmq.spark.queues import Queue

_ANSWER_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.2
_SAMPLE: Final = 32
"""Messages looked at for the mean size of a queue's."""

log = logging.getLogger("cometmq.spark")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets that a queue holds: ``first <= offset < end``."""

    first: int
    end: int


def pull_header(
    queue: Queue, offset: int, count: int, group: str, expression: str = "*", expression_type: str = "TAG"
) -> PullMessageRequestHeader:
    """Ask for at most ``count`` messages from ``offset`` on that match, without waiting for new ones."""
    return PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=expression,
        expression_type=expression_type,
    )


class Cluster:
    """A view of the brokers behind some nameservers; the routes are those of its last look.

    It travels with its reader to the executors, so it holds nothing that cannot be pickled.
    """

    def __init__(self, options: SourceOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self.access = options.access
        self._clock = clock
        self._timeout_s = min(_ANSWER_SECONDS, options.poll_timeout_s)
        self._addresses: dict[str, str] = {}
        self._introduced: set[tuple[str, str]] = set()
        """Groups and the brokers that know them."""

    # Nameserver -----------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Look up every readable queue of the topics asked for, on the brokers that are registered now.

        :raises UnreachableError: no nameserver answers.
        """
        found: list[Queue] = []

        def look(connection: BlockingConnection) -> None:
            topics = self._options.topics or self._matching(connection)
            requests = [
                (RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic, accept_standard_json_only=True))
                for topic in topics
            ]
            found.clear()
            for topic, answer in zip(topics, invoke_all(connection, requests), strict=True):
                if answer.code != ResponseCode.TOPIC_NOT_EXIST:
                    found.extend(self._route(topic, decode_body(TopicRouteData, demand_success(answer).body)))

        ask_namesrv(self._options.namesrv_addr, self.access, self._timeout_s, look)
        return sorted(found)

    def topics(self) -> Sequence[str]:
        """Names of all topics that a pattern can choose: of those that match, where one was asked for.

        :raises UnreachableError: no nameserver answers.
        """
        return ask_namesrv(self._options.namesrv_addr, self.access, self._timeout_s, self._matching)

    def brokers(self) -> frozenset[str]:
        """Names of the brokers that are registered now.

        :raises UnreachableError: no nameserver answers.
        """

        def look(connection: BlockingConnection) -> frozenset[str]:
            answer = demand_success(connection.invoke(RequestCode.GET_BROKER_CLUSTER_INFO))
            return frozenset(decode_body(ClusterInfo, answer.body).broker_addr_table)

        return ask_namesrv(self._options.namesrv_addr, self.access, self._timeout_s, look)

    def _matching(self, connection: BlockingConnection) -> Sequence[str]:
        pattern = re.compile(self._options.topic_pattern or ".*")
        answer = demand_success(connection.invoke(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        return [
            topic
            for topic in sorted(decode_body(TopicList, answer.body).topic_list)
            if pattern.fullmatch(topic)
            and topic not in SYSTEM_TOPICS
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]

    def _route(self, topic: str, route: TopicRouteData) -> Iterable[Queue]:
        for broker in route.broker_datas:
            if broker.broker_addrs:
                self._addresses[broker.broker_name] = broker.broker_addrs[self._preferred(broker.broker_addrs)]
        named = sum(data.read_queue_nums for data in route.queue_datas)
        if named > MAX_ROUTE_QUEUES:
            raise SparkSourceError(
                f"the nameserver's route of {topic} names {named} queues",
                next_step="look for a broker that registered impossible numbers of queues",
            )
        for data in route.queue_datas:
            if data.perm & PERM_READ and data.broker_name in self._addresses:
                for queue_id in range(data.read_queue_nums):
                    yield Queue(topic, data.broker_name, queue_id)

    def _preferred(self, addresses: Mapping[int, str]) -> int:
        """The broker id to read from: the master, or with ``readFrom=slave`` a slave, where there is one."""
        slaves = sorted(broker_id for broker_id in addresses if broker_id != MASTER_ID)
        return slaves[0] if slaves and (self._options.from_slaves or MASTER_ID not in addresses) else MASTER_ID

    def address_of(self, queue: Queue) -> str:
        """Address of the broker that a queue is read from; looked up again if it is not known.

        :raises UnreachableError: no nameserver answers, or the broker is not registered.
        """
        if queue.broker not in self._addresses:
            self.queues()
        if queue.broker not in self._addresses:
            raise UnreachableError(f"broker {queue.broker} of {queue} is not registered with the nameserver")
        return self._addresses[queue.broker]

    def forget(self, broker: str) -> None:
        """Look the broker's address up again when it is next needed."""
        self._addresses.pop(broker, None)

    # Brokers --------------------------------------------------------------------------------------

    def bounds(self, queues: Iterable[Queue], *, pass_over_silent: bool = False) -> dict[Queue, Bounds]:
        """Ask the brokers for the bounds of queues, all requests of a broker at once.

        :param pass_over_silent: leave out brokers that do not answer at once, instead of asking them again until
            ``pollTimeoutMs`` is over.
        :raises UnreachableError: a broker does not answer.
        """
        by_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker, []).append(queue)
        found: dict[Queue, Bounds] = {}
        for members in by_broker.values():
            try:
                found |= self._bounds_of(members, 0.0 if pass_over_silent else self._options.poll_timeout_s)
            except UnreachableError as error:
                if not pass_over_silent:
                    raise
                log.warning("%s", error)
        return found

    def _bounds_of(self, members: Sequence[Queue], patience_s: float) -> dict[Queue, Bounds]:
        requests: list[tuple[int, Header]] = []
        for queue in members:
            requests.append((RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(queue.topic, queue.queue_id)))
            requests.append((RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(queue.topic, queue.queue_id)))
        answers = [
            demand_success(answer).header(GetMaxOffsetResponseHeader).offset
            for answer in self.ask_broker(members[0], requests, patience_s)
        ]
        return {
            queue: Bounds(min(first, end), end)
            for queue, first, end in zip(members, answers[::2], answers[1::2], strict=True)
        }

    def record_sizes(self, places: Sequence[tuple[Queue, int, int]]) -> list[float | None]:
        """Mean bytes of some stored records from each place on: queue, offset, how many are looked at.

        ``None`` where the broker does not tell: it holds nothing there, or does not answer the question.

        :raises UnreachableError: a broker does not answer at all until ``pollTimeoutMs`` is over.
        """
        by_broker: dict[str, list[int]] = {}
        for at, (queue, _, _) in enumerate(places):
            by_broker.setdefault(queue.broker, []).append(at)
        found: list[float | None] = [None] * len(places)
        for members in by_broker.values():
            requests: list[tuple[int, Header]] = [
                (
                    RequestCode.QUERY_CONSUME_QUEUE,
                    QueryConsumeQueueRequestHeader(queue.topic, queue.queue_id, at, count),
                )
                for queue, at, count in (places[member] for member in members)
            ]
            answers = self.ask_broker(places[members[0]][0], requests, self._options.poll_timeout_s)
            for member, answer in zip(members, answers, strict=True):
                if answer.code == ResponseCode.SUCCESS and answer.body:
                    units = decode_body(QueryConsumeQueueResponseBody, answer.body).queue_data
                    if units:
                        found[member] = max(sum(unit.physic_size for unit in units) / len(units), 1.0)
        return found

    def mean_sizes(self, start: Mapping[Queue, int], bounds: Mapping[Queue, Bounds]) -> dict[Queue, float]:
        """Bytes of a stored record, for each queue that holds any: the mean of some from ``start`` on."""
        places = [
            (queue, start.get(queue, held.first), _SAMPLE)
            for queue, held in bounds.items()
            if start.get(queue, held.first) < held.end
        ]
        means = zip(places, self.record_sizes(places), strict=True)
        return {queue: mean for (queue, _, _), mean in means if mean is not None}

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int], *, alone: bool = False) -> None:
        """Write offsets into a consumer group, which comes into being with its first heartbeat.

        :param alone: only where nobody consumes in the group, whose place would be lost.
        :raises UnreachableError: a broker does not answer.
        :raises SparkSourceError: somebody consumes in it.
        """
        by_broker: dict[str, list[Queue]] = {}
        for queue in sorted(offsets):
            by_broker.setdefault(queue.broker, []).append(queue)
        for members in by_broker.values():
            if (group, members[0].broker) not in self._introduced:
                if not self._has_consumers(group, members[0]):
                    self._introduce(group, members)
                elif alone:
                    raise SparkSourceError(
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
            # The first alone: it makes the group's table, which Apache's threads would make more than once.
            for part in (updates[:1], updates[1:]):
                for answer in self.ask_broker(members[0], part):
                    demand_success(answer)

    def _has_consumers(self, group: str, queue: Queue) -> bool:
        """Whether the group has members at the broker of a queue: it knows the group then, and their subscriptions."""
        request = (RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader(group))
        (answer,) = self.ask_broker(queue, [request])
        return answer.code == ResponseCode.SUCCESS and bool(decode_body(ConsumerIdList, answer.body).consumer_id_list)

    def _introduce(self, group: str, members: Sequence[Queue]) -> None:
        """Let a broker make the group and its retry topic, as the first consumer of a group does; then leave it."""
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
        with borrowed(self.address_of(members[0]), self.access, self._timeout_s) as connection:
            demand_success(connection.invoke(RequestCode.HEART_BEAT, body=body))
            leave = UnregisterClientRequestHeader(client_id=client_id, consumer_group=group)
            demand_success(connection.invoke(RequestCode.UNREGISTER_CLIENT, leave))
        self._introduced.add((group, members[0].broker))

    def offsets_at(self, bounds: Mapping[Queue, Bounds], times: Times) -> dict[Queue, int]:
        """For each queue find the first offset stored at or after a time; its end if there is none.

        With times by topic, queues of topics that are not named are left out.

        The broker's own search (SEARCH_OFFSET_BY_TIMESTAMP) is only a hint, since versions differ in which neighbour
        they take: from there the store times of single messages are looked at.
        """
        found = {}
        for queue, held in bounds.items():
            timestamp_ms = times.get(queue.topic) if isinstance(times, dict) else times
            if timestamp_ms is not None:
                found[queue] = self._first_at(queue, held, timestamp_ms)
        return found

    def _first_at(self, queue: Queue, held: Bounds, timestamp_ms: int) -> int:
        if held.first == held.end:
            return held.end
        header = SearchOffsetRequestHeader(queue.topic, queue.queue_id, max(timestamp_ms, 0))
        (answer,) = self.ask_broker(queue, [(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)])
        hint = min(max(demand_success(answer).header(GetMaxOffsetResponseHeader).offset, held.first), held.end - 1)
        low, high, step = held.first, held.end, 1  # what is sought lies in [low, high]
        at = hint
        while low < high:
            stored = self._store_time(queue, at)
            if stored is None or stored >= timestamp_ms:
                high = at
            else:
                low = at + 1
            if low == held.first or high == held.end:  # one side is still open: gallop away from the hint
                at = max(high - step, low) if high != held.end else min(low + step - 1, high - 1)
                step *= 4
            else:
                at = (low + high) // 2
        return low

    def _store_time(self, queue: Queue, offset: int) -> int | None:
        from cometmq.spark.decode import Records

        header = pull_header(queue, offset, 1, self._options.consumer_group)
        (answer,) = self.ask_broker(queue, [(RequestCode.PULL_MESSAGE, header)])
        if answer.code == ResponseCode.SUCCESS:
            return int(Records(answer.body).store_timestamps[0])
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            after = answer.header(PullMessageResponseHeader).next_begin_offset
            return self._store_time(queue, after) if after > offset else None
        if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            return None
        demand_success(answer)
        return None

    def ask_broker(
        self, queue: Queue, requests: Sequence[tuple[int, Header]], patience_s: float = 0.0
    ) -> list[RemotingCommand]:
        """Send requests to the broker of a queue; at least twice (a cached connection may be stale), and on until the
        patience is over.

        :raises UnreachableError: it does not answer.
        """
        give_up_at = self._clock.monotonic() + patience_s
        for attempt in count():
            try:
                with borrowed(self.address_of(queue), self.access, self._timeout_s) as connection:
                    return invoke_all(connection, requests)
            except (BlockingConnectionError, UnreachableError) as error:
                self.forget(queue.broker)
                if attempt and self._clock.monotonic() >= give_up_at:
                    raise UnreachableError(
                        f"broker {queue.broker} does not answer: {error.message}",
                        next_step="is it running? option pollTimeoutMs waits longer",
                    ) from error
            if attempt:
                threading.Event().wait(_PAUSE_SECONDS)
        raise AssertionError("count() never ends")
