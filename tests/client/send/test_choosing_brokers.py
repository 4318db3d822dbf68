from __future__ import annotations

import pytest

from cometmq.client import ProducerConfig
from cometmq.client.send.selection import LatencyFault, LatencyLadder, RoundRobin, by_sharding_key
from cometmq.message.message import Message
from cometmq.remoting.bodies import MessageQueue
from cometmq.testing import VirtualClock

QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(4)]


@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [(549, 0), (550, 30_000), (999, 30_000), (1000, 60_000), (2000, 120_000), (3000, 180_000), (15_000, 600_000)],
)
def test_the_ladder_of_penalties(latency_ms: float, expected_ms: int) -> None:
    assert LatencyLadder().penalty_ms(latency_ms) == expected_ms


def test_a_ladder_of_ones_own() -> None:
    fault = LatencyFault(clock := VirtualClock(), LatencyLadder((10,), (5_000,)))
    fault.note("a", 10)
    fault.note("b", 9)
    assert (fault.available("a"), fault.available("b")) == (False, True)
    clock.advance(5)
    assert fault.available("a")


def test_an_unreachable_broker_is_avoided_until_it_answers() -> None:
    fault = LatencyFault(clock := VirtualClock())
    fault.note_failure("a")
    fault.note_unreachable("a")
    fault.note_failure("b")
    assert fault.best_unavailable({"a", "b"}) == "b"
    clock.advance(3600)
    assert (fault.available("a"), fault.available("b")) == (False, True)
    fault.note_reachable("a")
    assert fault.available("a")


@pytest.mark.parametrize(
    ("latency_max_ms", "not_available_duration_ms"), [((1, 2), (1,)), ((2, 1), (1, 2)), ((1, 2), (2, 1)), ((-1,), (0,))]
)
def test_a_ladder_that_is_none_is_refused(
    latency_max_ms: tuple[int, ...], not_available_duration_ms: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="latency_max_ms"):
        ProducerConfig(latency_max_ms=latency_max_ms, not_available_duration_ms=not_available_duration_ms)


def test_a_slow_broker_is_avoided_until_its_time_is_over() -> None:
    clock = VirtualClock()
    fault = LatencyFault(clock)
    fault.note("a", 600)
    assert not fault.available("a")
    assert fault.available("b")
    clock.advance(30)
    assert fault.available("a")


def test_a_quick_answer_ends_the_isolation() -> None:
    fault = LatencyFault(VirtualClock())
    fault.note_failure("a")
    fault.note("a", 10)
    assert fault.available("a")


def test_round_robin_takes_every_queue_in_turn() -> None:
    robin = RoundRobin()
    chosen = [robin.choose("T", QUEUES) for _ in range(16)]
    assert sorted(chosen) == sorted(QUEUES * 2)


def test_round_robin_leaves_the_broker_out_that_failed() -> None:
    robin = RoundRobin()
    assert {robin.choose("T", QUEUES, "a").broker_name for _ in range(8)} == {"b"}
    assert {robin.choose("T", QUEUES[:4], "a").broker_name for _ in range(8)} == {"a"}


def test_round_robin_avoids_slow_brokers_and_takes_the_least_bad() -> None:
    fault = LatencyFault(VirtualClock())
    robin = RoundRobin(fault)
    fault.note("a", 600)
    assert {robin.choose("T", QUEUES).broker_name for _ in range(8)} == {"b"}
    fault.note("b", 5000)
    assert {robin.choose("T", QUEUES).broker_name for _ in range(8)} == {"a"}


def test_a_sharding_key_always_means_the_same_queue_as_in_java() -> None:
    message = Message("T", b"x")
    # "TagA".hashCode() is 2598919 and "_RECALL_TAG_".hashCode() is -847619372 in Java.
    assert by_sharding_key("TagA")(QUEUES, message) == QUEUES[2598919 % 8]
    assert by_sharding_key("_RECALL_TAG_")(QUEUES, message) == QUEUES[847619372 % 8]
