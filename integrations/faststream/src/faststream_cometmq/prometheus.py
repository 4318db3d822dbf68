"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.constants import EMPTY
from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from faststream_cometmq.message import Raw
from faststream_cometmq.response import RocketMQPublishCommand

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class RocketMQMetricsSettingsProvider(MetricsSettingsProvider[Raw, RocketMQPublishCommand]):
    """The labels and values of the metrics."""

    def __init__(self) -> None:
        self.messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Raw]) -> ConsumeAttrs:
        """Return a received message's topic, size and count."""
        rows = msg.raw_message if isinstance(msg.raw_message, tuple) else (msg.raw_message,)
        bodies = msg.body if isinstance(msg.body, list) else [msg.body]
        return {
            "destination_name": rows[0].topic,
            "message_size": sum(map(len, bodies)),
            "messages_count": len(rows),
        }

    def get_publish_destination_name_from_cmd(self, cmd: RocketMQPublishCommand) -> str:
        """Return the topic to which a message goes."""
        return cmd.destination


class RocketMQPrometheusMiddleware(PrometheusMiddleware[Raw, RocketMQPublishCommand]):
    """Counts messages, and measures how long they take."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: RocketMQMetricsSettingsProvider(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
