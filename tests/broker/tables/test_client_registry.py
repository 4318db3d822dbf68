"""The registry of clients under any order of heartbeats, farewells, lost connections and silence."""

from __future__ import annotations

from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cometmq.broker.limits import CLIENT_EXPIRY_SECONDS
from cometmq.broker.tables.clients import ClientRegistry
from cometmq.remoting.bodies import ConsumerData, SubscriptionData
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import VirtualClock

GROUPS = st.sampled_from(["g", "h"])
CLIENTS = st.integers(0, 3)
TOPICS = st.sets(st.sampled_from(["T", "U"]), min_size=1)


class _Connection:
    """The parts of a connection that the registry uses."""

    def __init__(self) -> None:
        self.on_close: list[object] = []


class ClientRegistryMachine(RuleBasedStateMachine):
    """A model of four clients: when each last beat, by role and group."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.registry = ClientRegistry(clock=self.clock)
        self.changes: list[str] = []
        self.registry.consumers.on_change.append(lambda group: self.changes.append(group.name))
        self.connections = [cast(ServerConnection, _Connection()) for _ in range(4)]
        self.beats: dict[tuple[str, str, int], float] = {}

    @rule(client=CLIENTS, group=GROUPS, topics=TOPICS)
    def consumer_beats(self, client: int, group: str, topics: set[str]) -> None:
        known = ("consumer", group, client) in self.beats
        before = len(self.changes)
        old_group = self.registry.consumers.get(group)
        old_topics = set(old_group.subscriptions) if old_group is not None else set()
        channel = self.registry.channel(self.connections[client], f"c{client}", "PYTHON", 409)
        data = ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic=t) for t in topics])
        self.registry.consumers.register(data, channel)
        self.beats["consumer", group, client] = self.clock.monotonic()
        assert (len(self.changes) > before) is (not known or old_topics != topics)

    @rule(client=CLIENTS, group=GROUPS)
    def producer_beats(self, client: int, group: str) -> None:
        channel = self.registry.channel(self.connections[client], f"c{client}", "PYTHON", 409)
        self.registry.producers.register(group, channel)
        self.beats["producer", group, client] = self.clock.monotonic()

    @rule(client=CLIENTS, group=GROUPS)
    def consumer_leaves(self, client: int, group: str) -> None:
        before = len(self.changes)
        self.registry.consumers.unregister(group, self.connections[client])
        was_there = self.beats.pop(("consumer", group, client), None) is not None
        assert (len(self.changes) > before) is was_there

    @rule(client=CLIENTS, group=GROUPS)
    def producer_leaves(self, client: int, group: str) -> None:
        self.registry.producers.unregister(group, self.connections[client])
        self.beats.pop(("producer", group, client), None)

    @rule(client=CLIENTS)
    def connection_is_lost(self, client: int) -> None:
        self.registry.connection_closed(self.connections[client])
        self.connections[client] = cast(ServerConnection, _Connection())
        self.beats = {key: at for key, at in self.beats.items() if key[2] != client}

    @rule(seconds=st.sampled_from([10, 60, 121]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.registry.expire()
        horizon = self.clock.monotonic() - CLIENT_EXPIRY_SECONDS
        self.beats = {key: at for key, at in self.beats.items() if at >= horizon}

    @invariant()
    def registry_agrees_with_the_model(self) -> None:
        for group in ("g", "h"):
            live = self.registry.consumers.get(group)
            assert sorted(live.client_ids if live is not None else []) == sorted(
                f"c{client}" for role, name, client in self.beats if (role, name) == ("consumer", group)
            )
            producers = self.registry.producers.groups.get(group, {})
            assert sorted(channel.client_id for channel in producers.values()) == sorted(
                f"c{client}" for role, name, client in self.beats if (role, name) == ("producer", group)
            )


TestClientRegistry = ClientRegistryMachine.TestCase
TestClientRegistry.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
