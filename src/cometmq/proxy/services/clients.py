"""The methods Heartbeat and NotifyClientTermination (``ClientActivity``)."""

from __future__ import annotations

from typing import Final

from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import ClientType, Code
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import ClientSession
from cometmq.remoting.permissions import Action, on_group

_OK: Final = v2.HeartbeatResponse(status=OK).SerializeToString()
_CONSUMERS: Final = (
    ClientType.PUSH_CONSUMER,
    ClientType.SIMPLE_CONSUMER,
    ClientType.PULL_CONSUMER,
    ClientType.LITE_PUSH_CONSUMER,
    ClientType.LITE_SIMPLE_CONSUMER,
)


class ClientService:
    """Methods for clients' heartbeats and termination."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context

    def heartbeat(self, call: Call, request: v2.HeartbeatRequest) -> bytes:
        """Record that a client is alive. Reject a client whose settings are unknown, so that it sends them again."""
        self._client(call, request.group, request.client_type)
        return _OK

    async def notify_client_termination(
        self, call: Call, request: v2.NotifyClientTerminationRequest
    ) -> v2.NotifyClientTerminationResponse:
        """Forget a client.

        The client ends its Telemetry stream itself: Node's client opens another stream when the server ends it.
        """
        session = self._client(call, request.group, ClientType.CLIENT_TYPE_UNSPECIFIED)
        self._context.sessions.remove(session, closes_stream=False)
        return v2.NotifyClientTerminationResponse(status=OK)

    def _client(self, call: Call, group: v2.Resource, kind: int) -> ClientSession:
        """Return the client that made a call.

        :param kind: the client's type in the request, used if its settings are not known.
        :raises ProxyError: the account is denied, or the settings are not known.
        """
        sessions = self._context.sessions
        session = sessions.find(call)
        settings = None if session is None else session.settings
        if (kind if settings is None else settings.client_type) in _CONSUMERS:
            sessions.check(call, [on_group(group_of(group), Action.SUB)])
        if session is None or settings is None:
            raise ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return session
