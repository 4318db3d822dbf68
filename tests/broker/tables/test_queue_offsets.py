"""Offsets in arrays: they are a map of queues to offsets, small, and no number of a queue makes them large."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.queue_offsets import NO_OFFSET, QueueOffsets
from cometmq.testing import VirtualClock

GROUPS, TOPICS, QUEUES = 100, 60, 16
MOST_BYTES = 40
PAIRS_OF_GROUP, MOST_BYTES_OF_PAIR = 1_000, 250
"""Of a pair of a group and a queue, its share of names and indexes included."""

QUEUE_IDS = st.one_of(st.integers(0, 40), st.integers(0, 2**31 - 1))


@given(st.lists(st.tuples(QUEUE_IDS, st.one_of(st.none(), st.integers(0, 2**63 - 1))), max_size=60))
def test_agrees_with_a_map(changes: list[tuple[int, int | None]]) -> None:
    offsets = QueueOffsets()
    expected: dict[int, int] = {}
    for queue_id, offset in changes:
        if offset is not None:
            offsets.put(queue_id, offset)
            expected[queue_id] = offset
        elif queue_id in expected:
            offsets.remove(queue_id)
            del expected[queue_id]
        else:
            with pytest.raises(KeyError):
                offsets.remove(queue_id)
        assert offsets == expected
        assert offsets.as_dict() == expected
        assert len(offsets) == len(expected)
        assert (queue_id in offsets) == (queue_id in expected)
        assert offsets.get(queue_id, -1) == expected.get(queue_id, -1)
    assert QueueOffsets(expected) == expected
    assert offsets.get(-1) is None
    for queue_id, offset in enumerate(offsets.first(8)):
        assert offset in {NO_OFFSET, expected.get(queue_id, NO_OFFSET)}


def test_the_first_offsets_are_in_order() -> None:
    offsets = QueueOffsets({0: 5, 2: 7, 1: 6})
    assert offsets.first(2) == [5, 6]
    assert offsets.first(4) == [5, 6, 7]
    offsets.remove(1)
    assert offsets.first(3) == [5, NO_OFFSET, 7]


def test_a_queue_far_beyond_the_others_costs_no_more_than_they_do() -> None:
    tracemalloc.start()
    offsets = QueueOffsets()
    for power in range(31):
        offsets.put(2**power, power)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 10_000
    assert len(offsets) == 31


def test_a_pair_takes_forty_bytes(tmp_path: Path) -> None:
    offsets = ConsumerOffsetManager(tmp_path / "config" / "consumerOffset.json", clock=VirtualClock())
    tracemalloc.start()
    for group in range(GROUPS):
        for topic in range(TOPICS):
            for queue_id in range(QUEUES):
                offsets.set_offset(f"group-number-{group}", f"topic-number-{topic}", queue_id, 10_000 + group)
        offsets.save()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / (GROUPS * TOPICS * QUEUES) <= MOST_BYTES
    assert sys.getsizeof(offsets.of_queues("group-number-1", "topic-number-1")) < 100


def test_a_pair_of_one_queue_takes_little_memory_and_is_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    offsets = ConsumerOffsetManager(tmp_path / "config" / "consumerOffset.json", clock=VirtualClock())
    groups = 20
    tracemalloc.start()
    tracked = len(gc.get_objects())
    for group in range(groups):
        for topic in range(PAIRS_OF_GROUP):
            offsets.set_offset(f"group-number-{group}", f"topic-number-{topic}", 0, 10_000 + group)
        offsets.save()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    pairs = groups * PAIRS_OF_GROUP
    assert len(offsets.table) == pairs
    assert used / pairs <= MOST_BYTES_OF_PAIR
    assert (len(gc.get_objects()) - tracked) / pairs < 0.1


@given(
    st.one_of(
        st.lists(st.one_of(st.integers(-2, 2**64), st.booleans(), st.text(max_size=3)), max_size=70).map(
            lambda offsets: {str(queue_id): offset for queue_id, offset in enumerate(offsets)}
        ),
        st.dictionaries(st.integers(-1, 80).map(str), st.integers(0, 2**63 - 1), max_size=8),
    )
)
def test_what_is_taken_at_once_is_what_would_be_put_one_by_one(loaded: dict[str, object]) -> None:
    taken, put = QueueOffsets(), QueueOffsets()
    if taken.fill(loaded):
        for queue_id, offset in loaded.items():
            assert type(offset) is int
            put.put(int(queue_id), offset)
        assert taken.as_dict() == put.as_dict()
        assert len(taken) == len(loaded)
    else:
        assert len(taken) == 0
