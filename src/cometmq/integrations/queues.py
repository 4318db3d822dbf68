"""Queues of task frameworks: the options that they share, and their topics.

A queue is a topic of type PRIORITY, in which each queue is a level. All queues of a prefix have one group.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cometmq.client import (
    AccessDeniedError,
    BrokerError,
    PoppedMessage,
    RemotingError,
    RouteNotFoundError,
    Security,
    SendFailedError,
    SimpleConsumerConfig,
)
from cometmq.client.sync import SyncAdmin
from cometmq.integrations.names import topic_of
from cometmq.visible import visible

log = logging.getLogger(__name__)

AWAY: Final = (RemotingError, RouteNotFoundError, SendFailedError)
"""Errors of requests that no server answers."""


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """The options of a broker.

    :raises ValueError: a value is out of its range.
    """

    prefix: str = "tasks"
    """Begins the names of the queues' topics (``<prefix>-<queue>``), and is the name of the consumer group."""
    priority_levels: int = 4
    """Number of priorities, from 0 (least urgent), of a queue that is created."""
    invisible_s: float = 60.0
    """Number of seconds after which the tasks of a worker that died are run by another one, unless the broker is
    CometMQ's and sees that the worker's connections have closed: then it is one second.
    """
    max_running_s: float = 86_400.0
    """Number of seconds for which a task may run before it is given to another worker."""
    prefetch: int = 8
    """Maximum number of tasks that a worker receives in advance."""

    def __post_init__(self) -> None:
        if self.priority_levels < 1 or not self.prefetch >= 1:
            raise ValueError("priority_levels and prefetch must be 1 or more")
        self.topic("default")
        self.consumer()

    def topic(self, queue: str) -> str:
        """Return the topic of a queue.

        :raises QueueNameError: the name cannot be part of a topic's name.
        """
        return topic_of(self.prefix, queue)

    def consumer(self) -> SimpleConsumerConfig:
        """Return the options of the consumer."""
        return SimpleConsumerConfig(
            invisible_s=self.invisible_s,
            renew_up_to_s=self.max_running_s,
            gives_back_when_gone=True,
            retries_first=True,
        )


def ensure_topic(namesrv: str | None, security: Security | None, topic: str, levels: int) -> None:
    """Create the topic of a queue, with a queue for each level of priorities, unless it exists.

    :raises AccessDeniedError: the account may neither see nor create the topic.
    :raises CometMQError: no broker answers.
    """
    with SyncAdmin(namesrv, security=security) as admin:
        with suppress(RouteNotFoundError):
            admin.topic_route(topic)
            return
        try:
            admin.create_topic(topic, queues=levels, message_type="PRIORITY")
        except AccessDeniedError as error:
            error.next_step = (
                f"create it with an administrator's account: cometmq topic create {topic} --queues {levels} "
                "--type PRIORITY"
            )
            raise
        except BrokerError as error:
            log.warning("topic %s has no priorities: %s", topic, error)
            admin.create_topic(topic, queues=levels)


def log_lost(message: PoppedMessage) -> None:
    """Log that another worker may run a task that still runs."""
    name, topic = visible(message.msg_id), visible(message.topic)
    log.error("another worker may run the task of message %s of topic %s", name, topic)
