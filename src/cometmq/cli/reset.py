"""Moves a consumer group to another place in a topic, through its members where there are any."""

from __future__ import annotations

from typing import Final

from cometmq.cli.fleet import Fleet, unless
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.remoting.bodies import ResetOffsetBody, TopicStatsTable, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetTopicStatsInfoRequestHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

EARLIEST: Final = 0
LATEST: Final = -1
"""Times that stand for the ends of a queue, as RocketMQ's tools use them."""


async def reset_group(fleet: Fleet, group: str, topic: str, timestamp_ms: int) -> tuple[int, list[str]]:
    """Reset on every master that holds the topic; return the number of queues and the brokers that failed.

    :raises BrokerError: the first broker already failed; nothing is changed then.
    """
    queues = 0
    failed: list[str] = []
    for name, address in (await fleet.masters_of(topic)).items():
        try:
            queues += await _reset_on(fleet, name, address, group, topic, timestamp_ms)
        except (BrokerError, RemotingError):
            if not queues:
                raise
            failed.append(name)
    return queues, failed


async def _reset_on(fleet: Fleet, name: str, address: str, group: str, topic: str, timestamp_ms: int) -> int:
    """Ask the broker to tell the members; where there are none, or it cannot, set its offsets directly."""
    header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=timestamp_ms, is_force=True)
    told = await unless(
        fleet.ask(
            address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, doing=f"resetting group {group} on {name}"
        ),
        (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    )
    if told is not None:
        return len(decode_body(ResetOffsetBody, told.body).offset_table)
    answer = await fleet.ask(
        address,
        RequestCode.GET_TOPIC_STATS_INFO,
        GetTopicStatsInfoRequestHeader(topic),
        doing=f"asking {name} about topic {topic}",
    )
    table = decode_body(TopicStatsTable, answer.body).offset_table
    for queue, offsets in table.items():
        if timestamp_ms == LATEST:
            target = offsets.max_offset
        elif timestamp_ms == EARLIEST:
            target = offsets.min_offset
        else:
            found = await fleet.ask(
                address,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                SearchOffsetRequestHeader(topic, queue.queue_id, timestamp_ms),
                doing=f"looking for the offset in queue {queue.queue_id} of {name}",
            )
            target = found.header(SearchOffsetResponseHeader).offset
        await fleet.ask(
            address,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetRequestHeader(group, topic, queue.queue_id, target),
            doing=f"setting the offset of queue {queue.queue_id} of {name}",
        )
    return len(table)
