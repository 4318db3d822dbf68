"""Messages and enumerations of apache.rocketmq.v2. Written by scripts/proto_types."""

from __future__ import annotations

from enum import IntEnum

from cometmq.proxy.protocol.schema import message_class


class TransactionResolution(IntEnum):
    """``TransactionResolution``."""

    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class TransactionSource(IntEnum):
    """``TransactionSource``."""

    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2


class Permission(IntEnum):
    """``Permission``."""

    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class FilterType(IntEnum):
    """``FilterType``."""

    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class AddressScheme(IntEnum):
    """``AddressScheme``."""

    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3


class MessageType(IntEnum):
    """``MessageType``."""

    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class DigestType(IntEnum):
    """``DigestType``."""

    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class ClientType(IntEnum):
    """``ClientType``."""

    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class Encoding(IntEnum):
    """``Encoding``."""

    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class Code(IntEnum):
    """``Code``."""

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
    """``Language``."""

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
    """``LiteSubscriptionAction``."""

    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3


class QueryOffsetPolicy(IntEnum):
    """``QueryOffsetPolicy``."""

    BEGINNING = 0
    END = 1
    TIMESTAMP = 2


class OffsetOptionPolicy(IntEnum):
    """``OffsetOptionPolicy``."""

    LAST = 0
    MIN = 1
    MAX = 2


Duration = message_class("google.protobuf.Duration")
Timestamp = message_class("google.protobuf.Timestamp")
FilterExpression = message_class("apache.rocketmq.v2.FilterExpression")
RetryPolicy = message_class("apache.rocketmq.v2.RetryPolicy")
ExponentialBackoff = message_class("apache.rocketmq.v2.ExponentialBackoff")
CustomizedBackoff = message_class("apache.rocketmq.v2.CustomizedBackoff")
Resource = message_class("apache.rocketmq.v2.Resource")
SubscriptionEntry = message_class("apache.rocketmq.v2.SubscriptionEntry")
Address = message_class("apache.rocketmq.v2.Address")
Endpoints = message_class("apache.rocketmq.v2.Endpoints")
Broker = message_class("apache.rocketmq.v2.Broker")
MessageQueue = message_class("apache.rocketmq.v2.MessageQueue")
Digest = message_class("apache.rocketmq.v2.Digest")
SystemProperties = message_class("apache.rocketmq.v2.SystemProperties")
DeadLetterQueue = message_class("apache.rocketmq.v2.DeadLetterQueue")
Message = message_class("apache.rocketmq.v2.Message")
Assignment = message_class("apache.rocketmq.v2.Assignment")
Status = message_class("apache.rocketmq.v2.Status")
UA = message_class("apache.rocketmq.v2.UA")
Settings = message_class("apache.rocketmq.v2.Settings")
Publishing = message_class("apache.rocketmq.v2.Publishing")
Subscription = message_class("apache.rocketmq.v2.Subscription")
Metric = message_class("apache.rocketmq.v2.Metric")
OffsetOption = message_class("apache.rocketmq.v2.OffsetOption")
QueryRouteRequest = message_class("apache.rocketmq.v2.QueryRouteRequest")
QueryRouteResponse = message_class("apache.rocketmq.v2.QueryRouteResponse")
SendMessageRequest = message_class("apache.rocketmq.v2.SendMessageRequest")
SendResultEntry = message_class("apache.rocketmq.v2.SendResultEntry")
SendMessageResponse = message_class("apache.rocketmq.v2.SendMessageResponse")
QueryAssignmentRequest = message_class("apache.rocketmq.v2.QueryAssignmentRequest")
QueryAssignmentResponse = message_class("apache.rocketmq.v2.QueryAssignmentResponse")
ReceiveMessageRequest = message_class("apache.rocketmq.v2.ReceiveMessageRequest")
ReceiveMessageResponse = message_class("apache.rocketmq.v2.ReceiveMessageResponse")
AckMessageEntry = message_class("apache.rocketmq.v2.AckMessageEntry")
AckMessageRequest = message_class("apache.rocketmq.v2.AckMessageRequest")
AckMessageResultEntry = message_class("apache.rocketmq.v2.AckMessageResultEntry")
AckMessageResponse = message_class("apache.rocketmq.v2.AckMessageResponse")
ForwardMessageToDeadLetterQueueRequest = message_class("apache.rocketmq.v2.ForwardMessageToDeadLetterQueueRequest")
ForwardMessageToDeadLetterQueueResponse = message_class("apache.rocketmq.v2.ForwardMessageToDeadLetterQueueResponse")
HeartbeatRequest = message_class("apache.rocketmq.v2.HeartbeatRequest")
HeartbeatResponse = message_class("apache.rocketmq.v2.HeartbeatResponse")
EndTransactionRequest = message_class("apache.rocketmq.v2.EndTransactionRequest")
EndTransactionResponse = message_class("apache.rocketmq.v2.EndTransactionResponse")
PrintThreadStackTraceCommand = message_class("apache.rocketmq.v2.PrintThreadStackTraceCommand")
ReconnectEndpointsCommand = message_class("apache.rocketmq.v2.ReconnectEndpointsCommand")
ThreadStackTrace = message_class("apache.rocketmq.v2.ThreadStackTrace")
VerifyMessageCommand = message_class("apache.rocketmq.v2.VerifyMessageCommand")
VerifyMessageResult = message_class("apache.rocketmq.v2.VerifyMessageResult")
RecoverOrphanedTransactionCommand = message_class("apache.rocketmq.v2.RecoverOrphanedTransactionCommand")
NotifyUnsubscribeLiteCommand = message_class("apache.rocketmq.v2.NotifyUnsubscribeLiteCommand")
TelemetryCommand = message_class("apache.rocketmq.v2.TelemetryCommand")
NotifyClientTerminationRequest = message_class("apache.rocketmq.v2.NotifyClientTerminationRequest")
NotifyClientTerminationResponse = message_class("apache.rocketmq.v2.NotifyClientTerminationResponse")
ChangeInvisibleDurationRequest = message_class("apache.rocketmq.v2.ChangeInvisibleDurationRequest")
ChangeInvisibleDurationResponse = message_class("apache.rocketmq.v2.ChangeInvisibleDurationResponse")
PullMessageRequest = message_class("apache.rocketmq.v2.PullMessageRequest")
PullMessageResponse = message_class("apache.rocketmq.v2.PullMessageResponse")
UpdateOffsetRequest = message_class("apache.rocketmq.v2.UpdateOffsetRequest")
UpdateOffsetResponse = message_class("apache.rocketmq.v2.UpdateOffsetResponse")
GetOffsetRequest = message_class("apache.rocketmq.v2.GetOffsetRequest")
GetOffsetResponse = message_class("apache.rocketmq.v2.GetOffsetResponse")
QueryOffsetRequest = message_class("apache.rocketmq.v2.QueryOffsetRequest")
QueryOffsetResponse = message_class("apache.rocketmq.v2.QueryOffsetResponse")
RecallMessageRequest = message_class("apache.rocketmq.v2.RecallMessageRequest")
RecallMessageResponse = message_class("apache.rocketmq.v2.RecallMessageResponse")
SyncLiteSubscriptionRequest = message_class("apache.rocketmq.v2.SyncLiteSubscriptionRequest")
SyncLiteSubscriptionResponse = message_class("apache.rocketmq.v2.SyncLiteSubscriptionResponse")
