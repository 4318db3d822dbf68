"""Who a client is: its id, as brokers and other members of its group see it."""

from __future__ import annotations

import os
import time

from cometmq.message.hosts import own_ip


def new_client_id(instance_name: str | None = None) -> str:
    """``ip@instanceName``; without a name one that no other client has (``ClientConfig.buildMQClientId``)."""
    return f"{own_ip()}@{instance_name or f'{os.getpid()}#{time.perf_counter_ns()}'}"
