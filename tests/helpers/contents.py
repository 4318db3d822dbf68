"""Read all messages of a queue or topic: from a broker in this process, or through a client."""

from __future__ import annotations

from cometmq.broker.controller import Broker
from cometmq.client import PullConsumer, PullStatus
from cometmq.message.record import StoredRecord, iter_records


def stored(broker: Broker, topic: str, queue_id: int = 0) -> list[StoredRecord]:
    """All records of one queue of a broker's store, read without a pull."""
    queue = broker.store.queue(topic, queue_id)
    found: list[StoredRecord] = []
    offset = queue.min_offset()
    while offset < queue.max_offset():
        result = broker.store.get_message(queue, offset, 1000)
        for chunk in result.chunks:
            found += iter_records(chunk)
        offset = result.next_begin_offset
    return found


def bodies(broker: Broker, topic: str, queue_id: int = 0) -> list[bytes]:
    """The bodies of one queue of a broker's store."""
    return [record.body for record in stored(broker, topic, queue_id)]


async def topic_bodies(namesrv: str, topic: str) -> list[bytes]:
    """The bodies of all messages of a topic, sorted, as a pull consumer reads them."""
    found: list[bytes] = []
    async with PullConsumer("TOOLS_CONSUMER", namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset = 0
            while (result := await consumer.pull(queue, offset)).status is PullStatus.FOUND:
                found += [message.body for message in result.messages]
                offset = result.next_offset
    return sorted(found)
