"""The options of endpoints and messages, by name."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

from fast_depends.dependencies import Dependant
from faststream._internal.configs import UnderlyingDriverAnnotations
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.middlewares import AckPolicy


class SendOptions(TypedDict, total=False):
    """The options of a message, besides its body and headers."""

    tags: str
    """The message's tag, by which subscribers filter."""
    keys: Sequence[str]
    """The keys by which the message can be queried."""
    message_group: str
    """The FIFO group: messages of a group are stored in one queue, in order."""
    delay: datetime.timedelta
    """The time for which the message waits in the broker."""
    deliver_at: datetime.datetime
    """The time, with a time zone, at which the message is delivered."""
    delay_level: int
    """A delay by level, for brokers before RocketMQ 5."""
    priority: int
    """A larger number is more urgent, in topics of type PRIORITY."""
    ttl: datetime.timedelta
    """The time after which CometMQ's brokers do not deliver the message."""


class SubscriberOptions(TypedDict, total=False):
    """The options of a subscriber."""

    group: str
    """The consumer group; by default ``<group of the broker>-<first topic>``."""
    tags: str
    """The tags to receive, such as ``A || B``; by default ``*``, all messages."""
    sql: str
    """An SQL92 expression on the headers, instead of tags."""
    batch: bool
    """If true, the handler gets a list of messages."""
    max_records: int
    """Maximum number of messages in a batch, and that are received in advance: 1 to 32, by default 32."""
    max_workers: int
    """Maximum number of messages that are handled at the same time, by default 1; with ``fifo`` of queues."""
    fifo: bool
    """If true, the messages of a FIFO group are handled in order, and a message that fails holds up its queue."""
    invisible_s: float
    """Seconds after which the group receives the messages of a process that died; by default 60."""
    max_running_s: float
    """Seconds for which a message may be handled before the group receives it again; by default a day."""
    nack_delay_s: float
    """Seconds after which the group receives a failed message again; by default as RocketMQ, from 10 s to 2 h."""
    from_last: bool
    """If true, a new group begins behind the messages that are there."""
    ack_policy: AckPolicy
    """By default NACK_ON_ERROR: a message that fails is received again, and becomes a dead letter in the end."""
    no_reply: bool
    """If true, the handler's result is no reply."""
    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    persistent: bool
    """If false, the broker forgets the subscriber together with the program."""
    title: str | None
    description: str | None
    include_in_schema: bool


class PublisherOptions(SendOptions, total=False):
    """The options of a publisher; those of messages are its defaults."""

    headers: dict[str, str] | None
    reply_to: str
    """A topic for replies."""
    batch: bool
    """If true, a handler's sequence is published as messages of their own."""
    persistent: bool
    title: str | None
    description: str | None
    schema: Any
    include_in_schema: bool


class RouterOptions(TypedDict, total=False):
    """The options that routers and brokers share."""

    dependencies: Sequence[Dependant]
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    routers: Iterable[Any]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    ack_policy: AckPolicy
    underlying_driver_annotations: UnderlyingDriverAnnotations | None


SEND_OPTIONS: Final = frozenset(SendOptions.__annotations__)


def check_names(options: Mapping[str, object], kind: type) -> None:
    """Check that a class of options has the names.

    :raises TypeError: a name is unknown.
    """
    known = kind.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name}; there are {', '.join(known)}")
