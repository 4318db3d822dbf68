"""The first message stored at or after a time, found by looks at single messages; no sockets.

The search of brokers (SEARCH_OFFSET_BY_TIMESTAMP) is only a hint. Apache RocketMQ 4.9 takes the nearest message, and
any one of a batch, whose messages all have one store time; 5.x and CometMQ take the first one, if they are asked to.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, Protocol

from cometmq.message.record import decode_record
from cometmq.message.sysflag import PULL_SUBSCRIPTION
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    LOWER,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)

LOOKED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Codes of answers to a look; others are failures."""


class AnyQueue(Protocol):
    """A queue of a topic on some broker."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def queue_id(self) -> int:
        """The id of the queue."""


def pull_header(
    queue: AnyQueue, offset: int, count: int, group: str, expression: str = "*", expression_type: str = "TAG"
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


def search_header(queue: AnyQueue, timestamp_ms: int) -> SearchOffsetRequestHeader:
    """Ask a broker for the first message stored at or after a time."""
    return SearchOffsetRequestHeader(queue.topic, queue.queue_id, max(timestamp_ms, 0), boundary_type=LOWER)


def first_at(
    queue: AnyQueue, group: str, first: int, end: int, hint: RemotingCommand, timestamp_ms: int
) -> Generator[PullMessageRequestHeader, RemotingCommand, int]:
    """Find the first offset stored at or after a time, ``end`` if there is none.

    Yields looks, each to be sent as PULL_MESSAGE, and takes their answers, whose codes are among :data:`LOOKED`. A hint
    that is right takes two of them.

    :param group: pulls the messages.
    :param first: the first offset of the queue; ``end`` is the one behind its last message.
    :param hint: the answer to :func:`search_header`.
    """
    low, high, step = first, end, 1  # the answer is in [low, high]
    at = min(max(hint.header(SearchOffsetResponseHeader).offset, first), end - 1)
    while low < high:
        stored = yield from _store_time(queue, group, at)
        if stored is None or stored >= timestamp_ms:
            high = at
        else:
            low = at + 1
        if low == first or high == end:  # one side is still open: gallop away from the hint
            at = max(high - step, low) if high != end else min(low + step - 1, high - 1)
            step *= 4
        else:
            at = (low + high) // 2
    return low


def _store_time(
    queue: AnyQueue, group: str, offset: int
) -> Generator[PullMessageRequestHeader, RemotingCommand, int | None]:
    """The store time of the first message from an offset on, ``None`` where there is none."""
    while True:
        answer = yield pull_header(queue, offset, 1, group)
        if answer.code == ResponseCode.SUCCESS:
            return decode_record(answer.body, check_crc=False).store_timestamp
        after = answer.header(PullMessageResponseHeader).next_begin_offset
        if after <= offset:
            return None
        offset = after  # behind what is missing, or was deleted since the search began
