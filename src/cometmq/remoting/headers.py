"""Typed headers: the content of ``extFields``, with one struct for each kind of request or response.

Field names are RocketMQ's names in snake_case; on the wire they have RocketMQ's spelling (``common/protocol/header``).
Values are sent as text; fields that are ``None`` are omitted. Unknown fields are ignored, as in Apache, so that newer
clients work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from cometmq.errors import CometMQError


class HeaderError(CometMQError):
    """A required header field is missing, or a field has the wrong type."""

    @classmethod
    def of_text(cls, error: UnicodeEncodeError) -> HeaderError:
        """Return the error for a text that cannot be encoded as UTF-8."""
        return cls(
            f"the request contains {error.object[error.start]!a}, which is only half of a character",
            next_step="remove it, or use the complete character",
        )


class Header(msgspec.Struct, rename="camel"):
    """Base class for all typed headers."""


class NoHeader(Header):
    """The header for request codes that have no fields."""


H = TypeVar("H", bound=Header)

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Java's ``int``; larger numbers in requests are rejected."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Java's ``long``."""


def to_ext(header: Header) -> dict[str, str]:
    """Encode a header's fields as text, leaving out fields that are ``None``."""
    fields: dict[str, Any] = msgspec.to_builtins(header)
    return {name: as_text(value) for name, value in fields.items() if value is not None}


def as_text(value: object) -> str:
    """Encode a field as Java does, with booleans in lower case."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


def from_ext(kind: type[H], ext_fields: Mapping[str, str]) -> H:
    """Decode a typed header.

    :raises HeaderError: a field is missing or has the wrong type; the message names the field.
    """
    try:
        return msgspec.convert(ext_fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise HeaderError(f"{kind.__name__}: {error}") from error


class CheckTransactionStateRequestHeader(Header):
    """Request header for CHECK_TRANSACTION_STATE (39), with which a broker asks a producer about a half message."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ConsumerSendMsgBackRequestHeader(Header):
    """Request header for CONSUMER_SEND_MSG_BACK (36), which has a message redelivered later."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class EndTransactionRequestHeader(Header):
    """Request header for END_TRANSACTION (37): commit (8), roll back (12), or report an unknown outcome (0)."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool | None = None
    transaction_id: str | None = None


class GetConsumerListByGroupRequestHeader(Header):
    """Request header for GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


class GetEarliestMsgStoretimeRequestHeader(Header):
    """Request header for GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(Header):
    """Response header for GET_EARLIEST_MSG_STORETIME (32): milliseconds since 1970, or -1 if the queue is empty."""

    timestamp: Int64


class GetMaxOffsetRequestHeader(Header):
    """Request header for GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: Int32


class GetMaxOffsetResponseHeader(Header):
    """Response header for GET_MAX_OFFSET (30), with the offset that the next message will get."""

    offset: Int64


class GetMinOffsetRequestHeader(Header):
    """Request header for GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int32


class GetMinOffsetResponseHeader(Header):
    """Response header for GET_MIN_OFFSET (31)."""

    offset: Int64


class NotifyConsumerIdsChangedRequestHeader(Header):
    """Request header for NOTIFY_CONSUMER_IDS_CHANGED (40), which a broker sends to clients."""

    consumer_group: str


class OpenProducerRequestHeader(Header):
    """Request header for OPEN_PRODUCER (20001), a CometMQ extension; ``batch`` identifies the work to send or
    resend.
    """

    producer: str
    batch: Int64


class OpenProducerResponseHeader(Header):
    """Response header for OPEN_PRODUCER (20001); the body is a ``ProducerLanes``."""

    epoch: Int64


class GetStoreFileRequestHeader(Header):
    """Request header for GET_STORE_FILE (30039), a CometMQ extension that reads a file in a master's store."""

    file: str
    offset: Int64
    length: Int32


class GetStoreFileResponseHeader(Header):
    """Response header for GET_STORE_FILE (30039); the body contains the bytes."""

    size: Int64
    """The size of the complete file in bytes."""
    version: str
    """A value that changes when the file is replaced."""


class GetTableChangesRequestHeader(Header):
    """Request header for GET_TABLE_CHANGES (30040), a CometMQ extension that reads recently changed rows."""

    table: str
    since: str = ""
    """The mark of the last copy; empty for the first copy."""
    part: int = 0
    parts: int = 1
    """Number of parts in which a slave copies a large table; ``part`` is the number of the requested one, from 0."""


class GetTableChangesResponseHeader(Header):
    """Response header for GET_TABLE_CHANGES (30040); the body contains one row per line."""

    mark: str
    whole: bool
    """True if the body contains all rows, not only the changed ones."""
    parts: int = 1
    """Number of parts of the complete table, of which the body contains the requested one."""


class SetUsersHeader(Header):
    """Request and response header for GET_SET_USERS (30045), a CometMQ extension for the members of a set."""

    version: str = ""
    """A value that changes with each change of a user: in the request, that of the last copy."""


class SetCopyRequestHeader(Header):
    """Request header for GET_SET_ACCOUNTS (30046) and GET_SET_KEYS (30047), by which the members of a set copy."""

    version: str = ""
    """A digest of what the member has."""
    account: str = ""
    """The account with whose secret key the answer is encrypted, if it contains secrets."""


class SetCopyResponseHeader(Header):
    """Response header for GET_SET_ACCOUNTS (30046) and GET_SET_KEYS (30047)."""

    version: str
    """A digest of what the master has. If it is the member's, the body is empty."""
    epoch: Int64
    """The epoch in which the master serves."""


class PullMessageRequestHeader(Header):
    """Request header for PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361); sysFlag is a PullSysFlag."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


class PullMessageResponseHeader(Header):
    """Response header for PULL_MESSAGE (11); all four fields are always set."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


class QueryConsumerOffsetRequestHeader(Header):
    """Request header for QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(Header):
    """Response header for QUERY_CONSUMER_OFFSET (14)."""

    offset: Int64


class QueryMessageRequestHeader(Header):
    """Request header for QUERY_MESSAGE (12): query by key, or by unique key if ``unique_key_query`` is set."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")


class QueryMessageResponseHeader(Header):
    """Response header for QUERY_MESSAGE (12)."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class RecallMessageRequestHeader(Header):
    """Request header for RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(Header):
    """Response header for RECALL_MESSAGE (370), with the unique key of the recalled message."""

    msg_id: str


class ReplyMessageRequestHeader(Header):
    """Request header for PUSH_REPLY_MESSAGE_TO_CLIENT (326), which a broker sends to a producer."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False


LOWER: Final = "LOWER"
UPPER: Final = "UPPER"
"""Boundary types for searches by time (``BoundaryType``).

``LOWER`` finds the first message stored at or after a time; ``UPPER`` finds the last one stored at or before it.
"""


class SearchOffsetRequestHeader(Header):
    """Request header for SEARCH_OFFSET_BY_TIMESTAMP (29), which finds the offset for a timestamp in milliseconds."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    """The boundary type, :data:`LOWER` or :data:`UPPER`; introduced in 5.x and ignored by 4.9."""


class SearchOffsetResponseHeader(Header):
    """Response header for SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    offset: Int64


class SendMessageRequestHeader(Header):
    """Request header for SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None


class SendMessageRequestHeaderV2(Header):
    """Request header for SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and SEND_REPLY_MESSAGE_V2 (325)."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: Int32 = msgspec.field(name="d")
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(default=None, name="i")
    reconsume_times: Int32 | None = msgspec.field(default=None, name="j")
    unit_mode: bool = msgspec.field(default=False, name="k")
    max_reconsume_times: Int32 | None = msgspec.field(default=None, name="l")
    batch: bool = msgspec.field(default=False, name="m")
    broker_name: str | None = msgspec.field(default=None, name="n")


class SendMessageResponseHeader(Header):
    """Response header for all sends; ``msgId`` is the offset id, or for a batch all offset ids separated by commas."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    recall_handle: str | None = None
    """The handle of a delayed message, for RECALL_MESSAGE (370)."""


class UnregisterClientRequestHeader(Header):
    """Request header for UNREGISTER_CLIENT (35)."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class UpdateConsumerOffsetRequestHeader(Header):
    """Request header for UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class ViewMessageRequestHeader(Header):
    """Request header for VIEW_MESSAGE_BY_ID (33), with the log offset from an offset id."""

    offset: Int64


class GetRouteInfoRequestHeader(Header):
    """Request header for GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None
