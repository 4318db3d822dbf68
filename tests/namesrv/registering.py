"""Registrations of brokers in a route table."""

from __future__ import annotations

from typing import Any

from cometmq.loop import finish
from cometmq.namesrv.routes import BrokerIdentity, Registered, RouteRegistration, RouteTable, queues_of
from cometmq.remoting.bodies import DataVersion, TopicConfig

MASTER = BrokerIdentity("C", "a", 0, "10.0.0.1:10911")
SLAVE = BrokerIdentity("C", "a", 1, "10.0.0.2:10911")


def register(
    table: RouteTable,
    identity: BrokerIdentity = MASTER,
    topics: dict[str, TopicConfig] | None = None,
    *,
    counter: int = 0,
    state: int | None = None,
    connection: Any = None,
    now_s: float = 0.0,
) -> Registered:
    return finish(
        table.register(registration(identity, topics, counter=counter, state=state, connection=connection, now_s=now_s))
    )


def registration(
    identity: BrokerIdentity = MASTER,
    topics: dict[str, TopicConfig] | None = None,
    *,
    counter: int = 0,
    state: int | None = None,
    connection: Any = None,
    now_s: float = 0.0,
) -> RouteRegistration:
    return RouteRegistration(
        identity,
        queues_of(identity, topics or {}),
        ha_address=identity.address + "-ha",
        data_version=DataVersion(counter=counter, state_version=state, timestamp=1),
        filter_servers=[],
        connection=connection,
        now_s=now_s,
    )
