"""The headers of POP requests (``PopMessageRequestHeader`` and other headers of RocketMQ 5)."""

from __future__ import annotations

from cometmq.remoting.headers import Header, Int32, Int64

MIN: int = 0
"""Value of ``initMode``: a group that has no offset starts at the first message (``ConsumeInitMode``)."""
MAX: int = 1
"""Value of ``initMode``: a group that has no offset starts after the last message."""


class PopMessageRequestHeader(Header):
    """POP_MESSAGE (200050); times are in milliseconds, and ``born_time`` is since 1970 on the client's clock."""

    consumer_group: str
    topic: str
    queue_id: Int32
    """The queue id; -1 means any queue."""
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    by_message_group: bool | None = None
    """If this and ``order`` are true, message groups are locked instead of queues. Only CometMQ's gRPC endpoint sends
    it; Apache ignores it."""


class PopMessageResponseHeader(Header):
    """Answer to POP_MESSAGE and PEEK_MESSAGE; the format of the infos is in :mod:`cometmq.message.pop_info`."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(Header):
    """ACK_MESSAGE (200051): ``extra_info`` is the receipt handle; ``topic`` may be a retry topic."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTimeRequestHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME (200053); ``invisible_time`` is in milliseconds from now."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class ChangeInvisibleTimeResponseHeader(Header):
    """Answer to CHANGE_MESSAGE_INVISIBLETIME: the changed parts of the new receipt handle."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequestHeader(Header):
    """NOTIFICATION (200054): wait until a pop would return a message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header):
    """Answer to NOTIFICATION: whether a pop would return a message."""

    has_msg: bool = False
    polling_full: bool = False


class PeekMessageRequestHeader(Header):
    """PEEK_MESSAGE (200052): return what a pop would return, without making the messages invisible."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class PollingInfoRequestHeader(Header):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header):
    """Answer to POLLING_INFO: the number of waiting pops."""

    polling_num: Int32
