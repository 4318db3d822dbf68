"""Clients that come and go are named in the log, ten in a period; more are counted."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from cometmq.broker.clients.client_lines import NAMED_IN_A_PERIOD, ClientLines
from cometmq.broker.tables.clients import ClientRegistry
from cometmq.broker.tables.consumer_group import ClientChannel
from cometmq.message.names import TOOLS_GROUP
from cometmq.remoting.bodies import ConsumerData
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import VirtualClock


class _Connection:
    """The parts of a connection that the registry and the lines use."""

    remote_address = "10.0.0.1:5"

    def __init__(self) -> None:
        self.on_close: list[object] = []


def test_the_first_are_named_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cometmq")
    registry = ClientRegistry(clock=VirtualClock())
    lines = ClientLines(registry)

    def channel(client: str) -> ClientChannel:
        return registry.channel(cast(ServerConnection, _Connection()), client, "JAVA", 409)

    def told() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    first = channel("c1")
    for _ in range(2):
        registry.consumers.register(ConsumerData(group_name="g"), first)
        registry.consumers.register(ConsumerData(group_name=TOOLS_GROUP), first)
    registry.producers.register("p", first)
    assert told() == [
        "consumer c1 of group g joined from 10.0.0.1:5 (JAVA)",
        "producer c1 of group p joined from 10.0.0.1:5 (JAVA)",
    ]
    registry.connection_closed(first.connection)
    assert sorted(told()) == ["consumer c1 of group g left", "producer c1 of group p left"]
    for number in range(NAMED_IN_A_PERIOD):
        registry.producers.register("p", channel(f"c{number}"))
    assert len(told()) == NAMED_IN_A_PERIOD - 4
    lines.log_counts()
    assert told() == ["4 more clients joined and 0 left; group members now: 10 producers, 0 consumers"]
    registry.producers.register("p", channel("another"))
    assert len(told()) == 1, "a new period"
