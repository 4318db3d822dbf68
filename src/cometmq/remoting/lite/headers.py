"""The headers of requests about lite topics (RocketMQ 5.5).

Acknowledgements and changes of the invisible time use the headers of POP (:mod:`cometmq.remoting.pop_headers`) with
``lite_topic`` set.
"""

from __future__ import annotations

from cometmq.remoting.headers import Header, Int32, Int64


class PopLiteMessageRequestHeader(Header):
    """Request header for POP_LITE_MESSAGE (200070). Times are in milliseconds; ``born_time`` is the client's time."""

    client_id: str
    """The client whose lite topics are read."""
    consumer_group: str
    topic: str
    """The parent topic."""
    max_msg_num: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    """0 means the time at which the broker receives the request."""
    attempt_id: str | None = None


class PopLiteMessageResponseHeader(Header):
    """Response header for POP_LITE_MESSAGE. The messages may be from several lite topics."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    """Always 999, as for ordered pops."""
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None
    """For each message its number of earlier deliveries, separated by semicolons."""


class LiteSubscriptionCtlRequestHeader(Header):
    """Request header for LITE_SUBSCRIPTION_CTL (200071); its data is in the body."""


class NotifyUnsubscribeLiteRequestHeader(Header):
    """Request header for NOTIFY_UNSUBSCRIBE_LITE (200073), which a broker sends to a client."""

    lite_topic: str
    consumer_group: str
    client_id: str


class GetParentTopicInfoRequestHeader(Header):
    """Request header for GET_PARENT_TOPIC_INFO (200075)."""

    topic: str


class GetLiteTopicInfoRequestHeader(Header):
    """Request header for GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str
    lite_topic: str


class GetLiteClientInfoRequestHeader(Header):
    """Request header for GET_LITE_CLIENT_INFO (200077)."""

    parent_topic: str
    group: str
    client_id: str
    max_count: Int32 = 0
    """Maximum number of lite topics in the response."""


class GetLiteGroupInfoRequestHeader(Header):
    """Request header for GET_LITE_GROUP_INFO (200078)."""

    group: str
    lite_topic: str | None = None
    """The lite topic whose progress is wanted; without it, the response has the lite topics that lag most."""
    top_k: Int32 = 0
    """Maximum number of lite topics in each list of the response."""


class TriggerLiteDispatchRequestHeader(Header):
    """Request header for TRIGGER_LITE_DISPATCH (200079)."""

    group: str
    client_id: str | None = None
    """The client whose lite topics are checked for messages; without it, all clients of the group."""


class GetLiteTopicsRequestHeader(Header):
    """Request header for GET_LITE_TOPICS (30048), a CometMQ extension."""

    topic: str
    prefix: str | None = None
    position: Int64 = 0
    """The ``next_position`` of the response before; 0 for the first page."""
    max_num: Int32 = 1_000


class ExpireLiteTopicsRequestHeader(Header):
    """Request header for EXPIRE_LITE_TOPICS (30049), a CometMQ extension: one lite topic, or all with a prefix."""

    topic: str
    lite_topic: str | None = None
    prefix: str | None = None
    """An empty prefix means all lite topics of the parent topic."""
    with_unread: bool = False
    """Remove lite topics with messages that a group has not read, too."""
    position: Int64 = 0
    """The ``next_position`` of the response before; 0 for the first request."""
