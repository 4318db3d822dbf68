"""Heartbeat and NotifyClientTermination (``ClientActivity``)."""

from __future__ import annotations

from typing import Final

from cometmq.proxy.context import EndpointContext
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.names import group_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import ClientType, Code
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import ClientSession
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
        self._client(call, request.group, request.client_type)
        return v2.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, call: Call, request: v2.NotifyClientTerminationRequest
    ) -> v2.NotifyClientTerminationResponse:
        """Forget a client.

        Its Telemetry stream stays until it ends it: Node's client opens another one when the server does.
        """
        session = self._client(call, request.group, ClientType.CLIENT_TYPE_UNSPECIFIED)
        self._context.sessions.forget(session, closes=False)
        return v2.NotifyClientTerminationResponse(status=OK)

    def _client(self, call: Call, group: v2.Resource, kind: int) -> ClientSession:
        """The client of a call, whose settings are known; ``kind`` is what it says to be without them.

        :raises ProxyError: it may not call, or its settings are not known.
        """
        context = self._context
        session = context.sessions.known(call, context.checker.check(call, []))
        settings = None if session is None else session.settings
        if (kind if settings is None else settings.client_type) in _CONSUMERS:
            context.checker.check(call, [on_group(group_of(group), Action.SUB)])
        if session is None or settings is None:
            raise ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return session
