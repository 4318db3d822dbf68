"""GET_PROGRESS_SUMS (30041): the progress of groups and the messages of topics, summed over queues.

This is a CometMQ extension for lists and screens that show only sums. RocketMQ's own requests return every queue of
every group, which takes 20 seconds for a million queues.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cometmq.broker.admin.offsets import consumed_topics
from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_LIST_BYTES, MAX_PROGRESS_SUMS_BYTES, PAIRS_PER_SLICE
from cometmq.broker.slices import Slice, Steps, batches, run_in_slices
from cometmq.broker.statistics.stats import GROUP_GET_NUMS
from cometmq.remoting.admin_bodies import GroupSums, ProgressSumsQuestion, TopicProgress
from cometmq.remoting.bodies import BodyError, decode_request
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_QUEUES_OF_A_PAIR: Final = 8
"""Adding up this many queues takes as long as everything else for one topic-group pair."""


class ProgressSumsAdmin:
    """Handles requests for the summed progress of groups."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    @answers(
        RequestCode.GET_PROGRESS_SUMS,
        limits=("PAIRS_PER_SLICE", "MAX_PROGRESS_SUMS_BYTES", "MAX_LIST_BYTES"),
        permission=needs_cluster(Action.GET),
    )
    def sums(self, connection: ServerConnection, request: Request[NoHeader], body: bytes) -> Response | None:
        """Return the progress of some groups and the end offsets of all topics, summed over queues (a CometMQ
        extension).
        """
        return run_in_slices(connection, request, self._sums(body))

    def _sums(self, body: bytes) -> Steps:
        try:
            question = decode_request(ProgressSumsQuestion, body, MAX_LIST_BYTES)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        topics: list[bytes] = []
        for names in batches(list(self._broker.topics.table) if question.with_topics else (), PAIRS_PER_SLICE):
            topics.append(msgspec.json.encode({name: self._end(name) for name in names})[1:-1])
            yield
        groups: list[bytes] = []
        ends: dict[str, int] = {}
        size = 0
        part = Slice(PAIRS_PER_SLICE)
        for group in question.groups:
            members = self._broker.clients.consumers.get(group)
            sums = GroupSums(members=0 if members is None else len(members.channels))
            for topic, offsets in consumed_topics(self._broker, group):
                name, queue_nums = topic.topic_name, topic.read_queue_nums
                end, cost = ends.get(name), 1
                if end is None:
                    end = ends[name] = self._end(name, queue_nums)
                    cost += queue_nums // _QUEUES_OF_A_PAIR
                sums.topics[name] = TopicProgress(end, end - offsets.total(queue_nums))
                sums.consume_tps += self._broker.stats.per_minute(GROUP_GET_NUMS, f"{name}@{group}").tps
                if part.ends_after(cost):
                    yield
            groups.append(msgspec.json.encode({group: sums})[1:-1])
            size += len(groups[-1])
            if size >= MAX_PROGRESS_SUMS_BYTES:
                break
            if part.ends_after():
                yield
        return Response(body=b'{"groups":{%s},"topics":{%s}}' % (b",".join(groups), b",".join(topics)))

    def _end(self, topic: str, queue_nums: int | None = None) -> int:
        """Return the sum of the end offsets of a topic's queues."""
        queues = self._broker.store.queues().get(topic, {})
        return sum(queue.max_offset() for number, queue in queues.items() if queue_nums is None or number < queue_nums)
