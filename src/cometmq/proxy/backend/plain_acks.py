"""Acknowledges blocks of messages from the compiled core (:mod:`cometmq.proxy.backend.plain_calls`)."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.controller import Broker
from cometmq.message.pop_info import real_topic
from cometmq.proxy.converter import valid_group, valid_topic
from cometmq.proxy.errors import ProxyError, refused
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.codes import RequestCode

_Popped = tuple[str, int, int, int, list[int]]
"""Messages of one pop from a queue: the client's topic, kind of topic, queue ID, pop time and offsets."""
AckBlock = tuple[str, list[_Popped], list[str] | None, bytes]
"""Messages to acknowledge: the group, the messages, their receipt handles if they were asked for, and the frames of the
responses.
"""


def acknowledge(broker: Broker, block: AckBlock, done: Callable[[ProxyError | None], None]) -> bool:
    """Acknowledge all messages of a block, or none of them if one is not handed out; return whether they are.

    :param done: called once, when it is known whether the acknowledgements are stored.
    """
    if broker.is_slave:
        return False
    group, popped, *_ = block
    try:
        valid_group(group)
        pops = [
            (real_topic(valid_topic(topic), group, str(kind)), group, queue_id, pop_time, offsets)
            for topic, kind, queue_id, pop_time, offsets in popped
        ]
    except ProxyError:
        return False
    broker.server.schedule_round()
    latency = broker.server.path.latency
    arrived = 0.0 if latency is None else latency.began

    def answered(code: int, remark: str | None) -> None:
        if latency is not None:
            latency.answered(RequestCode.ACK_MESSAGE, code, arrived, sum(len(offsets) for *_, offsets in popped))
        done(refused(code, remark) if code else None)

    return broker.pops.acks.acknowledge_all(pops, answered)


def refused_response(accepted: bytes, error: ProxyError) -> bytes:
    """Return the response for messages that are not acknowledged, given the response for acknowledged ones."""
    response = v2.AckMessageResponse.FromString(accepted)
    response.status.code, response.status.message = error.code, Code(error.code).name
    for entry in response.entries:
        entry.status.CopyFrom(error.status)
    encoded: bytes = response.SerializeToString()
    return encoded
