"""The text of metrics is what Prometheus reads, whatever is in it, and is made in small pieces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from cometmq.limits import METRIC_SAMPLES_PER_SLICE
from cometmq.metrics.exposition import exposition, in_slices
from cometmq.metrics.family import OVERFLOW, Family, Histogram, Kind, Sample

DEPTH = Family("depth", Kind.GAUGE, "Depth.", ("pond",))
DROPS = Family("drops_total", Kind.COUNTER, "Drops.")
LENGTH = Family("length", Kind.HISTOGRAM, "Length.", ("pond",), (1, 10))


def read(samples: list[Sample], **common: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = b"".join(exposition(in_slices(samples), common)).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_labels_and_values_come_back() -> None:
    found = read([(DEPTH, ("a",), 3), (DROPS, (), 2.5), (DEPTH, ("b",), 0)], node="n")
    assert found == {
        ("depth", frozenset({("pond", "a"), ("node", "n")})): 3,
        ("depth", frozenset({("pond", "b"), ("node", "n")})): 0,
        ("drops_total", frozenset({("node", "n")})): 2.5,
    }


@pytest.mark.parametrize("value", ['"', "\\", "\n", '\\"\n\\n', "a\tb", "\u202e", "池塘", "\x1b[31m", ""])
def test_any_text_may_be_the_value_of_a_label(value: str) -> None:
    assert read([(DEPTH, (value,), 1)]) == {("depth", frozenset({("pond", value)})): 1}


@given(st.lists(st.integers(0, 12)))
def test_many_values_at_once_are_counted_as_one_by_one(values: list[int]) -> None:
    together, alone = Histogram(LENGTH.bounds), Histogram(LENGTH.bounds)
    together.observe_all(values)
    for value in values:
        alone.observe(value)
    assert (together.counts, together.sum) == (alone.counts, alone.sum)


def test_buckets_count_all_values_up_to_their_bound() -> None:
    lengths = Histogram(LENGTH.bounds)
    for value, times in ((1, 1), (1.5, 2), (10, 1), (11, 3)):
        lengths.observe(value, times)
    found = read([(LENGTH, ("a",), lengths)])
    assert {name: value for (name, labels), value in found.items() if "le" not in dict(labels)} == {
        "length_count": 7,
        "length_sum": 1 + 3 + 10 + 33,
    }
    assert {dict(labels)["le"]: value for (name, labels), value in found.items() if name == "length_bucket"} == {
        "1.0": 1,
        "10.0": 4,
        "+Inf": 7,
    }


def test_no_piece_holds_more_than_a_slice_of_samples() -> None:
    def many() -> Iterator[Sample]:
        for number in range(10 * METRIC_SAMPLES_PER_SLICE):
            yield DEPTH, (str(number),), number

    pieces = list(exposition(in_slices(many()), {}))
    assert max(piece.count(b"\n") for piece in pieces) <= METRIC_SAMPLES_PER_SLICE + 2
    assert b"".join(pieces).count(b"\ndepth{") == 10 * METRIC_SAMPLES_PER_SLICE


def test_the_sum_of_those_without_a_series_has_the_label_of_opentelemetry() -> None:
    found = read([(DEPTH, ("a",), 3), (DEPTH, OVERFLOW, 4), (DROPS, (), 1)], node="n")
    assert found["depth", frozenset({("otel_metric_overflow", "true"), ("node", "n")})] == 4
    assert found["drops_total", frozenset({("node", "n")})] == 1
