"""Who a client is: its id, as brokers and other members of its group see it."""

from __future__ import annotations

import os
import socket
import time
from typing import Final

_PROBES: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def own_ip() -> str:
    """The address that others see, found without sending anything; ``127.0.0.1`` where there is none."""
    for family, target in _PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def new_client_id(instance_name: str | None = None) -> str:
    """``ip@instanceName``; without a name one that no other client has (``ClientConfig.buildMQClientId``)."""
    return f"{own_ip()}@{instance_name or f'{os.getpid()}#{time.perf_counter_ns()}'}"
