"""Queries for a queue's offsets: requests to its broker and parsers for the responses, independent of sockets.

A :class:`Query` is one request. A search that needs several queries is a generator: it yields queries and receives
results.
:mod:`cometmq.client.offsets` sends them from an event loop, :mod:`cometmq.client.blocking.offsets` without one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from cometmq.client.errors import refusal
from cometmq.message.record import decode_record
from cometmq.message.sysflag import PULL_EXPIRED, PULL_SUBSCRIPTION
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    LOWER,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

T = TypeVar("T")
_SUCCESS: Final = frozenset({ResponseCode.SUCCESS})
PULL_ANSWERS: Final = _SUCCESS | {
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED,
}
"""Response codes for a pull that do not mean failure."""
EVERY_ANSWER: Final = range(-1 << 31, 1 << 31)
"""All possible response codes."""


class AnyQueue(Protocol):
    """A topic's queue on a broker."""

    @property
    def topic(self) -> str:
        """Return the topic."""

    @property
    def queue_id(self) -> int:
        """Return the queue's id."""


class Query(NamedTuple, Generic[T]):
    """A request to a queue's broker."""

    code: int
    header: Header
    doing: str
    """The description of the request in errors."""
    read: Callable[[RemotingCommand], T]
    """Extracts the result from a response."""
    answers: Container[int] = _SUCCESS
    """Response codes that ``read`` handles; all others are errors."""

    def result(self, answer: RemotingCommand, server: str) -> T:
        """Return the result.

        :raises BrokerError: the broker refuses the request.
        """
        if answer.code not in self.answers:
            raise refusal(server, answer.code, answer.remark, self.doing)
        return self.read(answer)


Search = Generator[Query[Any], Any, T]
"""Yields queries about one queue, receives each result, and returns its own result."""


def _offset(answer: RemotingCommand) -> int:
    return answer.header(GetMaxOffsetResponseHeader).offset  # all responses about an offset have this field


def first_offset(queue: AnyQueue) -> Query[int]:
    """Query the first offset that is still stored."""
    header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id)
    return Query(RequestCode.GET_MIN_OFFSET, header, f"requesting the first offset of {queue}", _offset)


def end_offset(queue: AnyQueue) -> Query[int]:
    """Query the offset that the next message will get."""
    header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id)
    return Query(RequestCode.GET_MAX_OFFSET, header, f"requesting the end offset of {queue}", _offset)


def earliest_store_time(queue: AnyQueue) -> Query[int]:
    """Query the store time of the first message in milliseconds since 1970; the result is -1 for an empty queue."""
    header = GetEarliestMsgStoretimeRequestHeader(queue.topic, queue.queue_id)
    doing = f"requesting the earliest store time of {queue}"
    return Query(RequestCode.GET_EARLIEST_MSG_STORETIME, header, doing, _store_time)


def _store_time(answer: RemotingCommand) -> int:
    return answer.header(GetEarliestMsgStoretimeResponseHeader).timestamp


def committed_offset(group: str, queue: AnyQueue, *, or_zero: bool | None = None) -> Query[int | None]:
    """Query a group's committed offset; the result is None if there is none.

    :param or_zero: False stops a broker from answering 0 for an unknown group while the queue's first message is young.
    """
    header = QueryConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, set_zero_if_not_found=or_zero)
    doing = f"requesting the offset of group {group} in {queue}"
    answers = _SUCCESS | {ResponseCode.QUERY_NOT_FOUND}
    return Query(RequestCode.QUERY_CONSUMER_OFFSET, header, doing, _offset_if_found, answers)


def _offset_if_found(answer: RemotingCommand) -> int | None:
    return None if answer.code == ResponseCode.QUERY_NOT_FOUND else _offset(answer)


def commit(group: str, queue: AnyQueue, offset: int) -> Query[None]:
    """Commit an offset for a group."""
    header = UpdateConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, offset)
    return Query(RequestCode.UPDATE_CONSUMER_OFFSET, header, f"committing an offset for {queue}", lambda _: None)


def search_offset(queue: AnyQueue, timestamp_ms: int) -> Query[int]:
    """Query the first message stored at or after a time; the result is only a hint, see :func:`first_at`."""
    header = SearchOffsetRequestHeader(queue.topic, queue.queue_id, max(timestamp_ms, 0), boundary_type=LOWER)
    doing = f"searching for an offset of {queue} by time"
    return Query(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, doing, _offset)


def pull_one(queue: AnyQueue, offset: int, group: str, read: Callable[[RemotingCommand], T]) -> Query[T]:
    """Query the message at an offset; ``read`` handles every response to the pull, even without a message."""
    header = pull_header(queue, offset, 1, group)
    return Query(RequestCode.PULL_MESSAGE, header, f"reading a message of {queue}", read, PULL_ANSWERS)


def pull_header(
    queue: AnyQueue, offset: int, count: int, group: str, expression: str = "*", expression_type: str = "TAG"
) -> PullMessageRequestHeader:
    """Request up to ``count`` matching messages from ``offset``, without waiting for new messages; expired messages are
    included.
    """
    return PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION | PULL_EXPIRED,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=expression,
        expression_type=expression_type,
    )


def first_at(queue: AnyQueue, group: str, first: int, end: int, timestamp_ms: int) -> Search[int]:
    """Find the offset of the first message stored at or after a time, or ``end`` if all messages are older.

    The broker's own search is only a hint. Apache RocketMQ 4.9 returns the nearest message or, in a batch, whose
    messages all have the same store time, any message of the batch; 5.x and CometMQ return the first message on
    request. A correct hint costs two pulls of single messages.

    :param group: the group of the pulls.
    :param first: the first offset of the queue; ``end`` is the offset after its last message.
    """
    if first >= end:
        return end
    hint = yield search_offset(queue, timestamp_ms)
    low, high, step = first, end, 1  # the result is in [low, high]
    at = min(max(hint, first), end - 1)
    while low < high:
        stored = yield from _first_store_time(queue, group, at)
        if stored is None or stored >= timestamp_ms:
            high = at
        else:
            low = at + 1
        if low == first or high == end:  # one bound is not known yet: move away from the hint in growing steps
            at = max(high - step, low) if high != end else min(low + step - 1, high - 1)
            step *= 4
        else:
            at = (low + high) // 2
    return low


def _first_store_time(queue: AnyQueue, group: str, offset: int) -> Search[int | None]:
    """Find the store time of the first message at or after an offset, or ``None`` if there is no such message."""
    stored: int | None
    after: int
    while True:
        stored, after = yield pull_one(queue, offset, group, _store_time_and_next)
        if stored is not None or after <= offset:
            return stored
        offset = after  # the messages before are missing, or were deleted after the search began


def _store_time_and_next(answer: RemotingCommand) -> tuple[int | None, int]:
    if answer.code == ResponseCode.SUCCESS:
        return decode_record(answer.body, check_crc=False).store_timestamp, 0
    return None, answer.header(PullMessageResponseHeader).next_begin_offset
