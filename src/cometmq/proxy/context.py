"""The parts that all services of an endpoint share."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.clock import Clock
from cometmq.proxy.backend.backend import Backend
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.sessions import Sessions


@dataclass(frozen=True)
class EndpointContext:
    """The backend, the clients and the settings of an endpoint."""

    config: EndpointConfig
    backend: Backend
    sessions: Sessions
    clock: Clock
