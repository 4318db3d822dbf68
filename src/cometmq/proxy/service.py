"""``MessagingService``: its methods, and what all of them do first and last."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from cometmq.errors import CometMQError
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.metadata import client_id_of
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

_log = logging.getLogger(__name__)

Handler = Callable[[Call, Any], Awaitable[Any]]
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"


def methods_of(
    context: EndpointContext, transactions: TransactionService, renewals: Renewals, commands: ClientCommands
) -> dict[str, Method]:
    """Every method by its path."""
    routes, clients, sends = RouteService(context), ClientService(context), SendService(context)
    telemetry, offsets = TelemetryService(context, commands), OffsetService(context)
    receives, acks = ReceiveService(context, renewals), AcknowledgeService(context, renewals)
    dead_letters = DeadLetterService(context, renewals)
    found: dict[str, Handler] = {
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
        "SyncLiteSubscription": _no_lite_topics,
    }
    streaming: dict[str, Handler] = {
        "ReceiveMessage": receives.receive_message,
        "PullMessage": offsets.pull_message,
    }
    methods = {
        SERVICE + name: Method(_request(name).FromString, _unary(name, handler)) for name, handler in found.items()
    }
    for name, handler in streaming.items():
        methods[SERVICE + name] = Method(_request(name).FromString, _unary(name, handler))
    methods[f"{SERVICE}Telemetry"] = Method(v2.TelemetryCommand.FromString, converse=telemetry.converse)
    return methods


def _request(name: str) -> Any:
    return getattr(v2, f"{name}Request")


def _unary(name: str, handler: Handler) -> Handler:
    """Wrap a handler: the call has a client id before it, and every error becomes the status of an answer after it."""
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
            _log.exception("%s of %s failed", name, call.peer.remote_address)
            words = f"{type(error).__name__}: {error}"
            return response(status=v2.Status(code=Code.INTERNAL_SERVER_ERROR, message=words))

    return handle


async def _no_lite_topics(_call: Call, _request: v2.SyncLiteSubscriptionRequest) -> v2.SyncLiteSubscriptionResponse:
    raise ProxyError(Code.UNSUPPORTED, "lite topics are not supported: subscribe to the topic itself")
