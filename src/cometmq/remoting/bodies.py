"""Bodies of requests and answers: the structs that RocketMQ writes as JSON (``common/protocol/body`` and beside it).

Written and read in fastjson's dialect (:mod:`cometmq.fastjson`): numeric keys unquoted, maps keyed by a
:class:`MessageQueue` with that object as the key, null fields left out, fields in alphabetical order.
"""

from __future__ import annotations

import functools
from typing import Any, Final, TypeVar

import msgspec

from cometmq import fastjson
from cometmq.errors import CometMQError
from cometmq.limits import MAX_LOOSE_BODY_BYTES, MAX_PARSED_BODY_BYTES

T = TypeVar("T")


class BodyError(CometMQError):
    """A body is not of the form that its code asks for."""


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all bodies."""


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """One queue of a topic on one broker; orders as RocketMQ's clients sort queues."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} at {self.broker_name}"


class DataVersion(Body):
    """When a table last changed: equal only if both numbers are."""

    counter: int = 0
    state_version: int | None = None
    timestamp: int = 0


class HAConnectionRuntimeInfo(Body):
    """How far one slave of a master is (``HARuntimeInfo.HAConnectionRuntimeInfo``)."""

    addr: str
    """``host:port`` of its side of the connection."""
    slave_ack_offset: int
    """The end of its log, by its last report."""
    diff: int
    """Bytes that it has not reported yet."""
    in_sync: bool
    transferred_byte_in_second: int
    transfer_from_where: int
    """Where the next transfer begins."""


class HAClientRuntimeInfo(Body):
    """What a slave follows (``HARuntimeInfo.HAClientRuntimeInfo``)."""

    master_addr: str
    """``host:port`` that its master's log comes from."""
    max_offset: int
    """The end of its own log."""
    last_read_timestamp: int = 0
    """When it last got something, in ms; 0 for never."""
    is_activated: bool = False
    """Whether there is a connection."""


class HARuntimeInfo(Body):
    """The replication of a broker (907, of 5.x)."""

    master: bool
    master_commit_log_max_offset: int
    in_sync_slave_nums: int
    ha_connection_info: list[HAConnectionRuntimeInfo] = []
    ha_client_runtime_info: HAClientRuntimeInfo | None = None
    """Of a slave."""


class TopicConfig(Body, kw_only=True):
    """The configuration of one topic (``TopicConfig``)."""

    attributes: dict[str, str] | None = None
    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: int = 0
    write_queue_nums: int = 16


class TopicConfigSerializeWrapper(Body):
    """All topics of a broker."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}


class RegisterBrokerBody(Body):
    """What a broker tells a nameserver (103)."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = msgspec.field(
        default_factory=TopicConfigSerializeWrapper
    )


class SubscriptionGroupConfig(Body, kw_only=True):
    """The configuration of one consumer group; defaults are Apache's."""

    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupWrapper(Body):
    """All consumer groups of a broker."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class QueueData(Body):
    """The queues of a topic on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(Body):
    """The addresses of one broker name, by broker id (0 is the master)."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]


class TopicRouteData(Body):
    """Where a topic lives."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None


class ClusterInfo(Body):
    """All brokers and clusters that a nameserver knows."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


ENUMERATIONS: Final = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}
"""Constants in the order of Java's declarations, by the field that holds them; the C++ client sends positions."""


class SubscriptionData(Body):
    """What a consumer wants of one topic."""

    topic: str
    sub_string: str = "*"
    expression_type: str = "TAG"
    sub_version: int = 0
    tags_set: list[str] = []
    code_set: list[int | str] = []
    class_filter_mode: bool = False


class ConsumerData(Body):
    """One consumer group in a heartbeat."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(Body):
    """One producer group in a heartbeat."""

    group_name: str


class HeartbeatData(Body):
    """The body of HEART_BEAT (34)."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []


class KVTable(Body):
    """A table of texts."""

    table: dict[str, str] = {}


class TopicTimerMetrics(Body):
    """Messages of one topic that wait for their time (``TimerMetrics.Metric``); all but the first two are ours."""

    count: int
    time_stamp: int
    first_due_time: int | None = None
    last_due_time: int | None = None
    due_within: dict[int, int] | None = None
    """How many are due within so many seconds."""


class TimerMetrics(Body):
    """Answer to GET_TIMER_METRICS (61)."""

    timing_count: dict[str, TopicTimerMetrics] = {}
    data_version: DataVersion | None = None


class TopicList(Body):
    """Names of topics."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(Body):
    """Names of groups."""

    group_list: list[str] = []


class ConsumerIdList(Body):
    """Answer to GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: list[str] = []


class Connection(Body):
    """One connected client."""

    client_id: str
    client_addr: str
    language: str
    version: int


class ConsumerConnection(Body):
    """Who consumes as a group, and how (203)."""

    connection_set: list[Connection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class OpenTransaction(Body):
    """One transaction that is neither committed nor rolled back."""

    half_offset: int
    """Where its half message stands now in the half queue."""
    group: str
    topic: str
    queue_id: int
    uniq_key: str
    begun: int
    """Milliseconds since 1970."""
    check_times: int
    immunity_ms: int | None = None
    """What the message itself says of the first question."""


class OpenTransactions(Body):
    """Answer to GET_OPEN_TRANSACTIONS (30037)."""

    count: int = 0
    """Of all groups."""
    transactions: list[OpenTransaction] = []
    next_offset: int | None = None
    """Where to go on; missing at the end."""


class WaitingMessage(Body):
    """One message with a delay of its own that waits."""

    topic: str
    """Where it will stand; ``?`` when its record is damaged."""
    queue_id: int
    due: int
    """Milliseconds since 1970."""
    uniq_key: str
    position: int
    """Its queue offset in ``rmq_sys_wheel_timer``."""
    size: int
    """Bytes of its record."""
    born: int
    """Milliseconds since 1970."""


class WaitingMessages(Body):
    """Answer to GET_WAITING_MESSAGES (30038), in the order of due times."""

    messages: list[WaitingMessage] = []
    next_due: int | None = None
    """Where to go on, with the next field; missing at the end."""
    next_position: int | None = None


class ProducerConnection(Body):
    """Who produces as a group (204)."""

    connection_set: list[Connection] = []


class ProducerInfo(Body):
    """One producer in GET_ALL_PRODUCER_INFO (328)."""

    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int
    last_update_timestamp: int


class ProducerTableInfo(Body):
    """All producers by group (328)."""

    data: dict[str, list[ProducerInfo]] = {}


class LockBatchRequestBody(Body):
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(Body):
    """The queues that the asker holds now (41)."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")


class CheckClientRequestBody(Body):
    """CHECK_CLIENT_CONFIG (46)."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class TopicOffset(Body):
    """Offsets of one queue."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int


class TopicStatsTable(Body):
    """Offsets of all queues of a topic (202)."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class OffsetWrapper(Body):
    """How far a group is in one queue."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int


class ConsumeStats(Body):
    """How far a group is (208)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0


class ResetOffsetBody(Body):
    """New offsets by queue (220, 222)."""

    offset_table: dict[MessageQueue, int] = {}


class GetConsumerStatusBody(Body):
    """Offsets that clients hold (221, 223)."""

    message_queue_table: dict[MessageQueue, int] = {}
    consumer_table: dict[str, dict[MessageQueue, int]] = {}


class BrokerStatsItem(Body):
    """One number over one window: how much, per second, per call."""

    sum: int
    tps: float
    avgpt: float


class BrokerStatsData(Body):
    """One number over the last minute, hour and day (315)."""

    stats_minute: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_day: BrokerStatsItem


class QueueTimeSpan(Body):
    """How far back in time a group is in one queue (303); times in ms since 1970, the texts are local."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int
    min_time_stamp_str: str
    max_time_stamp_str: str
    consume_time_stamp_str: str


class QueryConsumeTimeSpanBody(Body):
    """Answer to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(Body):
    """Offsets by queue id (308)."""

    correction_offsets: dict[int, int] = {}


class ConsumeStatsList(Body):
    """How far every group of a broker is, topic by topic (317)."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: int | None = None


class ConsumeQueueData(Body):
    """One unit of a consume queue (321)."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    """Units of a consume queue, and the subscription of the group that was named (321)."""

    queue_data: list[ConsumeQueueData] = []
    max_queue_index: int = 0
    min_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class MessageQueueForC(Body):
    """One queue with its new offset, as clients in C++ read it."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


class ResetOffsetBodyForC(Body):
    """New offsets as a list (220, 222 when the client is written in C++)."""

    offset_table: list[MessageQueueForC] = []


class ProcessQueueInfo(Body):
    """One queue as the consumer that reads it sees it (307); times in ms since 1970, 0 for never."""

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
    """How fast a consumer reads and consumes one topic (307)."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(Body):
    """Answer of a consumer to GET_CONSUMER_RUNNING_INFO (307)."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    jstack: str | None = None


class ConsumeMessageDirectlyResult(Body):
    """Answer of a consumer to CONSUME_MESSAGE_DIRECTLY (309); ``consume_result`` is one of Java's ``CMResult``."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    remark: str | None = None
    spent_time_mills: int = 0


class ConsumerOffsetSerializeWrapper(Body):
    """All consumer offsets: ``topic@group`` → queue id → offset (43, ``consumerOffset.json``)."""

    offset_table: dict[str, dict[int, int]] = {}


class DelayOffsetSerializeWrapper(Body):
    """How far each delay level is delivered: level → offset of its queue (45, ``delayOffset.json``)."""

    offset_table: dict[int, int] = {}


@functools.cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """``(name in JSON, attribute)`` of a struct's fields, sorted."""
    return tuple(sorted((info.encode_name, info.name) for info in msgspec.structs.fields(kind)))


def to_builtins(body: Any) -> Any:
    """A body as plain maps and lists, null fields left out and keys sorted, ready for fastjson."""
    if isinstance(body, msgspec.Struct):
        fields = ((written, getattr(body, name)) for written, name in _fields_of(type(body)))
        return {written: to_builtins(value) for written, value in fields if value is not None}
    if isinstance(body, dict):
        if any(isinstance(key, msgspec.Struct) for key in body):
            return fastjson.ObjectKeyMap((to_builtins(key), to_builtins(value)) for key, value in body.items())
        return {key: to_builtins(value) for key, value in body.items()}
    if isinstance(body, (list, tuple, set, frozenset)):
        return [to_builtins(item) for item in body]
    return body


def encode_body(body: Any) -> bytes:
    """The body as compact fastjson."""
    return fastjson.dumps(to_builtins(body))


def encode_table(body: TopicConfigSerializeWrapper | SubscriptionGroupWrapper | RegisterBrokerBody) -> bytes:
    """As :func:`encode_body`, 100 times as fast: 10,000 topics take 1 ms.

    Their fields are declared in the order of their names, and only two may be null. What is removed here stands in no
    string, where each quote has a backslash before it.
    """
    text = msgspec.json.encode(body)
    return text.replace(b'"attributes":null,', b"").replace(b'"stateVersion":null,', b"")


def encode_json(body: Any) -> bytes:
    """The body as compact strict JSON, numeric keys quoted; for bodies without maps keyed by queues."""
    return msgspec.json.encode(to_builtins(body))


def decode_body(kind: type[T], data: bytes) -> T:
    """A body of the given kind from fastjson or JSON text.

    :raises BodyError: the text is neither, a field is missing, or not of its type.
    """
    return _decode(kind, data, None)


def decode_request(kind: type[T], data: bytes, max_bytes: int) -> T:
    """The body of a request from anybody: it may be malformed in every way, and others wait while it is read.

    Strict JSON takes about 10 ms a MB. What needs a closer look (a null for a missing value, the position of an
    enumeration's constant) is taken up to MAX_LOOSE_BODY_BYTES, what is no strict JSON up to MAX_PARSED_BODY_BYTES.

    :raises BodyError: as :func:`decode_body`; or it has more than ``max_bytes``.
    """
    if len(data) > max_bytes:
        raise BodyError(f"{kind.__name__}: {len(data)} bytes; at most {max_bytes} are taken")
    try:
        body: T = _strict_decoder(kind).decode(data)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if len(data) > MAX_LOOSE_BODY_BYTES:
            raise BodyError(f"{kind.__name__}: {error}") from error
    else:
        return body
    return _decode(kind, data, MAX_PARSED_BODY_BYTES)


@functools.cache
def _strict_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=False)


def _decode(kind: type[T], data: bytes, max_parsed_bytes: int | None) -> T:
    try:
        parsed = fastjson.loads(data, max_parsed_bytes=max_parsed_bytes)
        return msgspec.convert(_without_nulls(parsed), kind, strict=False)
    except (msgspec.ValidationError, fastjson.FastjsonError, TypeError) as error:
        raise BodyError(f"{kind.__name__}: {error}") from error
    except RecursionError as error:
        raise BodyError(f"{kind.__name__}: nested too deeply") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, fastjson.ObjectKeyMap):
        return {msgspec.convert(key, MessageQueue, strict=False): _without_nulls(item) for key, item in value}
    if isinstance(value, dict):
        return {key: _constant(key, _without_nulls(item)) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _constant(key: str, value: Any) -> Any:
    """The name of an enumeration's constant that was given by its position, as fastjson reads it too."""
    constants = ENUMERATIONS.get(key)
    if constants is not None and isinstance(value, int) and 0 <= value < len(constants):
        return constants[value]
    return value
