"""The bodies of requests about lite topics (RocketMQ 5.5); see :mod:`cometmq.remoting.bodies`."""

from __future__ import annotations

from enum import Enum

import msgspec

from cometmq.remoting.admin_bodies import OffsetWrapper, TopicOffset
from cometmq.remoting.bodies import Body


class LiteSubscriptionAction(Enum):
    """A client's change to its subscription (``LiteSubscriptionAction``)."""

    PARTIAL_ADD = "PARTIAL_ADD"
    """Add lite topics."""
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    """Remove lite topics."""
    COMPLETE_ADD = "COMPLETE_ADD"
    """Replace all lite topics; clients send this every 30 s."""
    COMPLETE_REMOVE = "COMPLETE_REMOVE"
    """End the subscription."""


class OffsetOptionType(Enum):
    """A way to find an offset (``OffsetOption.Type``)."""

    POLICY = "POLICY"
    """The value is 0 (continue), 1 (first message) or 2 (after the last message)."""
    OFFSET = "OFFSET"
    """The value is the offset."""
    TAIL_N = "TAIL_N"
    """The value is the number of messages before the group's offset."""
    TIMESTAMP = "TIMESTAMP"
    """The value is a store time in milliseconds since 1970: the first message stored then or later."""


class OffsetOption(Body):
    """The place where a group starts to read lite topics (``OffsetOption``)."""

    type: OffsetOptionType = OffsetOptionType.POLICY
    value: int = 0


class LiteSubscriptionDTO(Body, kw_only=True):
    """One change to a client's subscription (``LiteSubscriptionDTO``)."""

    action: LiteSubscriptionAction
    client_id: str = ""
    group: str = ""
    lite_topic_set: list[str] | None = None
    offset_option: OffsetOption | None = None
    topic: str = ""
    """The parent topic."""
    version: int = 0
    """Rises with each change of the client; a COMPLETE_ADD with a lower version than the last one is ignored."""


class LiteSubscriptionCtlRequestBody(Body):
    """Request body for LITE_SUBSCRIPTION_CTL (200071)."""

    subscription_set: list[LiteSubscriptionDTO] | None = None


def encode_changes(changes: list[LiteSubscriptionDTO]) -> bytes:
    """Encode the body of LITE_SUBSCRIPTION_CTL like :func:`~cometmq.remoting.bodies.encode_body`, but 20 times faster:
    100,000 lite topics take 2 ms.

    The fields are declared in alphabetical order, and only two may be null. The removed text never occurs inside a
    string, because quotes in strings are escaped by a backslash.
    """
    text = msgspec.json.encode(LiteSubscriptionCtlRequestBody(changes))
    return text.replace(b'"liteTopicSet":null,', b"").replace(b'"offsetOption":null,', b"")


class ClientGroup(Body):
    """A client and its group."""

    client_id: str
    group: str


class GetBrokerLiteInfoResponseBody(Body):
    """Response to GET_BROKER_LITE_INFO (200074)."""

    store_type: str
    max_lmq_num: int
    current_lmq_num: int
    """Number of lite topics on the broker."""
    lite_subscription_count: int
    """Number of pairs of a client and one of its lite topics."""
    order_info_count: int
    """Number of pairs of a group and a lite topic that has unacknowledged messages."""
    cq_table_size: int
    offset_table_size: int
    """Number of pairs of a group and a lite topic in which it has progress."""
    event_map_size: int
    """Number of clients for which messages may be there."""
    topic_meta: dict[str, int] = {}
    """The expiration of each parent topic, in minutes."""
    group_meta: dict[str, list[str]] = {}
    """The groups of each parent topic."""


class GetParentTopicInfoResponseBody(Body):
    """Response to GET_PARENT_TOPIC_INFO (200075)."""

    topic: str
    ttl: int
    """Expiration of its lite topics in minutes; -1 means never."""
    groups: list[str] = []
    lmq_num: int = 0
    """Number of lite topics on the broker."""
    lite_topic_count: int = 0
    """Number of the parent topic's lite topics."""


class GetLiteTopicInfoResponseBody(Body):
    """Response to GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str
    lite_topic: str
    subscriber: list[ClientGroup] = []
    topic_offset: TopicOffset | None = None
    sharding_to_broker: bool = False
    """True if this broker's queues are those that clients choose for the lite topic."""


class GetLiteClientInfoResponseBody(Body):
    """Response to GET_LITE_CLIENT_INFO (200077)."""

    parent_topic: str
    group: str
    client_id: str
    last_access_time: int
    """Time of the client's last pop in milliseconds since 1970, or -1."""
    last_consume_time: int
    """Time of the client's last pop that returned a message, in milliseconds since 1970, or -1."""
    lite_topic_count: int
    """Number of the client's lite topics, or -1 if the broker does not know the client."""
    lite_topic_set: list[str] = []


class LiteLagInfo(Body):
    """The messages in one lite topic that a group has not consumed (``LiteLagInfo``)."""

    lite_topic: str
    lag_count: int
    earliest_unconsumed_timestamp: int
    """Store time of the first of them, in milliseconds since 1970."""


class GetLiteGroupInfoResponseBody(Body):
    """Response to GET_LITE_GROUP_INFO (200078)."""

    group: str
    parent_topic: str
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: int = -1
    """Store time of the first message that is not consumed, in milliseconds since 1970, or -1 if there is none."""
    total_lag_count: int = 0
    lite_topic_offset_wrapper: OffsetWrapper | None = None
    lag_count_top_k: list[LiteLagInfo] = []
    lag_timestamp_top_k: list[LiteLagInfo] = []


class LiteTopicInfo(Body):
    """A lite topic in the response to GET_LITE_TOPICS."""

    lite_topic: str
    min_offset: int
    max_offset: int
    last_update_timestamp: int
    """Store time of its last message in milliseconds since 1970, or 0 if it has none."""
    subscribers: int
    """Number of clients that read it."""


class GetLiteTopicsResponseBody(Body):
    """Response to GET_LITE_TOPICS (30048). The order is the broker's own; a page may have few lite topics, or none."""

    lite_topics: list[LiteTopicInfo] = []
    next_position: int = -1
    """Position of the next page, or -1 after the last page."""


class ExpireLiteTopicsResponseBody(Body):
    """Response to EXPIRE_LITE_TOPICS (30049)."""

    removed: int = 0
    read: int = 0
    """Number of lite topics that were kept because a client subscribes to them or holds messages of them."""
    unread: int = 0
    """Number of lite topics that were kept because a group has not read all of their messages."""
    next_position: int = -1
    """Position at which the next request continues, or -1 at the end."""
