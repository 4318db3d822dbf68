"""FastStream with CometMQ and Apache RocketMQ 5: ``RocketMQBroker``.

Subscribers read topics with POP: messages of a process that died are received by another member of the group, a message
that fails is received again later, and becomes a dead letter in the end.
"""

from faststream_cometmq.broker import RocketMQBroker
from faststream_cometmq.message import RocketMQMessage
from faststream_cometmq.response import RocketMQPublishCommand, RocketMQResponse
from faststream_cometmq.router import RocketMQPublisher, RocketMQRoute, RocketMQRouter
from faststream_cometmq.testing import TestRocketMQBroker

__all__ = [
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublisher",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRouter",
    "TestRocketMQBroker",
]
