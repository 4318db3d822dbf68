"""Heartbeat and NotifyClientTermination (``ClientActivity``)."""

from __future__ import annotations

from typing import Final

from cometmq.proxy.context import EndpointContext
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.names import group_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import ClientType, Code
from cometmq.proxy.rpc.call import Call
from cometmq.remoting.permissions import Action, on_group

_CONSUMERS: Final = (
    ClientType.PUSH_CONSUMER,
    ClientType.SIMPLE_CONSUMER,
    ClientType.PULL_CONSUMER,
    ClientType.LITE_PUSH_CONSUMER,
    ClientType.LITE_SIMPLE_CONSUMER,
)


class ClientService:
    """Hears that clients are there, and that they leave."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context

    async def heartbeat(self, call: Call, request: v2.HeartbeatRequest) -> v2.HeartbeatResponse:
        """A sign of life of a client whose settings are known; another one sends them then, if it can."""
        session = call.session
        kind = request.client_type if session.settings is None else session.settings.client_type
        if kind in _CONSUMERS:
            group = group_of(request.group)
            self._context.checker.check(call, [on_group(group, Action.SUB)])
        else:
            self._context.checker.check(call, [])
        if session.settings is None:
            raise ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return v2.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, call: Call, request: v2.NotifyClientTerminationRequest
    ) -> v2.NotifyClientTerminationResponse:
        """Forget a client.

        Its Telemetry stream stays until it ends it: Node's client opens another one when the server does.
        """
        session = call.session
        needs = []
        if session.is_consumer:
            needs.append(on_group(group_of(request.group), Action.SUB))
        self._context.checker.check(call, needs)
        if session.settings is None:
            raise ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        self._context.sessions.forget(session, closes=False)
        return v2.NotifyClientTerminationResponse(status=OK)
