"""The interface to the brokers. Each client request becomes one or more remoting requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from cometmq.message.names import MESSAGE_TYPE, PERM_READ, PERM_WRITE
from cometmq.proxy.errors import ProxyError, refused
from cometmq.proxy.http2.connection import Http2Connection
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.bodies import HeartbeatData, SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import NOT_STORED, RequestCode
from cometmq.remoting.headers import Header, from_ext
from cometmq.remoting.lite.headers import PopLiteMessageRequestHeader
from cometmq.remoting.pop_headers import PopMessageRequestHeader
from cometmq.remoting.processors import Buffer, Response

H = TypeVar("H", bound=Header)

ASK_SECONDS: Final = 3.0
"""Time limit for requests to a broker that do not wait for messages."""
_BIND_TOPIC: Final = "lite.bind.topic"
_LITE_QUOTA: Final = "lite.sub.client.quota"
_DEFAULT_LITE_QUOTA: Final = 2_000
_ANY_NUMBER: Final = 2**31 - 1
NORMAL: Final = "NORMAL"
MIXED: Final = "MIXED"
"""The ``message.type`` of a topic that accepts messages of every type."""


class Reply(msgspec.Struct):
    """A broker's response."""

    code: int
    remark: str | None
    header_or_fields: Header | dict[str, str]
    """The header object if the broker runs in this process; otherwise the header's fields."""
    body: Buffer

    def header(self, kind: type[H]) -> H:
        """Return the typed header.

        :raises HeaderError: a field is missing.
        """
        header = self.header_or_fields
        return header if isinstance(header, kind) else from_ext(kind, header)  # type: ignore[arg-type]

    @property
    def is_not_stored(self) -> bool:
        """Return whether the broker says that the message is certainly not stored."""
        return isinstance(self.header_or_fields, dict) and NOT_STORED in self.header_or_fields

    def checked(self) -> Reply:
        """Return this response if the broker accepted the request.

        :raises ProxyError: the broker refuses.
        """
        if self.code:
            raise refused(self.code, self.remark)
        return self


@dataclass(frozen=True)
class BrokerQueues:
    """A topic's queues on one broker."""

    broker: str
    read: int
    write: int
    perm: int

    @property
    def writable(self) -> int:
        """The number of queues that accept messages."""
        return self.write if self.perm & PERM_WRITE else 0

    @property
    def readable(self) -> int:
        """The number of queues that consumers may read."""
        return self.read if self.perm & PERM_READ else 0


@dataclass(frozen=True)
class TopicInfo:
    """A topic's configuration."""

    name: str
    queues: tuple[BrokerQueues, ...]
    """The topic's queues on each broker, sorted by broker name."""
    message_type: str
    """The value of the topic attribute ``message.type``."""


@dataclass(frozen=True)
class GroupInfo:
    """A consumer group's configuration, with default values if the group does not exist yet."""

    retry_max_times: int = 16
    is_orderly: bool = False
    backoff_ms: tuple[int, ...] = ()
    """Pauses before retries; empty if the group uses RocketMQ's delay levels."""
    bind_topic: str = ""
    """The topic whose lite topics the group reads; empty if it reads no lite topics."""
    lite_quota: int = _DEFAULT_LITE_QUOTA
    """Maximum number of lite topics to which one client of the group subscribes."""

    @classmethod
    def of(cls, config: SubscriptionGroupConfig) -> GroupInfo:
        """Extract the settings that the endpoint needs from a group's configuration."""
        return cls(
            config.retry_max_times,
            config.consume_message_orderly is True,
            _customized_pauses(config.group_retry_policy),
            _attribute(config, _BIND_TOPIC) or "",
            _lite_quota(_attribute(config, _LITE_QUOTA)),
        )


def _customized_pauses(policy: Any) -> tuple[int, ...]:
    """Return the pauses of a ``CustomizedRetryPolicy``; return no pauses for any other policy."""
    customized = policy.get("customizedRetryPolicy") if isinstance(policy, dict) else None
    pauses = customized.get("next") if isinstance(customized, dict) else None
    if not isinstance(pauses, list) or not all(type(pause) is int for pause in pauses):
        return ()
    return tuple(pauses)


def _attribute(config: SubscriptionGroupConfig, name: str) -> str | None:
    """Return an attribute of a group; some tools store its name with a leading plus sign."""
    attributes = config.attributes or {}
    return attributes.get(name) or attributes.get(f"+{name}")


def _lite_quota(text: str | None) -> int:
    """Return the number of lite topics that a client may have; a negative attribute means any number."""
    with suppress(ValueError):
        quota = int(text or _DEFAULT_LITE_QUOTA)
        return min(quota, _ANY_NUMBER) if quota >= 0 else _ANY_NUMBER
    return _DEFAULT_LITE_QUOTA


def message_type_of(config: TopicConfig) -> str:
    """Return a topic's message type; some tools store the attribute with a leading plus sign."""
    attributes = config.attributes or {}
    return attributes.get(MESSAGE_TYPE) or attributes.get(f"+{MESSAGE_TYPE}") or NORMAL


def no_route(topic: str) -> ProxyError:
    """Return the error for a topic that does not exist."""
    return ProxyError(
        Code.TOPIC_NOT_FOUND, f"CODE: 17  DESC: No topic route info in name server for the topic: {topic}"
    )


@dataclass(frozen=True)
class BrokerRequest:
    """A request from a broker to a client."""

    broker: str
    """The broker's name; empty if it is unknown."""
    code: int
    header: Header
    body: bytes
    respond: Callable[[Response], None]
    """Passes the client's response to the broker; does nothing if the broker expects no response."""


def heartbeat_body(data: HeartbeatData) -> bytes:
    """Encode the body of a HEART_BEAT request, which takes 1 ms for a thousand subscriptions."""
    return msgspec.json.encode(data)  # no field is null and no key is an object, so plain JSON is sufficient


class ClientIdentity(NamedTuple):
    """A client's identity, as seen by its brokers."""

    client_id: str
    peer: tuple[str, int]
    """The client's IP address and port."""
    language: str


class PoppedHandle(NamedTuple):
    """A message that is to be acknowledged, as named by its receipt handle."""

    broker: str
    topic: str
    """The topic in which the message is stored, which may be a retry topic."""
    group: str
    queue_id: int
    offset: int
    pop_time: int


Acknowledged = Callable[[Sequence[int], ProxyError | None], None]
"""Called with the positions of messages, and the error if they could not be acknowledged."""


AnyPop = PopMessageRequestHeader | PopLiteMessageRequestHeader
"""The header of a pop of a topic, or of a topic's lite topics."""


Popped = Callable[[Reply | BaseException], None]
"""Called with the response to a pop, or with the error if there is none."""


def pop_code(header: AnyPop) -> RequestCode:
    """Return the request code of a pop."""
    is_lite = isinstance(header, PopLiteMessageRequestHeader)
    return RequestCode.POP_LITE_MESSAGE if is_lite else RequestCode.POP_MESSAGE


class Link(Protocol):
    """A connection over which one client's requests reach the brokers."""

    def ask(
        self, broker: str, code: int, header: Header | None, body: bytes = b"", *, timeout_s: float = ASK_SECONDS
    ) -> Awaitable[Reply]:
        """Send a request to the master with the given broker name, and return its response.

        :raises BrokerAwayError: the broker cannot be reached.
        :raises ProxyError: the broker is unknown, or does not answer in time.
        """

    def pop(self, broker: str, header: AnyPop, done: Popped) -> None:
        """Pop messages from the master with the given broker name.

        :param done: called once, in any context; it must not raise. It may be called before this method returns.
        :raises ProxyError: the broker is unknown; ``done`` is not called.
        """

    def acknowledge(self, handles: Sequence[PoppedHandle], done: Acknowledged) -> Sequence[int]:
        """Acknowledge messages without a request for each; return the positions of those that need a request.

        :param done: called once the other messages are acknowledged or refused; not called if there are none.
        """

    async def register(self, data: HeartbeatData) -> None:
        """Register the client with all brokers, and send heartbeats to keep it registered."""

    async def close(self, data: HeartbeatData | None) -> None:
        """Unregister the client; ``data`` is its last heartbeat."""


class CallsPeer(Protocol):
    """The HTTP/2 connection on which a client calls."""

    peer_ip: str

    @property
    def http2(self) -> Http2Connection:
        """The connection's streams."""

    def write_now(self, data: bytes) -> None:
        """Write bytes to the socket, behind those that are queued."""


class CallsSession(Protocol):
    """The client that calls."""

    called_at: float
    """Monotonic time in seconds of the client's last call."""

    @property
    def key(self) -> tuple[str | None, str]:
        """The client's account and id."""

    @property
    def identity(self) -> ClientIdentity:
        """The client's id and address."""

    @property
    def is_removed(self) -> bool:
        """True once the endpoint has forgotten the client."""


class RenewedHandles(Protocol):
    """The receipt handles that the endpoint renews."""

    def __len__(self) -> int:
        """Return their number."""

    def remove_all(self, key: tuple[str | None, str], group: str, first_handles: Sequence[str]) -> None:
        """Stop renewing messages of the client with a session key."""


class Backend(Protocol):
    """The interface to the brokers that the endpoint serves."""

    async def topic(self, name: str) -> TopicInfo:
        """Return a topic's configuration.

        :raises ProxyError: the topic does not exist, or no nameserver answers.
        """

    async def group(self, name: str) -> GroupInfo:
        """Return a consumer group's configuration."""

    def known_topic(self, name: str) -> TopicInfo | None:
        """Return a topic's configuration, or ``None`` if it must be read with :meth:`topic`."""

    def known_group(self, name: str) -> GroupInfo | None:
        """Return a consumer group's configuration, or ``None`` if it must be read with :meth:`group`."""

    def accept_calls(self, peer: CallsPeer, session: CallsSession, topic: TopicInfo, counter: list[int]) -> None:
        """Handle later calls of a client that has just sent a normal message to a topic faster, if possible.

        :param counter: the number of the topic's next message, by which its queue is chosen.
        """

    def accept_acks(self, peer: CallsPeer, session: CallsSession, renewed: RenewedHandles) -> None:
        """Handle later acknowledgements of a client that has just acknowledged a message faster, if possible."""

    def advertised_host(self, access_host: str) -> str | None:
        """Return the host for routes, or ``None`` if routes must contain the address that the client used.

        :param access_host: the host in the client's configuration; empty if the client does not report it.
        """

    def connect(self, client: ClientIdentity, on_request: Callable[[BrokerRequest], None]) -> Link:
        """Open a client's link; ``on_request`` receives brokers' requests to the client."""

    async def start(self) -> None:
        """Connect to the brokers."""

    async def stop(self) -> None:
        """Disconnect from the brokers."""
