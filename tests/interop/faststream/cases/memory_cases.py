"""FastStream's test cases that need no servers."""

from __future__ import annotations

from typing import Any

import pytest
from faststream import BaseMiddleware
from faststream.response import ensure_response
from settings import Memory
from tests.brokers.base.codec import BatchCodecTestcase, CodecTestcase
from tests.brokers.base.include_router import IncludePublisherTestcase, IncludeSubscriberTestcase
from tests.brokers.base.middlewares import (
    ExceptionMiddlewareTestcase,
    MiddlewaresOrderTestcase,
    MiddlewareTestcase,
)
from tests.brokers.base.parser import CustomParserTestcase
from tests.brokers.base.publish_command import BatchPublishCommandTestcase
from tests.brokers.base.requests import RequestsTestcase
from tests.brokers.base.router import RouterLocalTestcase
from tests.brokers.base.testclient import BrokerTestclientTestcase

from faststream_cometmq import (
    RocketMQPublishCommand,
    RocketMQPublisher,
    RocketMQResponse,
    RocketMQRoute,
)
from faststream_cometmq.testing import FakeProducer


class Four(BaseMiddleware):
    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body *= 4
        return await call_next(msg)


class TestClient(Memory, BrokerTestclientTestcase):
    @pytest.fixture
    def fake_producer_cls(self) -> type:
        return FakeProducer

    def get_fake_producer_class(self) -> type:
        return FakeProducer


class TestCodec(Memory, CodecTestcase): ...


class TestBatchCodec(Memory, BatchCodecTestcase): ...


class TestIncludeSubscriber(Memory, IncludeSubscriberTestcase): ...


class TestIncludePublisher(Memory, IncludePublisherTestcase): ...


class TestMiddlewaresOrder(Memory, MiddlewaresOrderTestcase): ...


class TestMiddlewares(Memory, MiddlewareTestcase): ...


class TestExceptionMiddlewares(Memory, ExceptionMiddlewareTestcase): ...


class TestParser(Memory, CustomParserTestcase): ...


class TestRouter(Memory, RouterLocalTestcase):
    route_class = RocketMQRoute
    publisher_class = RocketMQPublisher


@pytest.mark.asyncio
class TestRequests(Memory, RequestsTestcase):
    def get_middleware(self, **kwargs: Any) -> Any:
        return Four


class TestPublishCommand(BatchPublishCommandTestcase):
    publish_command_cls = RocketMQPublishCommand

    def test_options_of_a_response(self) -> None:
        response = ensure_response(RocketMQResponse(1, headers={"1": "1"}, tags="A"))
        command = RocketMQPublishCommand.from_cmd(response.as_publish_command())
        assert (command.body, command.headers, command.options) == (1, {"1": "1"}, {"tags": "A"})
