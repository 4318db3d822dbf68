"""Traces and metrics for OpenTelemetry."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.semconv.trace import SpanAttributes
from opentelemetry.trace import TracerProvider

from faststream_cometmq.message import Raw
from faststream_cometmq.response import RocketMQPublishCommand


class RocketMQTelemetrySettingsProvider(TelemetrySettingsProvider[Raw, RocketMQPublishCommand]):
    """The attributes of spans."""

    def __init__(self) -> None:
        self.messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Raw]) -> dict[str, Any]:
        """Return the attributes of a received message, or of a batch."""
        bodies = msg.body if isinstance(msg.body, list) else [msg.body]
        found = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: sum(map(len, bodies)),
            MESSAGING_DESTINATION_PUBLISH_NAME: self.get_consume_destination_name(msg),
        }
        if isinstance(msg.raw_message, tuple):
            found[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(msg.raw_message)
        return found

    def get_consume_destination_name(self, msg: StreamMessage[Raw]) -> str:
        """Return the topic of a received message."""
        return (msg.raw_message[0] if isinstance(msg.raw_message, tuple) else msg.raw_message).topic

    def get_publish_attrs_from_cmd(self, cmd: RocketMQPublishCommand) -> dict[str, Any]:
        """Return the attributes of a message that is published."""
        return {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: RocketMQPublishCommand) -> str:
        """Return the topic to which a message goes."""
        return cmd.destination


class RocketMQTelemetryMiddleware(TelemetryMiddleware[RocketMQPublishCommand]):
    """Makes spans, and passes their context on in the messages' headers."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: RocketMQTelemetrySettingsProvider(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
