"""Producer and consumer metrics for Prometheus and OpenTelemetry.

Both have the instruments of OpenTelemetry's semantic conventions for messaging: the time of each send, sent and
consumed messages, and the time of each call of a listener. They are hooks (:mod:`cometmq.client.hooks`), so clients
that do not use them have no extra cost, and one object serves any number of clients in a process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.hooks import (
    ConsumeMessageContext,
    ConsumeMessageHook,
    ConsumeReturnType,
    SendMessageContext,
    SendMessageHook,
)
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import MissingPackageError, pip_install
from cometmq.message.hosts import parse_address

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bucket bounds for both histograms, as recommended by the conventions."""

_BEGAN: Final = "cometmq.client.metrics"


@dataclass(frozen=True, slots=True)
class Sent:
    """A send attempt."""

    topic: str
    address: str
    messages: int
    seconds: float
    error: str
    """The class of the error; empty if the send succeeded."""


@dataclass(frozen=True, slots=True)
class Processed:
    """A listener call."""

    topic: str
    group: str
    messages: int
    seconds: float
    error: str
    """The kind of failure (``TIME_OUT``, ``EXCEPTION``, ``RETURNNULL`` or ``FAILED``); empty after success."""


class ClientMetrics:
    """Hooks that measure producers and consumers; a subclass records the metrics.

    ``Producer(send_hooks=[metrics.send])``, ``PushConsumer(consume_hooks=[metrics.consume])``.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.send: Final = SendMessageHook(before=self._begin, after=self._sent)
        self.consume: Final = ConsumeMessageHook(before=self._begin, after=self._processed)

    def count_sent(self, sent: Sent) -> None:
        """Count a send attempt. Called on the client's event loop."""
        raise NotImplementedError

    def count_processed(self, processed: Processed) -> None:
        """Count a listener call. Called in the same thread as the listener."""
        raise NotImplementedError

    def _begin(self, context: SendMessageContext | ConsumeMessageContext) -> None:
        context.props[_BEGAN] = self._clock.monotonic()

    def _seconds(self, context: SendMessageContext | ConsumeMessageContext) -> float:
        began = context.props.get(_BEGAN)
        return self._clock.monotonic() - began if isinstance(began, float) else 0.0

    def _sent(self, context: SendMessageContext) -> None:
        error = "" if context.error is None else type(context.error).__name__
        topic = context.messages[0].topic if context.messages else context.queue.topic
        self.count_sent(Sent(topic, context.broker_address, len(context.messages), self._seconds(context), error))

    def _processed(self, context: ConsumeMessageContext) -> None:
        error = "" if context.success else (context.return_type or ConsumeReturnType.FAILED).name
        topic, count = context.messages[0].topic, len(context.messages)
        self.count_processed(Processed(topic, context.consumer_group, count, self._seconds(context), error))


class PrometheusMetrics(ClientMetrics):
    """Records metrics in a ``prometheus_client`` registry.

    ``messaging_client_operation_duration_seconds``, ``messaging_client_sent_messages_total``,
    ``messaging_client_consumed_messages_total`` and ``messaging_process_duration_seconds``. Create one object for each
    registry.

    :param registry: the registry to use; by default the process's default registry.
    :raises MissingPackageError: ``prometheus_client`` is not installed.
    """

    def __init__(self, registry: CollectorRegistry | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(clock)
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise MissingPackageError(
                "prometheus_client is not installed", next_step="pip install prometheus-client"
            ) from None
        registry = prometheus.REGISTRY if registry is None else registry
        of_send, of_group = ("topic", "error"), ("topic", "group", "error")
        self._duration = prometheus.Histogram(
            "messaging_client_operation_duration_seconds",
            "Duration of a send attempt.",
            of_send,
            buckets=BOUNDS_S,
            registry=registry,
        )
        self._sent_messages = prometheus.Counter(
            "messaging_client_sent_messages_total",
            "Messages that were sent or failed to be sent.",
            of_send,
            registry=registry,
        )
        self._consumed_messages = prometheus.Counter(
            "messaging_client_consumed_messages_total",
            "Messages passed to a listener.",
            of_group,
            registry=registry,
        )
        self._process_duration = prometheus.Histogram(
            "messaging_process_duration_seconds",
            "Duration of a listener call.",
            of_group,
            buckets=BOUNDS_S,
            registry=registry,
        )

    def count_sent(self, sent: Sent) -> None:
        """Count a send attempt."""
        labels = sent.topic, sent.error
        self._duration.labels(*labels).observe(sent.seconds)
        self._sent_messages.labels(*labels).inc(sent.messages)

    def count_processed(self, processed: Processed) -> None:
        """Count a listener call."""
        labels = processed.topic, processed.group, processed.error
        self._process_duration.labels(*labels).observe(processed.seconds)
        self._consumed_messages.labels(*labels).inc(processed.messages)


class OpenTelemetryMetrics(ClientMetrics):
    """Records metrics with the names, units and attributes of OpenTelemetry's semantic conventions for messaging.

    ``messaging.client.operation.duration``, ``messaging.client.sent.messages``,
    ``messaging.client.consumed.messages`` and ``messaging.process.duration``; ``messaging.system`` is ``rocketmq``.

    :param provider: the meter provider to use; by default the provider that the application has set.
    :raises MissingPackageError: ``opentelemetry-api`` is not installed.
    """

    def __init__(self, provider: MeterProvider | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(clock)
        try:
            from opentelemetry import metrics
        except ImportError:
            raise MissingPackageError(
                "opentelemetry-api is not installed", next_step=pip_install("opentelemetry")
            ) from None
        meter = (metrics.get_meter_provider() if provider is None else provider).get_meter("cometmq.client")
        bounds = list(BOUNDS_S)
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of a send attempt.",
            explicit_bucket_boundaries_advisory=bounds,
        )  # fmt: skip
        self._sent_messages = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were sent or failed to be sent."
        )
        self._consumed_messages = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages passed to a listener."
        )
        self._process_duration = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of a listener call.",
            explicit_bucket_boundaries_advisory=bounds,
        )  # fmt: skip

    def count_sent(self, sent: Sent) -> None:
        """Count a send attempt."""
        host, port = parse_address(sent.address)
        attributes = _attributes("send", sent.topic, sent.error) | {"server.address": host, "server.port": port}
        self._sent_messages.add(sent.messages, attributes)
        self._duration.record(sent.seconds, attributes | {"messaging.operation.type": "send"})

    def count_processed(self, processed: Processed) -> None:
        """Count a listener call."""
        attributes = _attributes("process", processed.topic, processed.error)
        attributes["messaging.consumer.group.name"] = processed.group
        self._consumed_messages.add(processed.messages, attributes)
        self._process_duration.record(processed.seconds, attributes)


def _attributes(operation: str, topic: str, error: str) -> dict[str, Any]:
    found = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }
    return found | ({"error.type": error} if error else {})
