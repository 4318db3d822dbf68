"""Hashes of many keys at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.ids import index_hash, java_hash
from cometmq.store.index.key_hashes import key_hashes


@given(st.lists(st.text(max_size=200) | st.text("abcZ#09", max_size=128), max_size=40))
def test_many_key_hashes_at_once_are_those_of_one_at_a_time(keys: list[str]) -> None:
    assert key_hashes(keys).tolist() == [index_hash(java_hash(key)) for key in keys]
