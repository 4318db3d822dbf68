"""The methods of ``MessagingService``, and their common error handling."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from cometmq.errors import CometMQError
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.call import Call, Method
from cometmq.proxy.services.acknowledge import AcknowledgeService
from cometmq.proxy.services.clients import ClientService
from cometmq.proxy.services.commands import ClientCommands
from cometmq.proxy.services.dead_letters import DeadLetterService
from cometmq.proxy.services.offsets import OffsetService
from cometmq.proxy.services.receive import ReceiveService
from cometmq.proxy.services.routes import RouteService
from cometmq.proxy.services.send import SendService
from cometmq.proxy.services.telemetry import TelemetryService
from cometmq.proxy.services.transactions import TransactionService
from cometmq.proxy.sessions import client_id_of

_log = logging.getLogger(__name__)

Handler = Callable[[Call, Any], Awaitable[Any]]
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
        "Heartbeat": clients.heartbeat,
        "NotifyClientTermination": clients.notify_client_termination,
        "SendMessage": sends.send_message,
        "RecallMessage": sends.recall_message,
        "EndTransaction": transactions.end_transaction,
        "AckMessage": acks.ack_message,
        "ChangeInvisibleDuration": acks.change_invisible_duration,
        "ForwardMessageToDeadLetterQueue": dead_letters.forward_message,
        "UpdateOffset": offsets.update_offset,
        "GetOffset": offsets.get_offset,
        "QueryOffset": offsets.query_offset,
        "SyncLiteSubscription": _refuse_lite_topics,
        "ReceiveMessage": receives.receive_message,
        "PullMessage": offsets.pull_message,
    }
    methods = {
        SERVICE + name: Method(getattr(v2, f"{name}Request").FromString, _with_status(name, handler))
        for name, handler in handlers.items()
    }
    methods[f"{SERVICE}Telemetry"] = Method(v2.TelemetryCommand.FromString, converse=telemetry.open_stream)
    return MappingProxyType(methods)


def _with_status(name: str, handler: Handler) -> Handler:
    """Wrap a handler: reject calls that have no client id, and convert errors to a response status."""
    response = getattr(v2, f"{name}Response")

    async def handle(call: Call, request: Any) -> Any:
        try:
            client_id_of(call)
            return await handler(call, request)
        except ProxyError as error:
            return response(status=error.status)
        except CometMQError as error:
            return response(status=v2.Status(code=Code.INTERNAL_SERVER_ERROR, message=error.message))
        except Exception as error:
            _log.exception("%s from %s failed", name, call.peer.remote_address)
            words = f"{type(error).__name__}: {error}"
            return response(status=v2.Status(code=Code.INTERNAL_SERVER_ERROR, message=words))

    return handle


async def _refuse_lite_topics(_call: Call, _request: v2.SyncLiteSubscriptionRequest) -> v2.SyncLiteSubscriptionResponse:
    raise ProxyError(Code.UNSUPPORTED, "lite topics are not supported: subscribe to the topic itself")
