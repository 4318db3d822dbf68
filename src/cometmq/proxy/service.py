"""The methods of ``MessagingService``, and their common error handling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from types import MappingProxyType
from typing import Any, Final

from cometmq.proxy.context import EndpointContext
from cometmq.proxy.protocol import v2
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.call import Call, Method
from cometmq.proxy.rpc.status import GrpcError, GrpcStatus
from cometmq.proxy.services.acknowledge import AcknowledgeService
from cometmq.proxy.services.clients import ClientService
from cometmq.proxy.services.commands import ClientCommands
from cometmq.proxy.services.dead_letters import DeadLetterService
from cometmq.proxy.services.failures import status_of
from cometmq.proxy.services.lite import LiteService
from cometmq.proxy.services.offsets import OffsetService
from cometmq.proxy.services.receive import ReceiveService
from cometmq.proxy.services.routes import RouteService
from cometmq.proxy.services.send import SendService
from cometmq.proxy.services.telemetry import TelemetryService
from cometmq.proxy.services.transactions import TransactionService
from cometmq.proxy.sessions import client_id_of

Handler = Callable[[Call, Any], Awaitable[Any]]
Direct = Callable[[Call, Any], bytes | None]
"""A handler that needs no task; it returns the encoded response, or ``None`` if it ends the call itself."""
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"


def methods_of(context: EndpointContext, renewals: Renewals, commands: ClientCommands) -> Mapping[str, Method]:
    """Return the methods by path."""
    routes, clients, sends = RouteService(context), ClientService(context), SendService(context)
    telemetry, transactions = TelemetryService(context, commands), TransactionService(context)
    offsets, dead_letters = OffsetService(context), DeadLetterService(context, renewals)
    receives, acks = ReceiveService(context, renewals), AcknowledgeService(context, renewals)
    handlers: dict[str, Handler] = {
        "QueryRoute": routes.query_route,
        "QueryAssignment": routes.query_assignment,
        "NotifyClientTermination": clients.notify_client_termination,
        "SendMessage": sends.send_message,
        "RecallMessage": sends.recall_message,
        "EndTransaction": transactions.end_transaction,
        "ChangeInvisibleDuration": acks.change_invisible_duration,
        "ForwardMessageToDeadLetterQueue": dead_letters.forward_message,
        "UpdateOffset": offsets.update_offset,
        "GetOffset": offsets.get_offset,
        "QueryOffset": offsets.query_offset,
        "SyncLiteSubscription": LiteService(context).sync_lite_subscription,
        "PullMessage": offsets.pull_message,
    }
    methods = {
        SERVICE + name: Method(getattr(v2, f"{name}Request").FromString, _with_status(name, handler))
        for name, handler in handlers.items()
    }
    directs: dict[str, Direct] = {
        "Heartbeat": clients.heartbeat,
        "AckMessage": acks.ack_message,
        "ReceiveMessage": receives.receive_message,
    }
    for name, direct in directs.items():
        decode = getattr(v2, f"{name}Request").FromString
        methods[SERVICE + name] = Method(decode, direct=_direct(name, decode, direct))
    methods[f"{SERVICE}Telemetry"] = Method(v2.TelemetryCommand.FromString, converse=telemetry.open_stream)
    return MappingProxyType(methods)


def _with_status(name: str, handler: Handler) -> Handler:
    """Wrap a handler: reject calls that have no client id, and convert errors to a response status."""
    response = getattr(v2, f"{name}Response")

    async def handle(call: Call, request: Any) -> Any:
        try:
            client_id_of(call)
            return await handler(call, request)
        except Exception as error:
            return response(status=status_of(error, call))

    return handle


def _direct(name: str, decode: Callable[[bytes], Any], handler: Direct) -> Callable[[Call, bytes], bytes | None]:
    """Wrap a handler that needs no task as :func:`_with_status` wraps others."""
    response = getattr(v2, f"{name}Response")

    def handle(call: Call, payload: bytes) -> bytes | None:
        try:
            request = decode(payload)
        except Exception as error:
            raise GrpcError(GrpcStatus.INTERNAL, "Invalid protobuf byte sequence") from error
        try:
            client_id_of(call)
            # The account of this call must not be seen by the connection's next call, which runs in the same context.
            return copy_context().run(handler, call, request)
        except Exception as error:
            encoded: bytes = response(status=status_of(error, call)).SerializeToString()
            return encoded

    return handle
