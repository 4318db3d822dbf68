"""How FastStream's test cases make our brokers."""

from __future__ import annotations

from typing import Any

from tests.brokers.base.basic import BaseTestcaseConfig

from faststream_cometmq import RocketMQBroker, RocketMQRouter, TestRocketMQBroker


class Real(BaseTestcaseConfig):
    """With the servers of ``$NAMESRV_ADDR``."""

    timeout = 15.0

    def get_broker(self, apply_types: bool = False, **kwargs: Any) -> RocketMQBroker:
        return RocketMQBroker(apply_types=apply_types, topic_queues=1, **kwargs)  # a case relies on the order

    def get_router(self, **kwargs: Any) -> RocketMQRouter:
        return RocketMQRouter(**kwargs)


class Memory(Real):
    """Without servers."""

    timeout = 3.0

    def patch_broker(self, *brokers: Any, **kwargs: Any) -> Any:
        return TestRocketMQBroker(*brokers, **kwargs)
