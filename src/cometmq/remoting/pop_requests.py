"""Requests about popped messages that consumers and the gRPC endpoint send, and the handles in responses to pops."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import msgspec

from cometmq.message.pop_info import HandleError, ReceiptHandle, real_topic
from cometmq.remoting.bodies import Body
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.remoting.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageResponseHeader,
)

_TO_DEAD_LETTERS = -1
"""The delay level with which a broker makes a message a dead letter."""


class BatchAck(Body, kw_only=True):
    """An acknowledgement for messages from one pop from a queue (``BatchAck``)."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    retry: str = msgspec.field(name="r", default="0")
    """The kind of topic (its own, or a retry topic), in the notation of receipt handles."""
    start_offset: int = msgspec.field(name="so")
    queue_id: int = msgspec.field(name="q")
    revive_queue: int = msgspec.field(name="rq", default=0)
    pop_time: int = msgspec.field(name="pt")
    invisible_time: int = msgspec.field(name="it", default=0)
    bits: str = msgspec.field(name="b")
    """Base64-encoded bits, lowest first; bit n stands for the offset ``start_offset`` + n."""


class BatchAckMessageRequestBody(Body):
    """The request body of BATCH_ACK_MESSAGE (200151)."""

    broker_name: str | None = None
    acks: list[BatchAck] = msgspec.field(default_factory=list)


def ack_request(
    handle: ReceiptHandle, topic: str, group: str, *, lite_topic: str | None = None
) -> AckMessageRequestHeader:
    """Return the request that acknowledges a message.

    :param topic: the topic to which the consumer subscribes; the message may be stored in a retry topic.
    """
    return AckMessageRequestHeader(
        consumer_group=group,
        topic=real_topic(topic, group, handle.topic_type),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.queue_offset,
        lite_topic=lite_topic,
    )


def batch_ack(broker: str, group: str, popped: Iterable[tuple[str, ReceiptHandle, int]]) -> BatchAckMessageRequestBody:
    """Return the request that acknowledges messages of one broker.

    :param popped: for each message the topic to which the consumer subscribes, the handle of its queue, and its offset.
    """
    bits: dict[tuple[str, ReceiptHandle], int] = {}
    for topic, handle, offset in popped:
        key = topic, handle
        bits[key] = bits.get(key, 0) | 1 << (offset - handle.start_offset)
    acks = [
        BatchAck(
            group=group,
            topic=topic,
            retry=handle.topic_type,
            start_offset=handle.start_offset,
            queue_id=handle.queue_id,
            revive_queue=handle.revive_queue,
            pop_time=handle.pop_time,
            invisible_time=handle.invisible_time,
            bits=base64.b64encode(mask.to_bytes((mask.bit_length() + 7) // 8, "little")).decode(),
        )
        for (topic, handle), mask in bits.items()
    ]
    return BatchAckMessageRequestBody(broker, acks)


def change_request(
    handle: ReceiptHandle,
    topic: str,
    group: str,
    invisible_ms: int,
    *,
    lite_topic: str | None = None,
    suspend: bool = False,
) -> ChangeInvisibleTimeRequestHeader:
    """Return the request that restarts a message's invisible time.

    :param topic: the topic to which the consumer subscribes; the message may be stored in a retry topic.
    :param suspend: the delivery of a message of a lite topic does not count as an attempt.
    """
    return ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=real_topic(topic, group, handle.topic_type),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.queue_offset,
        invisible_time=invisible_ms,
        lite_topic=lite_topic,
        suspend=suspend,
    )


def changed_handle(handle: ReceiptHandle, changed: ChangeInvisibleTimeResponseHeader) -> ReceiptHandle:
    """Return the handle that replaces a message's handle after a change of its invisible time."""
    return handle._replace(
        start_offset=handle.queue_offset,
        pop_time=changed.pop_time,
        invisible_time=changed.invisible_time,
        revive_queue=changed.revive_qid,
    )


def dead_letter_request(
    handle: ReceiptHandle, topic: str, group: str, *, log_offset: int, message_id: str
) -> ConsumerSendMsgBackRequestHeader:
    """Return the request that stores a copy of a message as a dead letter; the message must then be acknowledged.

    :param topic: the topic to which the consumer subscribes; the message may be stored in a retry topic.
    :param log_offset: the message's offset in the broker's log.
    """
    return ConsumerSendMsgBackRequestHeader(
        offset=log_offset,
        group=group,
        delay_level=_TO_DEAD_LETTERS,
        origin_msg_id=message_id,
        origin_topic=real_topic(topic, group, handle.topic_type),
        max_reconsume_times=0,
    )


def queue_handles(header: PopMessageResponseHeader, broker: str) -> dict[tuple[str, int], ReceiptHandle]:
    """Return a handle for each kind of topic and queue in a response to a pop; its ``queue_offset`` is 0.

    :raises HandleError: the response is malformed.
    """
    found = {}
    for part in filter(None, (header.start_offset_info or "").split(";")):
        try:
            kind, queue_id, start = part.split(" ")
            found[kind, int(queue_id)] = ReceiptHandle(
                *(int(start), header.pop_time, header.invisible_time, header.revive_qid, kind, broker),
                *(int(queue_id), 0),
            )
        except ValueError:
            raise HandleError(f"{part[:100]!r} is not a valid part of startOffsetInfo") from None
    return found
