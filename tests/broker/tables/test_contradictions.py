"""Members of a group that subscribe differently are told in the log, once for each contradiction."""

from __future__ import annotations

from typing import cast

import pytest

from cometmq.broker.tables.clients import ClientRegistry
from cometmq.remoting.bodies import ConsumerData, SubscriptionData
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import VirtualClock


class _Connection:
    """The parts of a connection that the registry uses."""

    def __init__(self) -> None:
        self.on_close: list[object] = []


def test_each_contradiction_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = ClientRegistry(clock=VirtualClock())
    connections = [cast(ServerConnection, _Connection()) for _ in range(2)]
    version = 0

    def beat(client: int, *topics: str, tags: str) -> list[str]:
        nonlocal version
        version += 1
        channel = registry.channel(connections[client], f"c{client}", "JAVA", 409)
        wanted = [SubscriptionData(topic=topic, sub_string=tags, sub_version=version) for topic in topics]
        caplog.clear()
        registry.consumers.register(ConsumerData(group_name="g", subscription_data_set=wanted), channel)
        return [record.getMessage() for record in caplog.records]

    assert beat(0, "T", tags="red") == []
    assert beat(0, "T", tags="blue") == [], "one member contradicts nobody"
    (told,) = beat(1, "T", tags="red")
    assert "members of group g have different subscriptions" in told
    assert "topic T: one member has TAG blue, another has TAG red" in told
    for client, tags in ((0, "blue"), (1, "red"), (0, "blue")):
        assert beat(client, "T", tags=tags) == [], "heartbeats come again and again"
    assert beat(0, "T", tags="red") == [], "they agree, whoever changed last"
    (told,) = beat(1, "T", "U", tags="red")
    assert "topic U: one member has TAG red, another has no subscription" in told
