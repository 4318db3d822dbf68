"""Where consumer groups are in a topic."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import Header, QueryConsumerOffsetRequestHeader, QueryConsumerOffsetResponseHeader
from cometmq.spark.cluster import Cluster
from cometmq.spark.namesrv import demand_success
from cometmq.spark.queues import Offsets, Queue


def committed_offsets(cluster: Cluster, queues: Sequence[Queue], group: str) -> Offsets:
    """The offset that a group has committed in each queue; queues where it has none are left out.

    :raises UnreachableError: a broker is not registered, or does not answer.
    """
    found: Offsets = {}
    by_broker: dict[str, list[Queue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker, []).append(queue)
    for members in by_broker.values():
        requests: list[tuple[int, Header]] = [
            (
                RequestCode.QUERY_CONSUMER_OFFSET,
                QueryConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, set_zero_if_not_found=False),
            )
            for queue in members
        ]
        for queue, answer in zip(members, cluster.ask_broker(members[0], requests), strict=True):
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                found[queue] = demand_success(answer).header(QueryConsumerOffsetResponseHeader).offset
    return found
