"""Airflow's DAGs that start with messages: a provider for ``MessageQueueTrigger(scheme="rocketmq", …)``.

Airflow finds it by the entry point ``apache_airflow_provider`` of this distribution.
"""

from __future__ import annotations

from typing import Any

from cometmq.integrations.airflow.connection import description


def get_provider_info() -> dict[str, Any]:
    """Return the description of the provider; called by Airflow in each of its processes."""
    return {
        "package-name": "cometmq",
        "name": "CometMQ",
        "description": "Messages of CometMQ and Apache RocketMQ start DAGs.",
        "queues": ["cometmq.integrations.airflow.provider.RocketMQMessageQueueProvider"],
        "connection-types": [description()],
    }
