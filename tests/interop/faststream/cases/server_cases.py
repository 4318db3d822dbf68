"""FastStream's test cases that need servers, at ``$NAMESRV_ADDR``."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from faststream import Context
from memory_cases import Four
from prometheus_client import CollectorRegistry
from settings import Real
from tests.brokers.base.connection import BrokerConnectionTestcase
from tests.brokers.base.consume import BrokerRealConsumeTestcase
from tests.brokers.base.middlewares import ExceptionMiddlewareTestcase, MiddlewareTestcase
from tests.brokers.base.parser import CustomParserTestcase
from tests.brokers.base.publish import BrokerPublishTestcase
from tests.brokers.base.requests import RequestsTestcase
from tests.brokers.base.router import RouterTestcase
from tests.opentelemetry.basic import LocalTelemetryTestcase
from tests.prometheus.basic import (
    LocalMetricsSettingsProviderTestcase,
    LocalPrometheusTestcase,
    LocalRPCPrometheusTestcase,
)

from faststream_cometmq import RocketMQBroker, RocketMQPublisher, RocketMQRoute
from faststream_cometmq.opentelemetry import RocketMQTelemetryMiddleware
from faststream_cometmq.prometheus import RocketMQMetricsSettingsProvider, RocketMQPrometheusMiddleware


class TestConnection(BrokerConnectionTestcase):
    broker = RocketMQBroker

    @pytest.fixture
    def settings(self) -> None: ...


class TestConsume(Real, BrokerRealConsumeTestcase): ...


class TestPublish(Real, BrokerPublishTestcase): ...


class TestMiddlewares(Real, MiddlewareTestcase): ...


class TestExceptionMiddlewares(Real, ExceptionMiddlewareTestcase): ...


class TestParser(Real, CustomParserTestcase): ...


class TestRouter(Real, RouterTestcase):
    route_class = RocketMQRoute
    publisher_class = RocketMQPublisher


@pytest.mark.asyncio
class TestRequests(Real, RequestsTestcase):
    def get_middleware(self, **kwargs: Any) -> Any:
        return Four


class TestTelemetry(Real, LocalTelemetryTestcase):
    messaging_system = "rocketmq"
    include_messages_counters = True
    telemetry_middleware_class = RocketMQTelemetryMiddleware

    def patch_broker(self, broker: Any, **kwargs: Any) -> Any:
        return broker


class OfPrometheus(Real):
    messaging_system = "rocketmq"

    def get_middleware(self, **kwargs: Any) -> RocketMQPrometheusMiddleware:
        return RocketMQPrometheusMiddleware(**kwargs)

    @staticmethod
    def get_settings_provider() -> RocketMQMetricsSettingsProvider:
        return RocketMQMetricsSettingsProvider()


class TestPrometheus(OfPrometheus, LocalPrometheusTestcase, LocalRPCPrometheusTestcase): ...


class TestPrometheusProvider(OfPrometheus, LocalMetricsSettingsProviderTestcase): ...


class TestPrometheusOfBatches(OfPrometheus, LocalPrometheusTestcase):
    async def test_metrics(self, queue: str, event: asyncio.Event) -> None:
        registry = CollectorRegistry()
        broker = self.get_broker(apply_types=True, middlewares=(self.get_middleware(registry=registry),))
        found: list[Any] = []

        @broker.subscriber(queue, batch=True)
        async def handler(message: Annotated[Any, Context("message")]) -> None:
            found.append(message)
            event.set()

        async with broker:
            await broker.start()
            await broker.publish_batch("hello", "world", topic=queue)
            await asyncio.wait_for(event.wait(), self.timeout)

        self.assert_metrics(registry=registry, message=found[0], exception_class=None, custom_labels={})
