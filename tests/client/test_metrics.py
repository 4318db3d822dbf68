"""Metrics of clients: what real sends and listener calls count, for Prometheus and for OpenTelemetry."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from tests.helpers.waiting import until

from cometmq.client import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
)
from cometmq.client.errors import ClientError
from cometmq.client.metrics import BOUNDS_S, ClientMetrics, OpenTelemetryMetrics, PrometheusMetrics
from cometmq.errors import MissingPackageError
from cometmq.testing import Cluster

FIRST = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


async def use(metrics: ClientMetrics) -> None:
    """Send three messages and a batch of two, fail to send one, consume all, one with a failure."""
    consumed: list[MessageExt] = []

    async def listener(messages: Sequence[MessageExt]) -> ConsumeResult:
        consumed.extend(messages)
        if messages[0].body == b"0" and messages[0].reconsume_times == 0:
            raise ValueError("not this time")
        return ConsumeResult.SUCCESS

    async with Cluster(broker_keys={"maxMessageSize": "1000"}) as cluster:
        await cluster.create_topic("Orders", queues=1)
        address = cluster.namesrv_address
        config = ProducerConfig(retry_times_when_send_failed=0)
        async with Producer("senders", address, config=config, send_hooks=[metrics.send]) as producer:
            for number in range(3):
                await producer.send(Message("Orders", str(number).encode()))
            await producer.send_batch([Message("Orders", b"a"), Message("Orders", b"b")])
            with contextlib.suppress(ClientError):
                await producer.send(Message("Orders", bytes(range(256)) * 8))
        consumer = PushConsumer("billing", listener, address, config=FIRST, consume_hooks=[metrics.consume])
        await consumer.subscribe("Orders")
        async with consumer:
            await until(lambda: len(consumed) >= 5)


async def test_prometheus_counts_sends_and_listener_calls() -> None:
    registry = prometheus_client.CollectorRegistry()
    await use(PrometheusMetrics(registry))
    samples: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(prometheus_client.generate_latest(registry).decode()):
        for sample in family.samples:
            if "le" not in sample.labels and not sample.name.endswith("_created"):
                assert sample.labels["topic"] == "Orders"
                assert sample.labels.get("group", "billing") == "billing"
                samples[sample.name, sample.labels["error"]] = sample.value
    assert samples["messaging_client_sent_messages_total", ""] == 5
    assert samples["messaging_client_operation_duration_seconds_count", ""] == 4, "a batch is sent at once"
    assert samples["messaging_client_consumed_messages_total", "EXCEPTION"] == 1
    assert samples["messaging_client_consumed_messages_total", ""] >= 4
    assert samples["messaging_process_duration_seconds_sum", ""] >= 0
    assert {error for name, error in samples if name == "messaging_client_sent_messages_total"} == {"", "BrokerError"}


async def test_opentelemetry_has_the_names_and_attributes_of_the_conventions() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    await use(OpenTelemetryMetrics(provider))
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, Any] = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert {name: metric.unit for name, metric in found.items()} == {
        "messaging.client.operation.duration": "s",
        "messaging.client.sent.messages": "{message}",
        "messaging.client.consumed.messages": "{message}",
        "messaging.process.duration": "s",
    }
    points = {
        (name, point.attributes.get("error.type")): point for name in found for point in found[name].data.data_points
    }
    sent = points["messaging.client.sent.messages", None]
    assert sent.value == 5
    assert sent.attributes.keys() == {
        *("messaging.system", "messaging.operation.name", "messaging.destination.name"),
        *("server.address", "server.port"),
    }
    duration = points["messaging.client.operation.duration", None]
    assert duration.attributes["messaging.operation.type"] == "send"
    assert tuple(duration.explicit_bounds) == BOUNDS_S
    process = points["messaging.process.duration", None]
    assert dict(process.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.destination.name": "Orders",
        "messaging.consumer.group.name": "billing",
    }
    assert ("messaging.process.duration", "EXCEPTION") in points
    provider.shutdown()


@pytest.mark.parametrize(
    ("package", "kind"), [("prometheus_client", PrometheusMetrics), ("opentelemetry", OpenTelemetryMetrics)]
)
def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, kind: type[ClientMetrics]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError) as missing:
        kind()
    assert "pip install" in (missing.value.next_step or "")
