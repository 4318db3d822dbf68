from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from enum import IntEnum
from typing import Generic, Self, TypeVar

T = TypeVar("T")

class Repeated(Generic[T]):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T]: ...
    def __getitem__(self, index: int) -> T: ...
    def append(self, value: T) -> None: ...
    def extend(self, values: Iterable[T]) -> None: ...
    def add(self) -> T: ...

class ProtoMessage:
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...
    def SerializeToString(self) -> bytes: ...
    def CopyFrom(self, other: Self) -> None: ...
    def HasField(self, name: str) -> bool: ...
    def WhichOneof(self, name: str) -> str | None: ...
    def ClearField(self, name: str) -> None: ...
    def ByteSize(self) -> int: ...

class TransactionResolution(IntEnum):
    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2

class TransactionSource(IntEnum):
    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2

class Permission(IntEnum):
    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4

class FilterType(IntEnum):
    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2

class AddressScheme(IntEnum):
    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3

class MessageType(IntEnum):
    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6

class DigestType(IntEnum):
    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3

class ClientType(IntEnum):
    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6

class Encoding(IntEnum):
    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2

class Code(IntEnum):
    CODE_UNSPECIFIED = 0
    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    UNAUTHORIZED = 40100
    PAYMENT_REQUIRED = 40200
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    REQUEST_TIMEOUT = 40800
    PAYLOAD_TOO_LARGE = 41300
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    REQUEST_HEADER_FIELDS_TOO_LARGE = 43100
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_ERROR = 50000
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500
    VERSION_UNSUPPORTED = 50501
    VERIFY_FIFO_MESSAGE_UNSUPPORTED = 50502
    FAILED_TO_CONSUME_MESSAGE = 60000

class Language(IntEnum):
    LANGUAGE_UNSPECIFIED = 0
    JAVA = 1
    CPP = 2
    DOT_NET = 3
    GOLANG = 4
    RUST = 5
    PYTHON = 6
    PHP = 7
    NODE_JS = 8
    RUBY = 9
    OBJECTIVE_C = 10
    DART = 11
    KOTLIN = 12

class LiteSubscriptionAction(IntEnum):
    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3

class QueryOffsetPolicy(IntEnum):
    BEGINNING = 0
    END = 1
    TIMESTAMP = 2

class OffsetOptionPolicy(IntEnum):
    LAST = 0
    MIN = 1
    MAX = 2

class Duration(ProtoMessage):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int | None = ..., nanos: int | None = ...) -> None: ...

class Timestamp(ProtoMessage):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int | None = ..., nanos: int | None = ...) -> None: ...

class FilterExpression(ProtoMessage):
    type: int
    expression: str
    def __init__(self, *, type: int | None = ..., expression: str | None = ...) -> None: ...

class RetryPolicy(ProtoMessage):
    max_attempts: int
    exponential_backoff: ExponentialBackoff
    customized_backoff: CustomizedBackoff
    def __init__(
        self,
        *,
        max_attempts: int | None = ...,
        exponential_backoff: ExponentialBackoff | None = ...,
        customized_backoff: CustomizedBackoff | None = ...,
    ) -> None: ...

class ExponentialBackoff(ProtoMessage):
    initial: Duration
    max: Duration
    multiplier: float
    def __init__(
        self, *, initial: Duration | None = ..., max: Duration | None = ..., multiplier: float | None = ...
    ) -> None: ...

class CustomizedBackoff(ProtoMessage):
    next: Repeated[Duration]
    def __init__(self, *, next: Iterable[Duration] | None = ...) -> None: ...

class Resource(ProtoMessage):
    resource_namespace: str
    name: str
    def __init__(self, *, resource_namespace: str | None = ..., name: str | None = ...) -> None: ...

class SubscriptionEntry(ProtoMessage):
    topic: Resource
    expression: FilterExpression
    def __init__(self, *, topic: Resource | None = ..., expression: FilterExpression | None = ...) -> None: ...

class Address(ProtoMessage):
    host: str
    port: int
    def __init__(self, *, host: str | None = ..., port: int | None = ...) -> None: ...

class Endpoints(ProtoMessage):
    scheme: int
    addresses: Repeated[Address]
    def __init__(self, *, scheme: int | None = ..., addresses: Iterable[Address] | None = ...) -> None: ...

class Broker(ProtoMessage):
    name: str
    id: int
    endpoints: Endpoints
    def __init__(self, *, name: str | None = ..., id: int | None = ..., endpoints: Endpoints | None = ...) -> None: ...

class MessageQueue(ProtoMessage):
    topic: Resource
    id: int
    permission: int
    broker: Broker
    accept_message_types: Repeated[int]
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        id: int | None = ...,
        permission: int | None = ...,
        broker: Broker | None = ...,
        accept_message_types: Iterable[int] | None = ...,
    ) -> None: ...

class Digest(ProtoMessage):
    type: int
    checksum: str
    def __init__(self, *, type: int | None = ..., checksum: str | None = ...) -> None: ...

class SystemProperties(ProtoMessage):
    tag: str
    keys: Repeated[str]
    message_id: str
    body_digest: Digest
    body_encoding: int
    message_type: int
    born_timestamp: Timestamp
    born_host: str
    store_timestamp: Timestamp
    store_host: str
    delivery_timestamp: Timestamp
    receipt_handle: str
    queue_id: int
    queue_offset: int
    invisible_duration: Duration
    delivery_attempt: int
    message_group: str
    trace_context: str
    orphaned_transaction_recovery_duration: Duration
    dead_letter_queue: DeadLetterQueue
    lite_topic: str
    priority: int
    def __init__(
        self,
        *,
        tag: str | None = ...,
        keys: Iterable[str] | None = ...,
        message_id: str | None = ...,
        body_digest: Digest | None = ...,
        body_encoding: int | None = ...,
        message_type: int | None = ...,
        born_timestamp: Timestamp | None = ...,
        born_host: str | None = ...,
        store_timestamp: Timestamp | None = ...,
        store_host: str | None = ...,
        delivery_timestamp: Timestamp | None = ...,
        receipt_handle: str | None = ...,
        queue_id: int | None = ...,
        queue_offset: int | None = ...,
        invisible_duration: Duration | None = ...,
        delivery_attempt: int | None = ...,
        message_group: str | None = ...,
        trace_context: str | None = ...,
        orphaned_transaction_recovery_duration: Duration | None = ...,
        dead_letter_queue: DeadLetterQueue | None = ...,
        lite_topic: str | None = ...,
        priority: int | None = ...,
    ) -> None: ...

class DeadLetterQueue(ProtoMessage):
    topic: str
    message_id: str
    def __init__(self, *, topic: str | None = ..., message_id: str | None = ...) -> None: ...

class Message(ProtoMessage):
    topic: Resource
    user_properties: MutableMapping[str, str]
    system_properties: SystemProperties
    body: bytes
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        user_properties: Mapping[str, str] | None = ...,
        system_properties: SystemProperties | None = ...,
        body: bytes | None = ...,
    ) -> None: ...

class Assignment(ProtoMessage):
    message_queue: MessageQueue
    def __init__(self, *, message_queue: MessageQueue | None = ...) -> None: ...

class Status(ProtoMessage):
    code: int
    message: str
    def __init__(self, *, code: int | None = ..., message: str | None = ...) -> None: ...

class UA(ProtoMessage):
    language: int
    version: str
    platform: str
    hostname: str
    def __init__(
        self,
        *,
        language: int | None = ...,
        version: str | None = ...,
        platform: str | None = ...,
        hostname: str | None = ...,
    ) -> None: ...

class Settings(ProtoMessage):
    client_type: int
    access_point: Endpoints
    backoff_policy: RetryPolicy
    request_timeout: Duration
    publishing: Publishing
    subscription: Subscription
    user_agent: UA
    metric: Metric
    def __init__(
        self,
        *,
        client_type: int | None = ...,
        access_point: Endpoints | None = ...,
        backoff_policy: RetryPolicy | None = ...,
        request_timeout: Duration | None = ...,
        publishing: Publishing | None = ...,
        subscription: Subscription | None = ...,
        user_agent: UA | None = ...,
        metric: Metric | None = ...,
    ) -> None: ...

class Publishing(ProtoMessage):
    topics: Repeated[Resource]
    max_body_size: int
    validate_message_type: bool
    def __init__(
        self,
        *,
        topics: Iterable[Resource] | None = ...,
        max_body_size: int | None = ...,
        validate_message_type: bool | None = ...,
    ) -> None: ...

class Subscription(ProtoMessage):
    group: Resource
    subscriptions: Repeated[SubscriptionEntry]
    fifo: bool
    receive_batch_size: int
    long_polling_timeout: Duration
    lite_subscription_quota: int
    max_lite_topic_size: int
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        subscriptions: Iterable[SubscriptionEntry] | None = ...,
        fifo: bool | None = ...,
        receive_batch_size: int | None = ...,
        long_polling_timeout: Duration | None = ...,
        lite_subscription_quota: int | None = ...,
        max_lite_topic_size: int | None = ...,
    ) -> None: ...

class Metric(ProtoMessage):
    on: bool
    endpoints: Endpoints
    def __init__(self, *, on: bool | None = ..., endpoints: Endpoints | None = ...) -> None: ...

class OffsetOption(ProtoMessage):
    policy: int
    offset: int
    tail_n: int
    timestamp: int
    def __init__(
        self,
        *,
        policy: int | None = ...,
        offset: int | None = ...,
        tail_n: int | None = ...,
        timestamp: int | None = ...,
    ) -> None: ...

class QueryRouteRequest(ProtoMessage):
    topic: Resource
    endpoints: Endpoints
    def __init__(self, *, topic: Resource | None = ..., endpoints: Endpoints | None = ...) -> None: ...

class QueryRouteResponse(ProtoMessage):
    status: Status
    message_queues: Repeated[MessageQueue]
    def __init__(self, *, status: Status | None = ..., message_queues: Iterable[MessageQueue] | None = ...) -> None: ...

class SendMessageRequest(ProtoMessage):
    messages: Repeated[Message]
    def __init__(self, *, messages: Iterable[Message] | None = ...) -> None: ...

class SendResultEntry(ProtoMessage):
    status: Status
    message_id: str
    transaction_id: str
    offset: int
    recall_handle: str
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message_id: str | None = ...,
        transaction_id: str | None = ...,
        offset: int | None = ...,
        recall_handle: str | None = ...,
    ) -> None: ...

class SendMessageResponse(ProtoMessage):
    status: Status
    entries: Repeated[SendResultEntry]
    def __init__(self, *, status: Status | None = ..., entries: Iterable[SendResultEntry] | None = ...) -> None: ...

class QueryAssignmentRequest(ProtoMessage):
    topic: Resource
    group: Resource
    endpoints: Endpoints
    def __init__(
        self, *, topic: Resource | None = ..., group: Resource | None = ..., endpoints: Endpoints | None = ...
    ) -> None: ...

class QueryAssignmentResponse(ProtoMessage):
    status: Status
    assignments: Repeated[Assignment]
    def __init__(self, *, status: Status | None = ..., assignments: Iterable[Assignment] | None = ...) -> None: ...

class ReceiveMessageRequest(ProtoMessage):
    group: Resource
    message_queue: MessageQueue
    filter_expression: FilterExpression
    batch_size: int
    invisible_duration: Duration
    auto_renew: bool
    long_polling_timeout: Duration
    attempt_id: str
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
        filter_expression: FilterExpression | None = ...,
        batch_size: int | None = ...,
        invisible_duration: Duration | None = ...,
        auto_renew: bool | None = ...,
        long_polling_timeout: Duration | None = ...,
        attempt_id: str | None = ...,
    ) -> None: ...

class ReceiveMessageResponse(ProtoMessage):
    status: Status
    message: Message
    delivery_timestamp: Timestamp
    def __init__(
        self, *, status: Status | None = ..., message: Message | None = ..., delivery_timestamp: Timestamp | None = ...
    ) -> None: ...

class AckMessageEntry(ProtoMessage):
    message_id: str
    receipt_handle: str
    lite_topic: str
    def __init__(
        self, *, message_id: str | None = ..., receipt_handle: str | None = ..., lite_topic: str | None = ...
    ) -> None: ...

class AckMessageRequest(ProtoMessage):
    group: Resource
    topic: Resource
    entries: Repeated[AckMessageEntry]
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        entries: Iterable[AckMessageEntry] | None = ...,
    ) -> None: ...

class AckMessageResultEntry(ProtoMessage):
    message_id: str
    receipt_handle: str
    status: Status
    def __init__(
        self, *, message_id: str | None = ..., receipt_handle: str | None = ..., status: Status | None = ...
    ) -> None: ...

class AckMessageResponse(ProtoMessage):
    status: Status
    entries: Repeated[AckMessageResultEntry]
    def __init__(
        self, *, status: Status | None = ..., entries: Iterable[AckMessageResultEntry] | None = ...
    ) -> None: ...

class ForwardMessageToDeadLetterQueueRequest(ProtoMessage):
    group: Resource
    topic: Resource
    receipt_handle: str
    message_id: str
    delivery_attempt: int
    max_delivery_attempts: int
    lite_topic: str
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        receipt_handle: str | None = ...,
        message_id: str | None = ...,
        delivery_attempt: int | None = ...,
        max_delivery_attempts: int | None = ...,
        lite_topic: str | None = ...,
    ) -> None: ...

class ForwardMessageToDeadLetterQueueResponse(ProtoMessage):
    status: Status
    def __init__(self, *, status: Status | None = ...) -> None: ...

class HeartbeatRequest(ProtoMessage):
    group: Resource
    client_type: int
    def __init__(self, *, group: Resource | None = ..., client_type: int | None = ...) -> None: ...

class HeartbeatResponse(ProtoMessage):
    status: Status
    def __init__(self, *, status: Status | None = ...) -> None: ...

class EndTransactionRequest(ProtoMessage):
    topic: Resource
    message_id: str
    transaction_id: str
    resolution: int
    source: int
    trace_context: str
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        message_id: str | None = ...,
        transaction_id: str | None = ...,
        resolution: int | None = ...,
        source: int | None = ...,
        trace_context: str | None = ...,
    ) -> None: ...

class EndTransactionResponse(ProtoMessage):
    status: Status
    def __init__(self, *, status: Status | None = ...) -> None: ...

class PrintThreadStackTraceCommand(ProtoMessage):
    nonce: str
    def __init__(self, *, nonce: str | None = ...) -> None: ...

class ReconnectEndpointsCommand(ProtoMessage):
    nonce: str
    def __init__(self, *, nonce: str | None = ...) -> None: ...

class ThreadStackTrace(ProtoMessage):
    nonce: str
    thread_stack_trace: str
    def __init__(self, *, nonce: str | None = ..., thread_stack_trace: str | None = ...) -> None: ...

class VerifyMessageCommand(ProtoMessage):
    nonce: str
    message: Message
    def __init__(self, *, nonce: str | None = ..., message: Message | None = ...) -> None: ...

class VerifyMessageResult(ProtoMessage):
    nonce: str
    def __init__(self, *, nonce: str | None = ...) -> None: ...

class RecoverOrphanedTransactionCommand(ProtoMessage):
    message: Message
    transaction_id: str
    def __init__(self, *, message: Message | None = ..., transaction_id: str | None = ...) -> None: ...

class NotifyUnsubscribeLiteCommand(ProtoMessage):
    lite_topic: str
    def __init__(self, *, lite_topic: str | None = ...) -> None: ...

class TelemetryCommand(ProtoMessage):
    status: Status
    settings: Settings
    thread_stack_trace: ThreadStackTrace
    verify_message_result: VerifyMessageResult
    recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand
    print_thread_stack_trace_command: PrintThreadStackTraceCommand
    verify_message_command: VerifyMessageCommand
    reconnect_endpoints_command: ReconnectEndpointsCommand
    notify_unsubscribe_lite_command: NotifyUnsubscribeLiteCommand
    def __init__(
        self,
        *,
        status: Status | None = ...,
        settings: Settings | None = ...,
        thread_stack_trace: ThreadStackTrace | None = ...,
        verify_message_result: VerifyMessageResult | None = ...,
        recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand | None = ...,
        print_thread_stack_trace_command: PrintThreadStackTraceCommand | None = ...,
        verify_message_command: VerifyMessageCommand | None = ...,
        reconnect_endpoints_command: ReconnectEndpointsCommand | None = ...,
        notify_unsubscribe_lite_command: NotifyUnsubscribeLiteCommand | None = ...,
    ) -> None: ...

class NotifyClientTerminationRequest(ProtoMessage):
    group: Resource
    def __init__(self, *, group: Resource | None = ...) -> None: ...

class NotifyClientTerminationResponse(ProtoMessage):
    status: Status
    def __init__(self, *, status: Status | None = ...) -> None: ...

class ChangeInvisibleDurationRequest(ProtoMessage):
    group: Resource
    topic: Resource
    receipt_handle: str
    invisible_duration: Duration
    message_id: str
    lite_topic: str
    suspend: bool
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        receipt_handle: str | None = ...,
        invisible_duration: Duration | None = ...,
        message_id: str | None = ...,
        lite_topic: str | None = ...,
        suspend: bool | None = ...,
    ) -> None: ...

class ChangeInvisibleDurationResponse(ProtoMessage):
    status: Status
    receipt_handle: str
    def __init__(self, *, status: Status | None = ..., receipt_handle: str | None = ...) -> None: ...

class PullMessageRequest(ProtoMessage):
    group: Resource
    message_queue: MessageQueue
    offset: int
    batch_size: int
    filter_expression: FilterExpression
    long_polling_timeout: Duration
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
        offset: int | None = ...,
        batch_size: int | None = ...,
        filter_expression: FilterExpression | None = ...,
        long_polling_timeout: Duration | None = ...,
    ) -> None: ...

class PullMessageResponse(ProtoMessage):
    status: Status
    message: Message
    next_offset: int
    def __init__(
        self, *, status: Status | None = ..., message: Message | None = ..., next_offset: int | None = ...
    ) -> None: ...

class UpdateOffsetRequest(ProtoMessage):
    group: Resource
    message_queue: MessageQueue
    offset: int
    def __init__(
        self, *, group: Resource | None = ..., message_queue: MessageQueue | None = ..., offset: int | None = ...
    ) -> None: ...

class UpdateOffsetResponse(ProtoMessage):
    status: Status
    def __init__(self, *, status: Status | None = ...) -> None: ...

class GetOffsetRequest(ProtoMessage):
    group: Resource
    message_queue: MessageQueue
    def __init__(self, *, group: Resource | None = ..., message_queue: MessageQueue | None = ...) -> None: ...

class GetOffsetResponse(ProtoMessage):
    status: Status
    offset: int
    def __init__(self, *, status: Status | None = ..., offset: int | None = ...) -> None: ...

class QueryOffsetRequest(ProtoMessage):
    message_queue: MessageQueue
    query_offset_policy: int
    timestamp: Timestamp
    def __init__(
        self,
        *,
        message_queue: MessageQueue | None = ...,
        query_offset_policy: int | None = ...,
        timestamp: Timestamp | None = ...,
    ) -> None: ...

class QueryOffsetResponse(ProtoMessage):
    status: Status
    offset: int
    def __init__(self, *, status: Status | None = ..., offset: int | None = ...) -> None: ...

class RecallMessageRequest(ProtoMessage):
    topic: Resource
    recall_handle: str
    def __init__(self, *, topic: Resource | None = ..., recall_handle: str | None = ...) -> None: ...

class RecallMessageResponse(ProtoMessage):
    status: Status
    message_id: str
    def __init__(self, *, status: Status | None = ..., message_id: str | None = ...) -> None: ...

class SyncLiteSubscriptionRequest(ProtoMessage):
    action: int
    topic: Resource
    group: Resource
    lite_topic_set: Repeated[str]
    version: int
    offset_option: OffsetOption
    def __init__(
        self,
        *,
        action: int | None = ...,
        topic: Resource | None = ...,
        group: Resource | None = ...,
        lite_topic_set: Iterable[str] | None = ...,
        version: int | None = ...,
        offset_option: OffsetOption | None = ...,
    ) -> None: ...

class SyncLiteSubscriptionResponse(ProtoMessage):
    status: Status
    def __init__(self, *, status: Status | None = ...) -> None: ...
