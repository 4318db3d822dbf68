"""The client: producers, consumers and administration, for CometMQ and Apache RocketMQ alike."""

from cometmq.client.admin import Admin
from cometmq.client.consumer_config import ConsumeFromWhere, LitePullConfig, MessageModel, PushConfig
from cometmq.client.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    ClientStateError,
    DelayNotSupportedError,
    ForkedError,
    IllegalMessageError,
    MasterNotFoundError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingSendError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendFailedError,
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
from cometmq.client.listener import ConsumeResult, Retry, Rollback, Suspend
from cometmq.client.lite_pull_consumer import LitePullConsumer
from cometmq.client.outcomes import PartlySentError
from cometmq.client.producer import Producer
from cometmq.client.producer_config import ProducerConfig
from cometmq.client.progress import ConsumeProgress, QueueProgress
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.pulling import PullResult, PullStatus, RawPull
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.selectors import by_sharding_key
from cometmq.client.send_result import SendResult, SendStatus
from cometmq.client.transaction import TransactionSendResult, TransactionState
from cometmq.client.transaction_config import TransactionConfig
from cometmq.client.transaction_producer import TransactionProducer
from cometmq.message.message import Message, MessageExt
from cometmq.message.recall_handle import RecallHandleError
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.client import ClientRpcHook
from cometmq.remoting.security import Security, SecurityConfigError
from cometmq.remoting.signing import Credentials
from cometmq.remoting.tls import Tls, TlsError

__all__ = [
    "AccessDeniedError",
    "Admin",
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
    "EndTransactionContext",
    "EndTransactionHook",
    "ForkedError",
    "IllegalMessageError",
    "LitePullConfig",
    "LitePullConsumer",
    "MasterNotFoundError",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "PartlySentError",
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
    "Suspend",
    "Tls",
    "TlsError",
    "TransactionConfig",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionState",
    "by_sharding_key",
]
