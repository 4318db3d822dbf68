"""The headers of POP requests (``PopMessageRequestHeader`` and other RocketMQ 5 headers)."""

from __future__ import annotations

from cometmq.remoting.headers import Header, Int32, Int64

MIN: int = 0
"""Value of ``initMode`` with which a group that has no offset starts at the first message (``ConsumeInitMode``)."""
MAX: int = 1
"""Value of ``initMode`` with which a group that has no offset starts after the last message."""


class PopMessageRequestHeader(Header):
    """Request header for POP_MESSAGE (200050). Times are in milliseconds; ``born_time`` is the client's time."""

    consumer_group: str
    topic: str
    queue_id: Int32
    """The queue id; -1 means any queue."""
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    """0 means the time at which the broker receives the request."""
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    by_message_group: bool | None = None
    """If true for an ordered pop, message groups are locked instead of queues; only CometMQ's gRPC endpoint sets it."""
    owner: str | None = None
    """The client's ID if the broker gives back what the client leaves behind when its connections close; CometMQ's
    extension.
    """
    retries_first: bool | None = None
    """True if every second pop hands out messages that are delivered again before others; CometMQ's extension."""


class PopMessageResponseHeader(Header):
    """Response header for POP_MESSAGE and PEEK_MESSAGE; :mod:`cometmq.message.pop_info` defines the text formats."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(Header):
    """Request header for ACK_MESSAGE (200051); ``extra_info`` is the receipt handle, and ``topic`` may be a retry
    topic.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None
    """The lite topic of the message; ``topic`` is its parent topic, and ``offset`` the offset in the lite topic."""


class ChangeInvisibleTimeRequestHeader(Header):
    """Request header for CHANGE_MESSAGE_INVISIBLETIME (200053); ``invisible_time`` is in milliseconds from now."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    """As in :class:`AckMessageRequestHeader`."""
    suspend: bool = False
    """For lite topics: the time holds for all messages of the pop, and their delivery does not count as an attempt,
    unless it is the first one (RocketMQ 5.5)."""


class ChangeInvisibleTimeResponseHeader(Header):
    """Response header for CHANGE_MESSAGE_INVISIBLETIME, with the changed parts of the new receipt handle."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequestHeader(Header):
    """Request header for NOTIFICATION (200054), which waits until a pop would return a message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    """0 means the time at which the broker receives the request."""
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header):
    """Response header for NOTIFICATION; it says whether a pop would return a message."""

    has_msg: bool = False
    polling_full: bool = False


class PeekMessageRequestHeader(Header):
    """Request header for PEEK_MESSAGE (200052), which returns messages like a pop but leaves them visible."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class PollingInfoRequestHeader(Header):
    """Request header for POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header):
    """Response header for POLLING_INFO, with the number of waiting pops."""

    polling_num: Int32
