from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.consumer.rebalance import (
    AllocateStrategy,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    averagely,
    averagely_by_circle,
    ring_hash,
)
from cometmq.remoting.bodies import MessageQueue


def nearby(inner: AllocateStrategy = averagely) -> MachineRoomNearby:
    return MachineRoomNearby(lambda queue: queue.broker_name.split("@")[0], lambda client: client[0], inner)


def queues_of(brokers: dict[str, int]) -> list[MessageQueue]:
    return sorted(MessageQueue("T", broker, number) for broker, count in brokers.items() for number in range(count))


members = st.lists(st.from_regex(r"[ab][0-9]{1,3}", fullmatch=True), min_size=1, max_size=12, unique=True).map(sorted)
layouts = st.dictionaries(st.sampled_from(["a@1", "a@2", "b@1", "c@1"]), st.integers(1, 9), min_size=1, max_size=4).map(
    queues_of
)
sharing = st.sampled_from(
    [
        averagely,
        averagely_by_circle,
        ConsistentHash(),
        ConsistentHash(virtual_nodes=3),
        nearby(),
        nearby(averagely_by_circle),
    ]
)


@given(sharing, layouts, members)
def test_every_queue_goes_to_exactly_one_member(
    strategy: AllocateStrategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    shares = [queue for client in clients for queue in strategy("g", client, queues, clients)]
    assert sorted(shares) == queues


@given(st.sampled_from([averagely, averagely_by_circle]), layouts, members)
def test_equal_shares_differ_by_one_at_most(
    strategy: AllocateStrategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    sizes = [len(strategy("g", client, queues, clients)) for client in clients]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(layouts, members)
def test_a_machine_room_with_consumers_keeps_its_queues(queues: list[MessageQueue], clients: list[str]) -> None:
    rooms = {client[0] for client in clients}
    for client in clients:
        for queue in nearby()("g", client, queues, clients):
            room = queue.broker_name.split("@")[0]
            assert room == client[0] or room not in rooms


@given(layouts, members)
def test_by_machine_room_shares_the_queues_of_allowed_rooms(queues: list[MessageQueue], clients: list[str]) -> None:
    strategy = ByMachineRoom(frozenset({"a"}))
    shares = [queue for client in clients for queue in strategy("g", client, queues, clients)]
    assert sorted(shares) == [queue for queue in queues if queue.broker_name.startswith("a@")]


@given(sharing, layouts, members)
def test_a_stranger_gets_nothing(strategy: AllocateStrategy, queues: list[MessageQueue], clients: list[str]) -> None:
    assert strategy("g", "stranger", queues, clients) == []


@given(layouts, members)
def test_a_leaving_member_moves_no_queue_of_the_others_on_the_ring(
    queues: list[MessageQueue], clients: list[str]
) -> None:
    if len(clients) < 2:
        return
    gone, *rest = clients
    strategy = ConsistentHash()
    for client in rest:
        before = set(strategy("g", client, queues, clients))
        assert before <= set(strategy("g", client, queues, rest))
    assert gone not in rest


def test_averagely_as_java_does() -> None:
    queues = queues_of({"b": 8})
    shares = [[queue.queue_id for queue in averagely("g", client, queues, "xyz")] for client in "xyz"]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_averagely_by_circle_as_java_does() -> None:
    queues = queues_of({"b": 8})
    shares = [[queue.queue_id for queue in averagely_by_circle("g", client, queues, "xyz")] for client in "xyz"]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_by_config_takes_what_it_is_told() -> None:
    fixed = MessageQueue("T", "b", 3)
    assert ByConfig((fixed,))("g", "anyone", queues_of({"b": 8}), ["other"]) == [fixed]


def test_the_ring_hash_is_the_first_four_bytes_of_md5_unsigned() -> None:
    # RFC 1321: MD5("abc") begins 90 01 50 98, which is negative as a Java int.
    assert hashlib.md5(b"abc").hexdigest().startswith("90015098")
    assert ring_hash("abc") == 0x90015098


def test_a_queue_belongs_to_the_first_point_at_or_after_its_hash() -> None:
    points = {"A-0": 100, "B-0": 200}
    queues = queues_of({"b": 4})
    key = "MessageQueue [topic=T, brokerName=b, queueId=%d]"
    places = {key % 0: 100, key % 1: 101, key % 2: 200, key % 3: 201}
    strategy = ConsistentHash(virtual_nodes=1, hash_function=lambda text: {**points, **places}[text])
    assert [queue.queue_id for queue in strategy("g", "A", queues, ["A", "B"])] == [0, 3]
    assert [queue.queue_id for queue in strategy("g", "B", queues, ["A", "B"])] == [1, 2]


def test_an_unknown_machine_room_is_an_error() -> None:
    strategy = MachineRoomNearby(lambda queue: "", lambda client: "a")
    with pytest.raises(ValueError, match=r"the machine room of .* is unknown"):
        strategy("g", "x", queues_of({"b": 1}), ["x"])
