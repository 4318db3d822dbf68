"""The interface to the brokers: every request of a client becomes requests of remoting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from cometmq.message.names import PERM_READ, PERM_WRITE
from cometmq.proxy.errors import refused
from cometmq.remoting.bodies import HeartbeatData
from cometmq.remoting.headers import Header, from_ext
from cometmq.remoting.processors import Buffer, Response

H = TypeVar("H", bound=Header)

ASK_SECONDS = 3.0
"""Time of a request to a broker that does not wait for messages."""


class Reply(msgspec.Struct):
    """The answer of a broker."""

    code: int
    remark: str | None
    header_or_fields: Header | dict[str, str]
    body: Buffer

    def header(self, kind: type[H]) -> H:
        """The typed header.

        :raises HeaderError: a field is missing.
        """
        found = self.header_or_fields
        return found if isinstance(found, kind) else from_ext(kind, found)  # type: ignore[arg-type]

    def checked(self) -> Reply:
        """Return itself if the broker did what it was asked.

        :raises ProxyError: it refuses.
        """
        if self.code:
            raise refused(self.code, self.remark)
        return self


@dataclass(frozen=True)
class BrokerQueues:
    """The queues of a topic on one broker."""

    broker: str
    read: int
    write: int
    perm: int

    @property
    def writable(self) -> int:
        """The number of queues that can be written."""
        return self.write if self.perm & PERM_WRITE else 0

    @property
    def readable(self) -> int:
        """The number of queues that can be read."""
        return self.read if self.perm & PERM_READ else 0


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the brokers have it."""

    name: str
    queues: tuple[BrokerQueues, ...]
    """In the order of the brokers' names."""
    message_type: str
    """The attribute ``message.type``."""
    own: tuple[BrokerQueues, ...] = field(default=())
    """Those that this endpoint itself sends to and receives from."""


@dataclass(frozen=True)
class GroupInfo:
    """A consumer group as the brokers have it; defaults for one that does not exist yet."""

    retry_max_times: int = 16
    is_orderly: bool = False
    backoff_ms: tuple[int, ...] = ()
    """Pauses before each attempt again; empty: RocketMQ's levels."""


Answer = Callable[[Response], None]
"""Takes the answer of a client to a request of a broker."""


class Asked(Protocol):
    """Takes requests of brokers to a client."""

    def __call__(self, broker: str, code: int, header: Header | dict[str, str], body: bytes, give: Answer) -> None:
        """Take one; ``give`` takes the answer of the client, if the request has one."""


def heartbeat_body(data: HeartbeatData) -> bytes:
    """The body of HEART_BEAT; a thousand subscriptions take 1 ms."""
    return msgspec.json.encode(data)  # no field of it may be null, and no key is an object


class Link(Protocol):
    """The way of one client to the brokers."""

    def ask(
        self, broker: str, code: int, header: Header | None, body: bytes = b"", *, timeout_s: float = ASK_SECONDS
    ) -> Awaitable[Reply]:
        """Send a request to the master of that name, and return its answer.

        :raises ProxyError: there is no such broker, or no answer in time.
        """

    async def register(self, data: HeartbeatData) -> None:
        """Tell all brokers what the client is."""

    async def close(self, data: HeartbeatData | None) -> None:
        """Tell all brokers that the client has left; ``data`` is what it was registered with."""


class Backend(Protocol):
    """The brokers."""

    async def topic(self, name: str) -> TopicInfo:
        """Describe a topic.

        :raises ProxyError: it does not exist, or nobody can say.
        """

    async def group(self, name: str) -> GroupInfo:
        """Describe a consumer group."""

    def endpoint(self, broker: str, came_by: str) -> tuple[str, int] | None:
        """The host and port by which a client reaches the endpoint for a broker; ``None``: the way that it came.

        :param came_by: the host that the client was given; empty if it does not say so.
        """

    def link(self, client_id: str, peer: tuple[str, int], language: str, asked: Asked) -> Link:
        """Begin the way of a client to the brokers."""

    async def start(self) -> None:
        """Connect."""

    async def stop(self) -> None:
        """Leave the brokers."""
