"""The client: producers, consumers and administration, for CometMQ and Apache RocketMQ alike."""

from cometmq.client.outcomes import PartlySentError
from cometmq.client.producer import Producer
from cometmq.client.producer_config import ProducerConfig
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.pulling import PullResult, PullStatus, RawPull
from cometmq.client.send_result import SendResult, SendStatus
from cometmq.message.message import Message, MessageExt
from cometmq.remoting.bodies import MessageQueue

__all__ = [
    "Message",
    "MessageExt",
    "MessageQueue",
    "PartlySentError",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "RawPull",
    "SendResult",
    "SendStatus",
]
