"""Heartbeats that repeat what other members have sent take a short way, which changes and allows nothing else."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.heartbeats import beat
from tests.broker.wire import Connect

from cometmq.broker.controller import Broker
from cometmq.broker.limits import MAX_SUBSCRIPTION_CHARS, SHORT_HEARTBEAT_GROUPS
from cometmq.broker.tables.clients import ConsumerManager, Heartbeats
from cometmq.broker.tables.consumer_group import ClientChannel, ConsumerGroup
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.server_connection import ServerConnection

SUBSCRIPTIONS = st.builds(
    SubscriptionData,
    topic=st.sampled_from("TU"),
    sub_string=st.sampled_from(["*", "a"]),
    expression_type=st.sampled_from(["TAG", "SQL92"]),
    sub_version=st.integers(1, 2),
    tags_set=st.lists(st.sampled_from("ab"), max_size=1),
    code_set=st.lists(st.integers(0, 1), max_size=1),
)
DATA = st.builds(
    ConsumerData,
    group_name=st.just("g"),
    message_model=st.sampled_from(["CLUSTERING", "BROADCASTING"]),
    subscription_data_set=st.lists(SUBSCRIPTIONS, max_size=3),
)


def state_after(beats: list[tuple[int, ConsumerData]]) -> list[Any]:
    """What a broker knows and tells after each of some heartbeats of members of a group."""
    manager = ConsumerManager(Heartbeats())
    changes: list[str] = []
    manager.on_change.append(lambda group: changes.append(group.name))
    seen: list[Any] = []
    for member, data in beats:
        channel = ClientChannel(cast(ServerConnection, member), "c", "JAVA", 1, 0.0, 0)
        if manager.known([data]) == [True]:
            manager.join("g", channel)
        else:
            manager.register(data, channel)
        group = manager.get("g")
        assert group is not None
        kinds = group.consume_type, group.message_model, group.consume_from_where
        seen.append((kinds, dict(group.subscriptions), group.contradiction, manager._chars, len(changes)))
    return seen


@given(st.lists(st.tuples(st.integers(0, 2), DATA), max_size=6))
def test_a_repeated_heartbeat_changes_what_any_other_would(beats: list[tuple[int, ConsumerData]]) -> None:
    usual = state_after(beats)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConsumerGroup, "repeats", lambda _group, _data: False)
        assert state_after(beats) == usual


@given(st.lists(DATA, min_size=1, max_size=3), DATA)
def test_a_repeated_heartbeat_has_nothing_that_was_not_checked(applied: list[ConsumerData], data: ConsumerData) -> None:
    manager = ConsumerManager(Heartbeats())
    for number, one in enumerate(applied):
        manager.register(one, ClientChannel(cast(ServerConnection, number), "c", "JAVA", 1, 0.0, 0))
    if manager.known([data]) == [True]:
        group = manager.get("g")
        assert group is not None
        for sent in data.subscription_data_set:
            known = group.subscriptions[sent.topic]
            assert (known.sub_string, known.tags_set, known.code_set) == (
                sent.sub_string,
                sent.tags_set,
                sent.code_set,
            )


def consumer(number: int = 0, **fields: Any) -> ConsumerData:
    return ConsumerData(group_name=f"g{number}", subscription_data_set=[SubscriptionData(topic="T", **fields)])


def heartbeat(client: str, *consumers: ConsumerData, producers: int = 0) -> bytes:
    return encode_body(
        HeartbeatData(
            client_id=client,
            consumer_data_set=list(consumers),
            producer_data_set=[ProducerData(group_name=f"p{number}") for number in range(producers)],
        )
    )


async def test_a_repeated_heartbeat_with_other_tags_is_checked(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await beat(first, heartbeat("first", consumer()))
    tags = ["t" * (MAX_SUBSCRIPTION_CHARS + 1)]
    answer = await second.call(RequestCode.HEART_BEAT, body=heartbeat("second", consumer(tags_set=tags)))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(MAX_SUBSCRIPTION_CHARS) in (answer.remark or "")


@pytest.mark.parametrize("groups", [1, SHORT_HEARTBEAT_GROUPS // 2, SHORT_HEARTBEAT_GROUPS // 2 + 1, 200])
async def test_heartbeats_of_few_and_of_many_groups_register_the_same(
    broker: Broker, connect: Connect, groups: int
) -> None:
    clients = broker.clients
    for client in ("first", "second"):
        body = heartbeat(client, *(consumer(number) for number in range(groups)), producers=groups)
        wire = await connect()
        for _ in range(2):
            await beat(wire, body)
    assert (clients.consumers.members, clients.producers.members) == (2 * groups, 2 * groups)
    assert set(clients.consumers.groups) == {f"g{number}" for number in range(groups)}
    assert all(broker.topics.get(f"%RETRY%g{number}") for number in range(groups))
