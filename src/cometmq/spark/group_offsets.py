"""Where consumer groups are in a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryConsumerOffsetRequestHeader, QueryConsumerOffsetResponseHeader
from cometmq.spark.cluster import Cluster
from cometmq.spark.connections import borrowed, invoke_all
from cometmq.spark.namesrv import demand_success
from cometmq.spark.queues import Offsets, Queue

_ANSWER_SECONDS: Final = 10.0


def committed_offsets(cluster: Cluster, queues: Sequence[Queue], group: str) -> Offsets:
    """The offset that a group has committed in each queue; queues where it has none are left out.

    :raises UnreachableError: a broker is not registered.
    :raises BlockingConnectionError: a broker does not answer.
    """
    found: Offsets = {}
    by_broker: dict[str, list[Queue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker, []).append(queue)
    for members in by_broker.values():
        requests = [
            (
                RequestCode.QUERY_CONSUMER_OFFSET,
                QueryConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, set_zero_if_not_found=False),
            )
            for queue in members
        ]
        with borrowed(cluster.address_of(members[0]), cluster.access, _ANSWER_SECONDS) as connection:
            answers = invoke_all(connection, requests)
        for queue, answer in zip(members, answers, strict=True):
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                found[queue] = demand_success(answer).header(QueryConsumerOffsetResponseHeader).offset
    return found
