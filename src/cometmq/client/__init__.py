"""The client API for CometMQ and Apache RocketMQ: producers, consumers and administration.

The first use of a public name loads all of them, which takes 0.08 s of processor time. A Spark task needs only
:mod:`cometmq.client.blocking`, so it avoids this cost.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq.client.admin import Admin, ConsumeProgress, QueueProgress
    from cometmq.client.consumer.config import ConsumeFromWhere, LitePullConfig, MessageModel, PushConfig
    from cometmq.client.consumer.listener import ConsumeResult, Retry, Rollback, Suspend
    from cometmq.client.consumer.lite_pull_consumer import LitePullConsumer
    from cometmq.client.consumer.message_stream import Batch, ReceivedMessage
    from cometmq.client.consumer.pull_consumer import PullConsumer
    from cometmq.client.consumer.pulling import PullResult, PullStatus, RawPull
    from cometmq.client.consumer.push_consumer import PushConsumer
    from cometmq.client.errors import (
        AccessDeniedError,
        BrokerError,
        ClientError,
        ClientStateError,
        DelayNotSupportedError,
        DeserializationError,
        ForkedError,
        IllegalMessageError,
        MasterNotFoundError,
        OtherTopicError,
        RemotingClosedError,
        RemotingConnectError,
        RemotingError,
        RemotingSendError,
        RemotingTimeoutError,
        RemotingTooMuchRequestError,
        RequestTimeoutError,
        RouteNotFoundError,
        SendFailedError,
        SerializationError,
        UnknownBrokerError,
    )
    from cometmq.client.hooks import (
        CheckForbiddenContext,
        CheckForbiddenHook,
        CommunicationMode,
        ConsumeMessageContext,
        ConsumeMessageHook,
        ConsumeReturnType,
        EndTransactionContext,
        EndTransactionHook,
        SendForbiddenError,
        SendMessageContext,
        SendMessageHook,
    )
    from cometmq.client.instance import ClientInstance
    from cometmq.client.lite.config import LiteTopicConfig, StartAt
    from cometmq.client.lite.consumer import LiteTopicConsumer
    from cometmq.client.lite.requests import LiteMessage
    from cometmq.client.producer.producer import Producer
    from cometmq.client.producer.transaction_producer import (
        TransactionProducer,
        TransactionSendResult,
        TransactionState,
    )
    from cometmq.client.send.config import ProducerConfig, TransactionConfig
    from cometmq.client.send.selection import by_sharding_key
    from cometmq.client.send_result import PartlySentError, SendResult, SendStatus
    from cometmq.client.serialization import from_json, to_json
    from cometmq.client.simple.config import SimpleConsumerConfig
    from cometmq.client.simple.consumer import SimpleConsumer
    from cometmq.client.simple.message import PoppedMessage
    from cometmq.message.ids import RecallHandleError
    from cometmq.message.message import Message, MessageExt
    from cometmq.remoting.bodies import MessageQueue
    from cometmq.remoting.client import ClientRpcHook
    from cometmq.remoting.security import Security, SecurityConfigError
    from cometmq.remoting.signing import Credentials
    from cometmq.remoting.tls.contexts import Tls, TlsError

__all__ = [
    "AccessDeniedError",
    "Admin",
    "Batch",
    "BrokerError",
    "CheckForbiddenContext",
    "CheckForbiddenHook",
    "ClientError",
    "ClientInstance",
    "ClientRpcHook",
    "ClientStateError",
    "CommunicationMode",
    "ConsumeFromWhere",
    "ConsumeMessageContext",
    "ConsumeMessageHook",
    "ConsumeProgress",
    "ConsumeResult",
    "ConsumeReturnType",
    "Credentials",
    "DelayNotSupportedError",
    "DeserializationError",
    "EndTransactionContext",
    "EndTransactionHook",
    "ForkedError",
    "IllegalMessageError",
    "LiteMessage",
    "LitePullConfig",
    "LitePullConsumer",
    "LiteTopicConfig",
    "LiteTopicConsumer",
    "MasterNotFoundError",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "OtherTopicError",
    "PartlySentError",
    "PoppedMessage",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConfig",
    "PushConsumer",
    "QueueProgress",
    "RawPull",
    "RecallHandleError",
    "ReceivedMessage",
    "RemotingClosedError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingSendError",
    "RemotingTimeoutError",
    "RemotingTooMuchRequestError",
    "RequestTimeoutError",
    "Retry",
    "Rollback",
    "RouteNotFoundError",
    "Security",
    "SecurityConfigError",
    "SendFailedError",
    "SendForbiddenError",
    "SendMessageContext",
    "SendMessageHook",
    "SendResult",
    "SendStatus",
    "SerializationError",
    "SimpleConsumer",
    "SimpleConsumerConfig",
    "StartAt",
    "Suspend",
    "Tls",
    "TlsError",
    "TransactionConfig",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionState",
    "UnknownBrokerError",
    "by_sharding_key",
    "from_json",
    "to_json",
]

_MODULES: Final = (
    "cometmq.client.admin",
    "cometmq.client.consumer.config",
    "cometmq.client.consumer.listener",
    "cometmq.client.consumer.lite_pull_consumer",
    "cometmq.client.consumer.message_stream",
    "cometmq.client.consumer.pull_consumer",
    "cometmq.client.consumer.pulling",
    "cometmq.client.consumer.push_consumer",
    "cometmq.client.errors",
    "cometmq.client.hooks",
    "cometmq.client.instance",
    "cometmq.client.lite.config",
    "cometmq.client.lite.consumer",
    "cometmq.client.lite.requests",
    "cometmq.client.producer.producer",
    "cometmq.client.producer.transaction_producer",
    "cometmq.client.send.config",
    "cometmq.client.send_result",
    "cometmq.client.send.selection",
    "cometmq.client.serialization",
    "cometmq.client.simple.config",
    "cometmq.client.simple.consumer",
    "cometmq.client.simple.message",
    "cometmq.message.ids",
    "cometmq.message.message",
    "cometmq.remoting.bodies",
    "cometmq.remoting.client",
    "cometmq.remoting.security",
    "cometmq.remoting.signing",
    "cometmq.remoting.tls.contexts",
)


def __getattr__(name: str) -> Any:
    """Load all public names when the first one is used.

    :raises AttributeError: the client has no public name like this.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in map(importlib.import_module, _MODULES):
        globals().update({public: getattr(module, public) for public in __all__ if hasattr(module, public)})
    return globals()[name]
