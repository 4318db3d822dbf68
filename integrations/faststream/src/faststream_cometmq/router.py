"""Routers, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY

from faststream_cometmq.config import RocketMQBrokerConfig
from faststream_cometmq.message import Raw
from faststream_cometmq.options import PublisherOptions, RouterOptions, SubscriberOptions, check_names
from faststream_cometmq.registrator import RocketMQRegistrator


class RocketMQPublisher(ArgsContainer):
    """A publisher in the list of a route; its arguments are those of ``broker.publisher``."""

    def __init__(self, topic: str, **options: Unpack[PublisherOptions]) -> None:
        super().__init__(topic, **options)


class RocketMQRoute(SubscriberRoute):
    """A handler in the list of a router; its arguments are those of ``broker.subscriber``."""

    def __init__(
        self,
        call: Callable[..., Any],
        *topics: str,
        publishers: Iterable[RocketMQPublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        super().__init__(call, *topics, publishers=publishers, **options)


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[Raw, RocketMQBrokerConfig]):
    """Subscribers and publishers that a broker includes.

    :param prefix: begins the names of all topics.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketMQRoute] = (),
        *,
        include_in_schema: bool | None = None,
        **options: Unpack[RouterOptions],
    ) -> None:
        super().__init__(
            config=RocketMQBrokerConfig(prefix=prefix, include_in_schema=include_in_schema, **shared(options)),
            handlers=handlers,
            routers=options.get("routers", ()),
        )


def shared(options: RouterOptions) -> dict[str, Any]:
    """Return the options of routers and brokers with the names of their configuration.

    :raises TypeError: an option is unknown.
    """
    check_names(options, RouterOptions)
    return {
        "ack_policy": options.get("ack_policy", EMPTY),
        "broker_dependencies": options.get("dependencies", ()),
        "broker_middlewares": options.get("middlewares", ()),
        "broker_parser": options.get("parser"),
        "broker_decoder": options.get("decoder"),
        "broker_codec": options.get("codec"),
        "underlying_driver_annotations": options.get("underlying_driver_annotations") or {},
    }
