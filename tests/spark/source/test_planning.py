"""Arithmetic of batches: limits, partitions, filters, offsets as JSON. No broker, no Spark session."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from cometmq.spark.errors import OptionError
from cometmq.spark.records.queues import (
    OffsetRange,
    Queue,
    offsets_from_json,
    offsets_to_json,
)
from cometmq.spark.source.options import MAX_PARTITION_BYTES
from cometmq.spark.source.planning import SMALL_PARTITION, SizedRange, divide_ranges, limit_messages, partition_count
from cometmq.spark.source.pushdown import asked_for_filters, window_of

QUEUES = st.builds(Queue, st.sampled_from(["a", "b", "T%"]), st.sampled_from(["x", "y"]), st.integers(0, 20))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 2**62), max_size=12)
RANGES = st.dictionaries(QUEUES, st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=12).map(
    lambda found: [OffsetRange(queue, first, first + n) for queue, (first, n) in sorted(found.items())]
)


@given(OFFSETS)
def test_offsets_survive_json_and_equal_ones_are_equal_text(offsets: dict[Queue, int]) -> None:
    text = json.dumps(offsets_to_json(offsets))
    assert offsets_from_json(json.loads(text)) == offsets
    assert json.dumps(json.loads(text)) == text
    assert json.dumps(offsets_to_json(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize("wrong", [{"a": 1}, {"a": {"b": 1}}, {"a": {"b": {"x": 1}}}, {"a": {"b": {"0": None}}}])
def test_other_json_is_refused(wrong: object) -> None:
    with pytest.raises(OptionError, match="malformed offsets; expected"):
        offsets_from_json(wrong)  # type: ignore[arg-type]


@given(RANGES, st.lists(st.floats(91, 4 << 20), min_size=12, max_size=12), st.integers(1, 20))
def test_partitions_hold_every_offset_once_and_in_order(
    ranges: list[OffsetRange], means: list[float], count: int
) -> None:
    """And about as many bytes each, but for one message."""
    pieces = [SizedRange(part, mean) for part, mean in zip(ranges, means, strict=False)]
    partitions = divide_ranges(pieces, count)
    flat = [(part.queue, offset) for piece in partitions for part in piece for offset in range(part.first, part.end)]
    assert flat == [(part.queue, offset) for part in ranges for offset in range(part.first, part.end)]
    assert len(partitions) <= count
    assert all(sum(map(len, piece)) for piece in partitions)
    if partitions:
        of_queue = {piece.part.queue: piece.mean_bytes for piece in pieces}
        sizes = [sum(len(part) * of_queue[part.queue] for part in piece) for piece in partitions]
        assert max(sizes) <= 1.3 * sum(sizes) / count + 2 * max(means)


@given(OFFSETS, st.data(), st.integers(1, 10_000))
def test_a_limit_is_kept_and_starves_no_queue(start: dict[Queue, int], data: st.DataObject, most: int) -> None:
    end = {queue: first + data.draw(st.integers(0, 5000)) for queue, first in start.items()}
    chosen = limit_messages(start, end, most)
    taken = {queue: chosen[queue] - start[queue] for queue in start}
    assert all(0 <= taken[queue] <= end[queue] - start[queue] for queue in start)
    assert all(taken[queue] for queue in start if end[queue] > start[queue])
    assert sum(taken.values()) <= most + len(start)


@pytest.mark.parametrize(
    ("messages", "at_least", "expected"), [(0, 1, 1), (100, 1, 1), (SMALL_PARTITION, 1, 1), (100, 7, 7)]
)
def test_small_batches_are_one_partition(messages: int, at_least: int, expected: int) -> None:
    assert partition_count(messages, 100.0 * messages, at_least, MAX_PARTITION_BYTES) == expected


@pytest.mark.parametrize(
    ("messages", "mean_bytes", "cores", "expected"),
    [
        (100_000_000, 100, 2, 400),
        (100_000_000, 1342, 2, 1000),
        (1000, 1 << 22, 2, 32),
        (600_000, 1200, 2, 6),
        (700_000, 1200, 2, 8),  # seven parts are enough, but then one core would read the last one alone
        (700_000, 1200, 16, 16),
        (1000, 1 << 22, 31, 62),
    ],
)
def test_large_batches_are_cut_by_messages_or_by_bytes(
    monkeypatch: pytest.MonkeyPatch, messages: int, mean_bytes: int, cores: int, expected: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert partition_count(messages, messages * mean_bytes, 1, MAX_PARTITION_BYTES) == expected


def test_parts_of_a_queue_are_joined_again() -> None:
    """A partition reads a queue in one go, also one that was looked at in several places."""
    queue = Queue("a", "x", 0)
    pieces = [SizedRange(OffsetRange(queue, at, at + 10), mean) for at, mean in ((0, 100.0), (10, 300.0))]
    assert divide_ranges(pieces, 1) == [[OffsetRange(queue, 0, 20)]]
    assert divide_ranges(pieces, 2) == [[OffsetRange(queue, 0, 13)], [OffsetRange(queue, 13, 20)]]


def test_the_places_where_a_queue_was_looked_at_do_not_make_partitions_uneven() -> None:
    """The job ends with its slowest core, and a small rest costs one pull more."""
    pieces = [
        SizedRange(OffsetRange(Queue("a", "x", queue_id), at, at + 9375), 1220.0)
        for queue_id in range(8)
        for at in range(0, 75_000, 9375)
    ]
    sizes = [sum(map(len, partition)) for partition in divide_ranges(pieces, 6)]
    assert max(sizes) < 1.03 * sum(sizes) / 6


MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
MOMENT_MS = 1_704_067_200_000


def test_filters_narrow_what_is_read_and_never_too_much() -> None:
    window = window_of(
        [
            EqualTo(("topic",), "a"),
            In(("brokerName",), ("x", "y")),
            LessThanOrEqual(("queueId",), 2),
            GreaterThan(("queueOffset",), 10),
            LessThan(("queueOffset",), 20),
            GreaterThanOrEqual(("storeTimestamp",), MOMENT),
            LessThan(("storeTimestamp",), MOMENT + timedelta(microseconds=1500)),
            StringContains(("tags",), "x"),
        ]
    )
    assert window.holds(Queue("a", "x", 2))
    assert not window.holds(Queue("b", "x", 2))
    assert not window.holds(Queue("a", "z", 2))
    assert not window.holds(Queue("a", "x", 3))
    queue = Queue("a", "x", 0)
    asked: list[int] = []

    def offsets_at(time_ms: int) -> dict[Queue, int]:
        asked.append(time_ms)
        return {queue: 12 if time_ms == MOMENT_MS else 15}

    assert window.narrowed({queue: 0}, {queue: 100}, offsets_at) == ({queue: 12}, {queue: 15})
    assert asked == [MOMENT_MS, MOMENT_MS + 2]


def test_filters_without_bounds_leave_everything() -> None:
    queue = Queue("a", "x", 0)
    window = window_of([EqualTo(("tags",), "x"), EqualTo(("queueId",), None), In(("topic",), ("a", "b"))])
    assert window.narrowed({queue: 3}, {queue: 9}, lambda _: {}) == ({queue: 3}, {queue: 9})


def test_nobody_asks_for_filters_here() -> None:
    assert not asked_for_filters()
