"""The provider of message queues that Airflow loads."""

from __future__ import annotations

from typing import Final

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from cometmq.integrations.airflow.trigger import RocketMQMessageTrigger

SCHEME: Final = "rocketmq"


class RocketMQMessageQueueProvider(BaseMessageQueueProvider):
    """Provides the trigger of ``MessageQueueTrigger(scheme="rocketmq", …)``."""

    scheme = SCHEME

    def trigger_class(self) -> type[RocketMQMessageTrigger]:
        """Return the class of the trigger, which gets the other arguments."""
        return RocketMQMessageTrigger
