"""Broker hooks for requests, incoming messages and outgoing messages.

They correspond to ``RPCHook``, ``SendMessageHook`` and ``ConsumeMessageHook`` in RocketMQ's broker. An exception in a
hook is logged and ignored, except that ``before`` in an RPC or send hook can refuse the request by raising
:class:`~cometmq.remoting.processors.RpcRejectedError` (``AbortProcessException``).

A distribution offers hooks with an entry point in the group ``cometmq.hooks``, which is a function that accepts the
broker's configuration and returns :class:`BrokerHooks`. The key ``hookNames`` selects entry points by name; its text is
never imported or executed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, TypeVar

import msgspec

from cometmq.broker.config import BrokerConfig
from cometmq.message.message import split_records
from cometmq.message.properties import UNIQ_KEY, MessageType, decode_properties, message_type
from cometmq.options import ConfigError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader, PullMessageRequestHeader
from cometmq.remoting.processors import Request, Response, RpcHook, RpcRejectedError

_log = logging.getLogger(__name__)

C = TypeVar("C")

GROUP: Final = "cometmq.hooks"
"""The entry point group that contains the hooks."""

_SENDS: Final = frozenset(
    map(int, (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
)
_PULLS: Final = frozenset(map(int, (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)))
_BACK: Final = int(RequestCode.CONSUMER_SEND_MSG_BACK)
_STORED: Final = frozenset(
    map(
        int,
        (
            ResponseCode.SUCCESS,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
        ),
    )
)


class SendMessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """An incoming message or batch (the broker's ``SendMessageContext``)."""

    producer_group: str
    topic: str
    queue_id: int
    """The requested queue, or -1 to let the broker choose."""
    body_bytes: int
    properties: Mapping[str, str]
    """The properties of the message, or of the entire batch."""
    unique_key: str | None
    batch: bool
    msg_type: MessageType
    born_host: str
    """``host:port`` of the producer."""
    born_timestamp: int
    broker_address: str
    region_id: str
    props: dict[str, object]
    """Values that a hook's ``before`` passes to its ``after``."""
    success: bool = False
    """In ``after``: whether the message was stored."""
    code: int = 0
    """In ``after``: the response code."""
    error_message: str | None = None
    """In ``after``: the error message in the response, if any."""
    msg_id: str | None = None
    """In ``after``: the broker's ID for the stored message; for a batch, all IDs, separated by commas."""
    queue_offset: int = -1
    """In ``after``: the queue offset of the message, or of the first message in a batch."""


class ConsumeMessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are sent to a consumer, or sent back by a consumer (the broker's ``ConsumeMessageContext``)."""

    consumer_group: str
    topic: str
    queue_id: int | None
    """The queue ID, or ``None`` for a message that is sent back."""
    client_host: str
    broker_address: str
    message_ids: Mapping[str, int]
    """Queue offset by the broker's message ID; for a message that is sent back, its log offset."""
    body_bytes: int
    """Size of the records in the response in bytes."""


@dataclass(frozen=True)
class SendMessageHook:
    """Two optional hook functions for sends, which run on the broker's event loop and must not block."""

    before: Callable[[SendMessageContext], None] | None = None
    """Called before a message is stored, and may refuse it."""
    after: Callable[[SendMessageContext], None] | None = None
    """Called when the request is answered, and also for oneway requests."""


@dataclass(frozen=True)
class ConsumeMessageHook:
    """Two optional hook functions for consumption, which run on the broker's event loop and must not block."""

    before: Callable[[ConsumeMessageContext], None] | None = None
    """Called when messages are sent to a consumer."""
    after: Callable[[ConsumeMessageContext], None] | None = None
    """Called when a consumer has sent a message back (CONSUMER_SEND_MSG_BACK)."""


@dataclass(frozen=True)
class BrokerHooks:
    """All hooks of a broker."""

    rpc: Sequence[RpcHook] = ()
    send: Sequence[SendMessageHook] = ()
    consume: Sequence[ConsumeMessageHook] = ()

    def __add__(self, other: BrokerHooks) -> BrokerHooks:
        """Combine these hooks with those of ``other``, which run later."""
        return BrokerHooks((*self.rpc, *other.rpc), (*self.send, *other.send), (*self.consume, *other.consume))

    def for_server(self, broker_address: Callable[[], str], region_id: str) -> list[RpcHook]:
        """Return the hooks for the server, which are empty if no hooks are configured."""
        if not self.send and not self.consume:
            return list(self.rpc)
        watching = MessageHooks(self.send, self.consume, broker_address, region_id)
        return [*self.rpc, RpcHook(watching.before, watching.after)]


def load_hooks(config: BrokerConfig) -> BrokerHooks:
    """Load the hooks in ``hookNames``, in that order.

    :raises ConfigError: no installed distribution offers the hook, or its function does not return BrokerHooks.
    """
    found = BrokerHooks()
    names = [name for part in config.hook_names.split(",") if (name := part.strip())]
    if not names:
        return found
    offered = {point.name: point for point in entry_points(group=GROUP)}
    for name in names:
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise ConfigError(f"hookNames: no installed package has the hook {name}; available: {known}")
        hooks = offered[name].load()(config)
        if not isinstance(hooks, BrokerHooks):
            raise ConfigError(f"hookNames: {name} returned {type(hooks).__name__} instead of BrokerHooks")
        found += hooks
    return found


class MessageHooks:
    """Creates contexts from requests and responses, and passes them to the message hooks."""

    def __init__(
        self,
        send: Sequence[SendMessageHook],
        consume: Sequence[ConsumeMessageHook],
        broker_address: Callable[[], str],
        region_id: str,
    ) -> None:
        self._send = send
        self._consume = consume
        self._broker_address = broker_address
        self._region_id = region_id
        self._under_way: dict[int, SendMessageContext] = {}
        """Contexts of pending sends, by the identity of their requests."""

    def before(self, peer: str, request: Request[Any], body: bytes) -> None:
        """Pass an incoming message to the hooks."""
        if request.code not in _SENDS or not self._send:
            return
        header = request.header
        properties = decode_properties(header.properties or "")
        context = SendMessageContext(
            producer_group=header.producer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            body_bytes=len(body),
            properties=properties,
            unique_key=properties.get(UNIQ_KEY),
            batch=bool(header.batch) or request.code == RequestCode.SEND_BATCH_MESSAGE,
            msg_type=message_type(properties),
            born_host=peer,
            born_timestamp=header.born_timestamp,
            broker_address=self._broker_address(),
            region_id=self._region_id,
            props={},
        )
        _call((hook.before for hook in self._send), context, may_refuse=True)
        self._under_way[id(request)] = context

    def after(self, peer: str, request: Request[Any], response: Response) -> None:
        """Pass the result of a request to the hooks: of a send, or of a request that sent messages to a consumer."""
        if request.code in _SENDS:
            context = self._under_way.pop(id(request), None)
            if context is not None:
                self._answered(context, response)
        elif self._consume and response.code == ResponseCode.SUCCESS:
            if request.code in _PULLS:
                _call((hook.before for hook in self._consume), self._pulled(peer, request.header, response))
            elif request.code == _BACK and request.header.origin_msg_id:
                _call((hook.after for hook in self._consume), self._handed_back(peer, request.header))

    def _answered(self, context: SendMessageContext, response: Response) -> None:
        header: Any = response.header
        success = response.code in _STORED
        _call(
            (hook.after for hook in self._send),
            msgspec.structs.replace(
                context,
                success=success,
                code=int(response.code),
                error_message=None if success else response.remark,
                msg_id=header.msg_id if success else None,
                queue_id=header.queue_id if success else context.queue_id,
                queue_offset=header.queue_offset if success else -1,
            ),
        )

    def _pulled(self, peer: str, header: PullMessageRequestHeader, response: Response) -> ConsumeMessageContext:
        pieces = response.body
        records = bytes(pieces) if isinstance(pieces, bytes | memoryview) else b"".join(pieces)
        return ConsumeMessageContext(
            consumer_group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            client_host=peer,
            broker_address=self._broker_address(),
            message_ids={message.offset_msg_id: message.queue_offset for message in split_records(records)},
            body_bytes=len(records),
        )

    def _handed_back(self, peer: str, header: ConsumerSendMsgBackRequestHeader) -> ConsumeMessageContext:
        return ConsumeMessageContext(
            consumer_group=header.group,
            topic=header.origin_topic or "",
            queue_id=None,
            client_host=peer,
            broker_address=self._broker_address(),
            message_ids={header.origin_msg_id or "": header.offset},
            body_bytes=0,
        )


def _call(functions: Iterable[Callable[[C], None] | None], context: C, *, may_refuse: bool = False) -> None:
    for function in functions:
        if function is None:
            continue
        try:
            function(context)
        except RpcRejectedError:
            if may_refuse:
                raise
            _log.exception("hook %r refused a request that can no longer be refused", function)
        except Exception:
            _log.exception("hook %r failed", function)
