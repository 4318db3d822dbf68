"""The objects shared by all services of an endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.clock import Clock
from cometmq.proxy.backend.backend import Backend
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.sessions import Sessions


@dataclass(frozen=True)
class EndpointContext:
    """An endpoint's backend, clients and settings."""

    config: EndpointConfig
    backend: Backend
    sessions: Sessions
    clock: Clock
