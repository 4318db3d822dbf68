"""The configurations of brokers, subscribers and publishers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
    UnderlyingDriverAnnotation,
    UnderlyingDriverAnnotations,
)
from faststream._internal.constants import EMPTY
from faststream.exceptions import IncorrectState, SetupError
from faststream.middlewares import AckPolicy

from cometmq.client import ConsumeFromWhere, PushConfig, SimpleConsumerConfig
from cometmq.client.consumer.subscription import SQL92, TAG
from cometmq.client.simple.config import MAX_MESSAGES
from faststream_cometmq.connection import Connection, Reads
from faststream_cometmq.options import SendOptions
from faststream_cometmq.producer import RocketMQProducer

DEFAULT_GROUP: Final = "faststream"


def _driver_annotations() -> UnderlyingDriverAnnotations:
    from faststream_cometmq import annotations
    from faststream_cometmq.broker import RocketMQBroker
    from faststream_cometmq.message import RocketMQMessage

    hints = {RocketMQBroker: annotations.RocketMQBroker, RocketMQMessage: annotations.RocketMQMessage}
    return {
        driver: UnderlyingDriverAnnotation(type_hint=hint, module=annotations.__name__, name=driver.__name__)
        for driver, hint in hints.items()
    }


@dataclass(kw_only=True)
class RocketMQBrokerConfig(BrokerConfig):
    """The configuration that a broker and its endpoints share."""

    group: str = DEFAULT_GROUP
    """The producer group, and the beginning of consumer groups."""
    producer: RocketMQProducer = field(default_factory=RocketMQProducer)
    default_driver_annotations: UnderlyingDriverAnnotations = field(default_factory=_driver_annotations)
    _connection: Connection | None = field(default=None, init=False, repr=False)

    @property
    def connection(self) -> Connection:
        """The connection.

        :raises IncorrectState: the broker is not connected.
        """
        if self._connection is None:
            raise IncorrectState("the broker is not connected: await broker.connect() first")
        return self._connection

    def connect(self, connection: Connection) -> None:
        """Use a connection that is open."""
        self._connection = connection
        self.producer.connect(connection.producer, self.fd_config._serializer, self.broker_codec)

    def disconnect(self) -> None:
        """Use no connection any more."""
        self._connection = None
        self.producer.connect(None, None, None)


@dataclass(kw_only=True)
class RocketMQSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """The parts of the AsyncAPI page for a subscriber."""

    topics: tuple[str, ...]


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """The options of a subscriber."""

    _outer_config: BrokerConfig = field(default_factory=RocketMQBrokerConfig)
    topics: tuple[str, ...]
    group: str | None = None
    tags: str | None = None
    sql: str | None = None
    batch: bool = False
    max_records: int = MAX_MESSAGES
    max_workers: int = 1
    fifo: bool = False
    invisible_s: float = 60.0
    max_running_s: float = 86_400.0
    nack_delay_s: float | None = None
    from_last: bool = False

    def __post_init__(self) -> None:
        if not self.topics:
            raise SetupError("a subscriber needs a topic")
        if not 1 <= self.max_records <= MAX_MESSAGES:
            raise SetupError(f"max_records must be from 1 to {MAX_MESSAGES}, not {self.max_records}")
        if self.max_workers < 1:
            raise SetupError(f"max_workers must be 1 or more, not {self.max_workers}")
        if self.tags is not None and self.sql is not None:
            raise SetupError("a subscriber filters by tags= or by sql=, not by both")
        self.simple()

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's own policy, or that of its router or broker."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR

    def reads(self, outer: Any) -> Reads:
        """Return what the subscriber reads, with the prefixes of its routers."""
        topics = tuple(outer.prefix + topic for topic in self.topics)
        expression, kind = (self.tags or "*", TAG) if self.sql is None else (self.sql, SQL92)
        return Reads(self.group or f"{outer.group}-{topics[0]}", topics, expression, kind)

    def simple(self) -> SimpleConsumerConfig:
        """Return the options of a consumer by POP.

        :raises ValueError: a value is out of its range.
        """
        return SimpleConsumerConfig(
            invisible_s=self.invisible_s,
            renew_up_to_s=self.max_running_s,
            gives_back_when_gone=True,
            consume_from_where=self._where(),
        )

    def ordered(self) -> PushConfig:
        """Return the options of a consumer in order."""
        return PushConfig(
            orderly=True,
            consume_batch_size=self.max_records if self.batch else 1,
            consume_concurrency=self.max_workers,
            consume_from_where=self._where(),
        )

    def _where(self) -> ConsumeFromWhere:
        if self.from_last:
            return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@dataclass(kw_only=True)
class RocketMQPublisherSpecificationConfig(PublisherSpecificationConfig):
    """The parts of the AsyncAPI page for a publisher."""

    topic: str


@dataclass(kw_only=True)
class RocketMQPublisherConfig(PublisherUsecaseConfig):
    """The options of a publisher."""

    topic: str
    options: SendOptions
    headers: Mapping[str, str]
    reply_to: str
    batch: bool
