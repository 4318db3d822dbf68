"""The parts that all services of an endpoint share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cometmq.clock import Clock
from cometmq.proxy.backend.backend import Backend
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import Sessions
from cometmq.remoting.permissions import Need


class Checker(Protocol):
    """Checks the account of a call."""

    def check(self, call: Call, needs: Sequence[Need]) -> str | None:
        """Check that the account of a call may do what it asks for; return its name, if it has one.

        :raises ProxyError: it may not, or is none.
        """


@dataclass(frozen=True)
class EndpointContext:
    """See the module's docstring."""

    config: EndpointConfig
    backend: Backend
    sessions: Sessions
    checker: Checker
    clock: Clock

    def admit(self, call: Call, needs: Sequence[Need]) -> None:
        """Check that the account of a call may do what it asks for; from then on its client is known.

        :raises ProxyError: it may not, or is none.
        """
        call.session = self.sessions.of(call, self.checker.check(call, needs))
