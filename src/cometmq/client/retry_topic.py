"""A consumer sends a failed message to its group's retry topic itself (``CLIENT_INNER_PRODUCER``)."""

from __future__ import annotations

import random
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.route import queue_or_fail
from cometmq.message.message import MessageExt
from cometmq.message.names import AUTO_CREATE_TOPIC, retry_topic
from cometmq.message.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    encode_properties,
)
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import SendMessageRequestHeaderV2

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The producer group of such sends."""
_QUEUES: Final = 1


async def send_to_retry_topic(
    instance: ClientInstance,
    group: str,
    message: MessageExt,
    max_reconsume_times: int,
    *,
    reconsume_times: int | None = None,
    delay_level: int = 0,
) -> None:
    """Store ``message`` in ``%RETRY%group``, or in ``%DLQ%group``: the broker takes it there at the maximum.

    The body goes as it was stored; it is no transaction any more.

    :param reconsume_times: how often it has failed; by default as often as it says itself.
    :param delay_level: how long it waits there; 0 for not at all.
    :raises CometMQError: it is not stored, or not known to be.
    """
    topic = retry_topic(group)
    times = message.reconsume_times if reconsume_times is None else reconsume_times
    properties = {
        **message.properties,
        RETRY_TOPIC: message.topic,
        ORIGIN_MESSAGE_ID: message.properties.get(ORIGIN_MESSAGE_ID) or message.msg_id,
        RECONSUME_TIME: str(times),
        MAX_RECONSUME_TIMES: str(max_reconsume_times),
    }
    for name in (TRAN_MSG, DELAY):
        properties.pop(name, None)
    if delay_level:
        properties[DELAY] = str(delay_level)
    queue = random.choice(queue_or_fail(await instance.routes.get_for_send(topic, _QUEUES)))
    header = SendMessageRequestHeaderV2(
        producer_group=INNER_PRODUCER,
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=_QUEUES,
        queue_id=queue.queue_id,
        sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK),
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=encode_properties(properties),
        reconsume_times=times,
        max_reconsume_times=max_reconsume_times,
        broker_name=queue.broker_name,
    )
    address = await instance.master_of(queue)
    doing = f"sending {message.msg_id} to {topic}"
    await instance.call(address, RequestCode.SEND_MESSAGE_V2, header, message.stored_body, doing=doing)
