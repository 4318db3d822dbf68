"""What a broker does at intervals costs nothing while nothing has happened."""

from __future__ import annotations

from typing import cast

import pytest

import cometmq.broker.periodic_work
from cometmq.broker.controller import Broker
from cometmq.broker.limits import CLIENT_SCAN_SECONDS, GONE_FOR_RETURN
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import VirtualClock


class Connection:
    """The parts of a connection that the registry uses."""

    def __init__(self) -> None:
        self.on_close: list[object] = []
        self.remote_address = "127.0.0.1:1"


async def test_free_memory_goes_back_once_thousands_have_gone(
    broker: Broker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[int] = []
    monkeypatch.setattr(cometmq.broker.periodic_work, "give_back", lambda: returned.append(1))
    connection = cast(ServerConnection, Connection())
    channel = broker.clients.channel(connection, "c", "PYTHON", 409)
    for number in range(GONE_FOR_RETURN - 1):
        broker.clients.producers.register(f"p{number}", channel)
    broker.clients.connection_closed(connection)
    await clock.run_for(CLIENT_SCAN_SECONDS + 1)
    assert (broker.clients.producers.members, returned) == (0, [])
    broker.topics.put(TopicConfig(topic_name="T"))
    broker.topics.delete("T")
    await clock.run_for(CLIENT_SCAN_SECONDS + 1)
    assert returned == [1]
    await clock.run_for(10 * CLIENT_SCAN_SECONDS)
    assert returned == [1]
