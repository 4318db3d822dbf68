"""The first message stored at or after a time, found by looks at single messages; no sockets.

The search of brokers (SEARCH_OFFSET_BY_TIMESTAMP) is only a hint. Apache RocketMQ 4.9 takes the nearest message, and
any one of a batch, whose messages all have one store time; 5.x and CometMQ take the first one, if they are asked to.
"""

from __future__ import annotations

from cometmq.client.queries import AnyQueue, Search, pull_one, search_offset
from cometmq.message.record import decode_record
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import PullMessageResponseHeader


def first_at(queue: AnyQueue, group: str, first: int, end: int, timestamp_ms: int) -> Search[int]:
    """Find the first offset stored at or after a time, ``end`` if there is none.

    A hint of the broker that is right takes two looks.

    :param group: pulls the messages.
    :param first: the first offset of the queue; ``end`` is the one behind its last message.
    """
    if first >= end:
        return end
    hint = yield search_offset(queue, timestamp_ms)
    low, high, step = first, end, 1  # the result is in [low, high]
    at = min(max(hint, first), end - 1)
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


def _store_time(queue: AnyQueue, group: str, offset: int) -> Search[int | None]:
    """The store time of the first message from an offset on, ``None`` where there is none."""
    stored: int | None
    after: int
    while True:
        stored, after = yield pull_one(queue, offset, group, _store_time_and_next)
        if stored is not None or after <= offset:
            return stored
        offset = after  # behind what is missing, or was deleted since the search began


def _store_time_and_next(answer: RemotingCommand) -> tuple[int | None, int]:
    if answer.code == ResponseCode.SUCCESS:
        return decode_record(answer.body, check_crc=False).store_timestamp, 0
    return None, answer.header(PullMessageResponseHeader).next_begin_offset
