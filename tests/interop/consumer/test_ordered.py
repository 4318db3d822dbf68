"""Orderly consumers of real clients: alone, and in one group with CometMQ's own."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from tests.helpers.waiting import wait_for
from tests.interop.clients import ORDERLY, PATIENCE_S, Client, Series, queue_positions
from tests.interop.commands import Running
from tests.interop.systems import Deployment

from cometmq.client import ConsumeFromWhere, Message, MessageExt, PushConfig
from cometmq.client.sync import SyncAdmin, SyncProducer, SyncPushConsumer

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]
QUEUES = 4
SOON_S = 55.0
"""Less than the 60 s that a lock lasts which nobody frees. A member looks at its group every 20 s at least."""
# Members look at their group every 20 s; the C++ client does not unlock a queue that it leaves: it rests for a minute.
HANDOVER_S = 120.0
# The Go client keeps the locks of queues that it gave to another member, over Apache's broker too.
MIXED = ("java4", "java5", "cpp")
# The C++ client never asks again for a lock that it was refused once, over Apache's broker neither.
JOINING = ("java4", "java5", "go")


class Ours:
    """A member of CometMQ's own client and what it got."""

    def __init__(self, cluster: Deployment, topic: str, group: str) -> None:
        self._lock = threading.Lock()
        self._positions: dict[int, list[int]] = defaultdict(list)
        config = PushConfig(orderly=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        self.consumer = SyncPushConsumer(group, self._listen, cluster.address, config=config)
        self.consumer.subscribe(topic)
        self.consumer.start()

    def _listen(self, messages: Sequence[MessageExt]) -> None:
        with self._lock:
            for message in messages:
                self._positions[message.queue_id].append(message.queue_offset)

    @property
    def positions(self) -> dict[int, list[int]]:
        with self._lock:
            return {queue: list(offsets) for queue, offsets in self._positions.items()}


def send(cluster: Deployment, topic: str, first: int, count: int) -> None:
    with SyncProducer("interop-ordered", cluster.address) as producer:
        for number in range(first, first + count):
            producer.send(Message(topic, f"{number}".encode()), sharding_key=f"key-{number % 16}")


def total(*parts: dict[int, list[int]]) -> int:
    return sum(len(offsets) for part in parts for offsets in part.values())


def theirs(member: Running) -> dict[int, list[int]]:
    return queue_positions(member.named("message"))


def until_consumed(
    count: int, patience_s: float, what: str, ours: Ours | None = None, member: Running | None = None
) -> None:
    """Wait until members have got so many messages; where they do not, tell who has got and holds what."""

    def consumed() -> list[dict[int, list[int]]]:
        return [*([] if ours is None else [ours.positions]), *([] if member is None else [theirs(member)])]

    try:
        wait_for(lambda: total(*consumed()) >= count, what, patience_s)
    except TimeoutError as error:
        held = "" if ours is None else f", ours holds {sorted(ours.consumer.assignment)}"
        raise AssertionError(f"{error}: {count} wanted, {consumed()}{held}") from error


def until_committed(cluster: Deployment, topic: str, group: str, count: int) -> None:
    """Wait until offsets of the group pass so many messages: a member that stops between the two hands out again."""
    with SyncAdmin(cluster.address) as admin:

        def committed() -> int:
            progress = admin.consume_progress(group, topic)
            return sum(max(queue.consumer_offset, 0) for queue in progress.queues)

        wait_for(lambda: committed() >= count, f"{count} messages are committed", PATIENCE_S)


def held(member: Running) -> int:
    """The number of queues that a Java member reported last."""
    events = member.named("assigned")
    return len(events[-1]["queues"]) if events else 0


def assert_in_order(*members: dict[int, list[int]]) -> None:
    """Each queue was consumed once from its beginning, and passed from member to member as a whole."""
    for queue in {queue for member in members for queue in member}:
        runs = sorted((member[queue] for member in members if member.get(queue)), key=lambda run: run[0])
        offsets = [offset for run in runs for offset in run]
        assert offsets == list(range(len(offsets))), (queue, members)


@pytest.mark.parametrize("name", ORDERLY)
def test_an_orderly_consumer_gets_every_queue_in_order(
    cluster: Deployment, clients: GetClient, topic: str, group: str, name: str
) -> None:
    send(cluster, topic, 0, 100)
    messages = clients(name).consume(cluster.address, topic, group, 100, mode="orderly")
    assert_in_order(queue_positions(messages))


@pytest.mark.parametrize("name", MIXED)
def test_real_members_and_ours_hand_queues_to_each_other_in_order(
    cluster: Deployment, clients: GetClient, topic: str, group: str, name: str
) -> None:
    member = clients(name).start_consuming(cluster.address, topic, group, mode="orderly", timeout=200)
    send(cluster, topic, 0, 48)
    until_consumed(48, PATIENCE_S, f"{name} alone consumes everything", member=member)
    until_committed(cluster, topic, group, 48)
    ours = Ours(cluster, topic, group)
    wait_for(lambda: len(ours.consumer.assignment) == QUEUES // 2, "half of the queues are ours", HANDOVER_S)
    # Java hands out again what its listener has when it gives up a queue.
    wait_for(lambda: not name.startswith("java") or held(member) == QUEUES // 2, "the other half is left", HANDOVER_S)
    send(cluster, topic, 48, 48)
    until_consumed(96, HANDOVER_S, "both together consume everything", ours, member)
    until_committed(cluster, topic, group, 96)
    member.stop()
    send(cluster, topic, 96, 48)
    until_consumed(144, HANDOVER_S, "ours takes over", ours, member)
    assert_in_order(theirs(member), ours.positions)
    ours.consumer.close()


@pytest.mark.parametrize("name", JOINING)
def test_a_real_member_takes_over_from_ours(
    cluster: Deployment, clients: GetClient, topic: str, group: str, name: str
) -> None:
    ours = Ours(cluster, topic, group)
    send(cluster, topic, 0, 48)
    until_consumed(48, PATIENCE_S, "ours consumes everything", ours)
    member = clients(name).start_consuming(cluster.address, topic, group, mode="orderly", timeout=200)
    wait_for(lambda: len(ours.consumer.assignment) == QUEUES // 2, "half of the queues are left", PATIENCE_S)
    ours.consumer.close()
    send(cluster, topic, 48, 48)
    until_consumed(96, HANDOVER_S, f"{name} takes over", ours, member)
    member.stop()
    assert_in_order(ours.positions, theirs(member))


def test_a_java_member_that_leaves_soon_after_another_came_leaves_no_queue_behind(
    cluster: Deployment, java: Client, topic: str, group: str
) -> None:
    # A queue that it gave up with messages in its buffer it would unlock 20 s later; shut down, it forgets that.
    with SyncProducer("interop-ordered", cluster.address) as producer:
        for queue in producer.queues(topic):
            producer.send_batch([Message(topic, b"x")] * 400, queue=queue)
    leaving = java.start_consuming(cluster.address, topic, group, mode="orderly", timeout=200, **{"sleep-ms": 300})
    wait_for(lambda: total(theirs(leaving)) > 0, "the first member consumes", PATIENCE_S)
    staying = java.start_consuming(cluster.address, topic, group, mode="orderly", timeout=200)
    half = QUEUES // 2
    wait_for(
        lambda: any(len(event["queues"]) == half for event in leaving.named("assigned")[1:]),
        "it gives up two",
        PATIENCE_S,
    )
    left_at = time.monotonic()
    leaving.stop()

    def consumed() -> int:  # Java's members repeat what was in a buffer
        both = (theirs(leaving), theirs(staying))
        return len({(queue, offset) for member in both for queue, offsets in member.items() for offset in offsets})

    wait_for(lambda: consumed() == QUEUES * 400, "the second member consumes the rest", HANDOVER_S)
    assert time.monotonic() - left_at < SOON_S, "queues were locked for a minute"
    staying.stop()


def test_series_of_one_key_from_java_keep_their_order(
    cluster: Deployment, java: Client, topic: str, group: str
) -> None:
    series = Series(topic, 40)
    java.produce(cluster.address, series, mode="selector")
    ours = Ours(cluster, topic, group)
    until_consumed(40, PATIENCE_S, "ours consumes everything", ours)
    ours.consumer.close()
    assert_in_order(ours.positions)
    assert sorted(map(len, ours.positions.values())) == [10, 10, 10, 10]
