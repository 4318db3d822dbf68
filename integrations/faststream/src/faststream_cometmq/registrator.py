"""Registers subscribers and publishers with brokers and routers."""

from __future__ import annotations

from typing import Any, Unpack, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection

from faststream_cometmq.config import (
    RocketMQBrokerConfig,
    RocketMQPublisherConfig,
    RocketMQPublisherSpecificationConfig,
    RocketMQSubscriberConfig,
    RocketMQSubscriberSpecificationConfig,
)
from faststream_cometmq.message import Raw
from faststream_cometmq.options import SEND_OPTIONS, PublisherOptions, SendOptions, SubscriberOptions, check_names
from faststream_cometmq.publisher import RocketMQPublisher
from faststream_cometmq.specification import RocketMQPublisherSpecification, RocketMQSubscriberSpecification
from faststream_cometmq.subscriber import RocketMQSubscriber


class RocketMQRegistrator(Registrator[Raw, RocketMQBrokerConfig]):
    """The methods that brokers and routers share."""

    def subscriber(self, *topics: str, **options: Unpack[SubscriberOptions]) -> RocketMQSubscriber:  # type: ignore[override]
        """Pass the messages of topics to a handler.

        :param options: see :class:`~faststream_cometmq.options.SubscriberOptions`.
        :raises SetupError: an option is out of its range.
        :raises TypeError: an option is unknown.
        """
        check_names(options, SubscriberOptions)
        rest: dict[str, Any] = dict(options)
        persistent = rest.pop("persistent", True)
        specified = RocketMQSubscriberSpecificationConfig(
            topics=topics,
            title_=rest.pop("title", None),
            description_=rest.pop("description", None),
            include_in_schema=rest.pop("include_in_schema", True),
        )
        parser, decoder, codec = rest.pop("parser", None), rest.pop("decoder", None), rest.pop("codec", None)
        dependencies = rest.pop("dependencies", ())
        outer = cast("RocketMQBrokerConfig", self.config)
        config = RocketMQSubscriberConfig(
            topics=topics, _outer_config=outer, _ack_policy=rest.pop("ack_policy", EMPTY), **rest
        )
        calls = CallsCollection[Raw]()
        subscriber = RocketMQSubscriber(config, RocketMQSubscriberSpecification(outer, specified, calls), calls)
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(self, topic: str, **options: Unpack[PublisherOptions]) -> RocketMQPublisher:  # type: ignore[override]
        """Return a publisher to a topic, which also decorates handlers.

        :param options: see :class:`~faststream_cometmq.options.PublisherOptions`.
        :raises TypeError: an option is unknown.
        """
        check_names(options, PublisherOptions)
        outer = cast("RocketMQBrokerConfig", self.config)
        specified = RocketMQPublisherSpecificationConfig(
            topic=topic,
            schema_=options.get("schema"),
            title_=options.get("title"),
            description_=options.get("description"),
            include_in_schema=options.get("include_in_schema", True),
        )
        config = RocketMQPublisherConfig(
            topic=topic,
            options=cast("SendOptions", {name: value for name, value in options.items() if name in SEND_OPTIONS}),
            headers=options.get("headers") or {},
            reply_to=options.get("reply_to", ""),
            batch=options.get("batch", False),
            _outer_config=outer,
        )
        publisher = RocketMQPublisher(config, RocketMQPublisherSpecification(outer, specified))
        super().publisher(publisher, persistent=options.get("persistent", True))
        return publisher

    def include_router(self, router: Any, **options: Any) -> None:
        """Include a router's subscribers and publishers.

        :raises TypeError: the router is one of another provider.
        """
        if not isinstance(router, RocketMQRegistrator):
            raise TypeError(f"a RocketMQRouter is needed, not a {type(router).__name__}")
        super().include_router(router, **options)
