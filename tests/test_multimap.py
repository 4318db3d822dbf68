"""Values by key, in the order of entry."""

from __future__ import annotations

import pytest

from cometmq.multimap import MultiMap


def test_a_key_is_in_the_index_while_it_has_values() -> None:
    """Values keep their order, an added one twice is one, and the last one takes its key with it."""
    index: MultiMap[str, int] = MultiMap()
    for value in (3, 1, 3):
        index.add("a", value)
    assert index.of("a") == [3, 1]
    index.remove("a", 3)
    assert index.of("a") == [1]
    index.remove("a", 1)
    assert not index
    assert index.of("a") == []
    with pytest.raises(KeyError):
        index.remove("a", 1)


def test_values_can_be_removed_while_a_caller_goes_through_them() -> None:
    """``of`` returns a copy."""
    index: MultiMap[str, int] = MultiMap()
    for value in range(4):
        index.add("a", value)
    for value in index.of("a"):
        index.remove("a", value)
    assert not index
