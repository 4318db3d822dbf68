"""FastStream's test cases of AsyncAPI pages."""

from __future__ import annotations

from typing import Any

from tests.asyncapi.base.v2_6_0 import arguments as arguments_2
from tests.asyncapi.base.v2_6_0 import naming as naming_2
from tests.asyncapi.base.v2_6_0 import publisher as publisher_2
from tests.asyncapi.base.v2_6_0 import router as router_2
from tests.asyncapi.base.v3_0_0 import arguments as arguments_3
from tests.asyncapi.base.v3_0_0 import naming as naming_3
from tests.asyncapi.base.v3_0_0 import publisher as publisher_3
from tests.asyncapi.base.v3_0_0 import router as router_3

from faststream_cometmq import RocketMQBroker, RocketMQPublisher, RocketMQRoute, RocketMQRouter


class Classes:
    broker_class: Any = RocketMQBroker
    router_class = RocketMQRouter
    route_class = RocketMQRoute
    publisher_class = RocketMQPublisher


class TestArguments2(Classes, arguments_2.ArgumentsTestcase): ...


class TestArguments3(Classes, arguments_3.ArgumentsTestcase): ...


class TestNaming2(Classes, naming_2.NamingTestCase): ...


class TestNaming3(Classes, naming_3.NamingTestCase): ...


class TestPublisher2(Classes, publisher_2.PublisherTestcase): ...


class TestPublisher3(Classes, publisher_3.PublisherTestcase): ...


class TestRouter2(Classes, router_2.RouterTestcase): ...


class TestRouter3(Classes, router_3.RouterTestcase): ...


class OfRouters(Classes):
    broker_class = RocketMQRouter

    def get_spec(self, *routers: Any) -> Any:
        return super().get_spec(RocketMQBroker(routers=routers))  # type: ignore[misc]


class TestArgumentsOfRouters(OfRouters, arguments_3.ArgumentsTestcase): ...


class TestPublisherOfRouters(OfRouters, publisher_3.PublisherTestcase): ...
