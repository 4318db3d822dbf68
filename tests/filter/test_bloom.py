"""Bit positions as consumerFilter.json of Apache has them."""

from __future__ import annotations

import pytest

from cometmq.filter.bloom import BloomFilter, BloomFilterData, murmur3_128_low


def test_apaches_defaults() -> None:
    bloom = BloomFilter.create(20, 32)
    assert (bloom.hash_count, bloom.bit_count) == (3, 112)
    assert bloom.data("group", "topic") == BloomFilterData(bit_num=112, bit_pos=[79, 21, 21])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("The quick brown fox jumps over the lazy dog", 0xE34BBC7BBC071B6C),
        ("hello", 0xCBD8A7B341BD9B02),
    ],
)
def test_murmur3_of_known_texts(text: str, expected: int) -> None:
    assert murmur3_128_low(text.encode()) == expected


@pytest.mark.parametrize(("rate", "entries"), [(0, 32), (100, 32), (20, 0)])
def test_impossible_sizes(rate: int, entries: int) -> None:
    with pytest.raises(ValueError, match="error rate"):
        BloomFilter.create(rate, entries)
