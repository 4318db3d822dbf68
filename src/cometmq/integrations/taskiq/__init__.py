"""Taskiq's tasks in CometMQ or Apache RocketMQ 5: ``CometMQBroker``.

A queue of tasks is a topic that workers read with POP. A task that a worker did not finish, because it died, is run by
another worker. Delayed tasks wait in the broker.
"""

from cometmq.errors import require

require("the Taskiq broker", "taskiq", "taskiq")

from cometmq.integrations.queues import QueueOptions
from cometmq.integrations.taskiq.broker import CometMQBroker

__all__ = ["CometMQBroker", "QueueOptions"]
