"""Where a group begins in a queue (``RebalancePushImpl.computePullFromWhere``)."""

from __future__ import annotations

from cometmq.client.consumer_config import ConsumeFromWhere, ReadConfig
from cometmq.client.offsets import Offsets
from cometmq.message.names import RETRY_PREFIX
from cometmq.remoting.bodies import MessageQueue


async def starting_point(offsets: Offsets, queue: MessageQueue, committed: int | None, config: ReadConfig) -> int:
    """``committed``, or, for a queue never read, what ``consume_from_where`` says.

    Retry topics are always read from their beginning.

    :raises CometMQError: the broker does not tell.
    """
    if committed is not None and committed >= 0:
        return committed
    if queue.topic.startswith(RETRY_PREFIX):
        return 0
    if config.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return await offsets.min(queue)
    if config.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return await offsets.at_time(queue, config.consume_timestamp_ms)
    return await offsets.max(queue)
