"""The bodies of administration requests and responses; see :mod:`cometmq.remoting.bodies`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from cometmq.remoting.bodies import (
    Body,
    DataVersion,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)


class HAConnectionRuntimeInfo(Body):
    """The replication progress of one of a master's slaves (``HARuntimeInfo.HAConnectionRuntimeInfo``)."""

    addr: str
    """The slave's ``host:port`` on the replication connection."""
    slave_ack_offset: int
    """The end of the slave's log, as last reported by the slave."""
    diff: int
    """The number of bytes that the slave has not acknowledged yet."""
    in_sync: bool
    transferred_byte_in_second: int
    transfer_from_where: int
    """The log offset at which the next transfer starts."""
    learner: bool | None = None
    """True for a slave of a set's master that is no member of the set. Apache's brokers omit it."""


class HAClientRuntimeInfo(Body):
    """A slave's replication state (``HARuntimeInfo.HAClientRuntimeInfo``)."""

    master_addr: str | None = None
    """The ``host:port`` from which the slave copies the log. Apache's masters omit this field and the next one."""
    max_offset: int = 0
    """The end of the slave's own log."""
    last_read_timestamp: int = 0
    """The time of the last transfer in milliseconds since 1970, or 0 if there was none."""
    is_activated: bool = False
    """True if the slave is connected to its master."""
    in_sync_timestamp: int = 0
    """The time at which the master last said that this slave is in sync, in milliseconds since 1970, or 0 if it never
    has since this slave started. Only CometMQ's slaves set this field."""


class HARuntimeInfo(Body):
    """A broker's replication state (request code 907, introduced in 5.x)."""

    master: bool
    master_commit_log_max_offset: int
    in_sync_slave_nums: int
    ha_connection_info: list[HAConnectionRuntimeInfo] = []
    ha_client_runtime_info: HAClientRuntimeInfo | None = None
    """The slave's replication state; not set by masters."""


class TopicTimerMetrics(Body):
    """Statistics on one topic's delayed messages (``TimerMetrics.Metric``)."""

    count: int
    time_stamp: int
    first_due_time: int | None = None
    last_due_time: int | None = None
    due_within: dict[int, int] | None = None
    """The number of messages due within each period; keys are periods in seconds."""


class TimerMetrics(Body):
    """Response to GET_TIMER_METRICS (61)."""

    timing_count: dict[str, TopicTimerMetrics] = {}
    data_version: DataVersion | None = None


class GroupList(Body):
    """A list of group names."""

    group_list: list[str] = []


class Connection(Body):
    """A client connected to the broker."""

    client_id: str
    client_addr: str
    language: str
    version: int


class ConsumerConnection(Body):
    """A consumer group's connected members and subscriptions (request code 203)."""

    connection_set: list[Connection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class OpenTransaction(Body):
    """A transaction that has been neither committed nor rolled back."""

    half_offset: int
    """The current offset of the half message in the half queue."""
    group: str
    topic: str
    queue_id: int
    uniq_key: str
    begun: int
    """The time at which the transaction started, in milliseconds since 1970."""
    check_times: int
    immunity_ms: int | None = None
    """The delay before the first check, if the message specifies one."""


class OpenTransactions(Body):
    """Response to GET_OPEN_TRANSACTIONS (30037)."""

    count: int = 0
    """The number of open transactions on the broker."""
    transactions: list[OpenTransaction] = []
    next_offset: int | None = None
    """The offset at which the next page starts; missing on the last page."""


class WaitingMessage(Body):
    """A message with an arbitrary delay that is not due yet."""

    topic: str
    """The topic; ``?`` if the record is damaged."""
    queue_id: int
    due: int
    """The time at which the message is due, in milliseconds since 1970."""
    uniq_key: str
    position: int
    """The message's queue offset in ``rmq_sys_wheel_timer``."""
    size: int
    """The record's size in bytes."""
    born: int
    """The time at which the message was created, in milliseconds since 1970."""


class WaitingMessages(Body):
    """Response to GET_WAITING_MESSAGES (30038), ordered by due time."""

    messages: list[WaitingMessage] = []
    next_due: int | None = None
    """The due time at which the next page starts; missing on the last page."""
    next_position: int | None = None


class ProducerConnection(Body):
    """A producer group's connected members (request code 204)."""

    connection_set: list[Connection] = []


class ProducerInfo(Body):
    """A producer in the response to GET_ALL_PRODUCER_INFO (328)."""

    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int
    last_update_timestamp: int
    is_grpc: bool | None = None
    """True if the producer uses the broker's own gRPC endpoint; otherwise left out, as Apache's brokers do."""


class ProducerTableInfo(Body):
    """All producers by group (request code 328)."""

    data: dict[str, list[ProducerInfo]] = {}


class TopicOffset(Body):
    """A queue's minimum and maximum offset."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int


class TopicStatsTable(Body):
    """The offsets of all queues in a topic (request code 202)."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class OffsetWrapper(Body):
    """A group's progress in one queue."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int | UnsetType = UNSET
    """``consumer_offset`` plus the number of messages in flight, if any, as in RocketMQ 5."""
    visible_again: int | UnsetType = UNSET
    """The earliest time at which one of them becomes visible again, in ms since 1970 (CometMQ only)."""


class ConsumeStats(Body):
    """A group's progress in all its queues (request code 208)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0


class ProgressSumsQuestion(Body):
    """Request body for GET_PROGRESS_SUMS (30041), a CometMQ extension."""

    groups: list[str] = []
    with_topics: bool = False
    """True if the response must include the end offsets of all topics."""


class TopicProgress(msgspec.Struct, array_like=True, frozen=True):
    """A group's progress in one topic, summed over a broker's queues."""

    end: int
    lag: int


class GroupSums(Body):
    """A group's progress by topic."""

    members: int | None = None
    """The number of connected members, or ``None`` if the broker does not report it."""
    consume_tps: float = 0.0
    topics: dict[str, TopicProgress] = {}


class ProgressSums(Body):
    """Response to GET_PROGRESS_SUMS (30041)."""

    groups: dict[str, GroupSums] = {}
    """The progress of the requested groups, as many as fit in a response; the client asks again for the others."""
    topics: dict[str, int] = {}
    """The number of messages that each topic has ever received."""


class GetConsumerStatusBody(Body):
    """The offsets held by clients (request codes 221 and 223)."""

    message_queue_table: dict[MessageQueue, int] = {}
    consumer_table: dict[str, dict[MessageQueue, int]] = {}


class BrokerStatsItem(Body):
    """A statistic over a time window: the sum, the rate per second, and the average per call."""

    sum: int
    tps: float
    avgpt: float


class BrokerStatsData(Body):
    """A statistic for the last minute, hour and day (request code 315)."""

    stats_minute: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_day: BrokerStatsItem


class QueueTimeSpan(Body):
    """A group's message and consumption times in one queue, in milliseconds since 1970 (request code 303)."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int
    min_time_stamp_str: str
    max_time_stamp_str: str
    consume_time_stamp_str: str


class QueryConsumeTimeSpanBody(Body):
    """Response to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(Body):
    """Offsets by queue id (request code 308)."""

    correction_offsets: dict[int, int] = {}


class ConsumeStatsList(Body):
    """The progress of all groups on a broker, by topic (request code 317)."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: int | None = None


class ConsumeQueueData(Body):
    """A unit in a consume queue (request code 321)."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    """Units in a consume queue, and the requested group's subscription (request code 321)."""

    queue_data: list[ConsumeQueueData] = []
    max_queue_index: int = 0
    min_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class MessageQueueForC(Body):
    """A queue and its new offset, in the form that C++ clients read."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


class ProcessQueueInfo(Body):
    """A consumer's state for one queue (request code 307). Times are in milliseconds since 1970; 0 means never."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = msgspec.field(default=False, name="droped")
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class ConsumeStatus(Body):
    """A consumer's rates for one topic (request code 307)."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(Body):
    """A consumer's response to GET_CONSUMER_RUNNING_INFO (307)."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    jstack: str | None = None


class ConsumeMessageDirectlyResult(Body):
    """A consumer's response to CONSUME_MESSAGE_DIRECTLY (309); ``consume_result`` is a constant of Java's
    ``CMResult``.
    """

    order: bool = False
    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    remark: str | None = None
    spent_time_mills: int = 0


class CreateTopicListRequestBody(Body):
    """Request body for UPDATE_AND_CREATE_TOPIC_LIST (18), in which attributes are changes (``+message.type=FIFO``)."""

    topic_config_list: list[TopicConfig] = []


class SubscriptionGroupList(Body):
    """Request body for UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    group_config_list: list[SubscriptionGroupConfig] = []
