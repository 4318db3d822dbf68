"""Dramatiq's messages in CometMQ or Apache RocketMQ 5: ``CometMQBroker``.

A queue is a topic that workers read with POP. A message that a worker did not finish, because it died, is processed by
another worker. Delayed messages, and with them retries, wait in the broker, not in a worker.
"""

from cometmq.errors import require

require("the Dramatiq broker", "dramatiq", "dramatiq")

from cometmq.integrations.dramatiq.broker import CometMQBroker
from cometmq.integrations.queues import QueueOptions

__all__ = ["CometMQBroker", "QueueOptions"]
