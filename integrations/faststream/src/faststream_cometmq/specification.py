"""The AsyncAPI page, without bindings, because AsyncAPI has none for RocketMQ."""

from __future__ import annotations

from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from faststream_cometmq.config import (
    RocketMQBrokerConfig,
    RocketMQPublisherSpecificationConfig,
    RocketMQSubscriberSpecificationConfig,
)


class RocketMQSubscriberSpecification(
    SubscriberSpecification[RocketMQBrokerConfig, RocketMQSubscriberSpecificationConfig]
):
    """A subscriber: one channel for each topic."""

    @property
    def channel_labels(self) -> list[str]:
        """The topics, with the prefixes of routers."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channels by name."""
        payloads = self.get_payloads()
        found = {}
        for topic in self.channel_labels:
            name = self._channel_key(topic, split=len(self.config.topics) > 1)
            message = Message(title=f"{name}:Message", payload=resolve_payloads(payloads))
            found[name] = SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        return found


class RocketMQPublisherSpecification(
    PublisherSpecification[RocketMQBrokerConfig, RocketMQPublisherSpecificationConfig]
):
    """A publisher: the channel of its topic."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The channel's name."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel by name."""
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher"))
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }
