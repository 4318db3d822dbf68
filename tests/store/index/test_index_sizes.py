"""An index file tells its slots and entries, which its length does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.store.conftest import StoreBench, fill, keys_found
from tests.store.recovery.test_file_sizes import only_files_of_apache, quarantine

from cometmq.store.index.index_sizes import read_index_sizes

SIZES = [(100, 400), (105, 399), (1, 400), (5_000, 401), (7, 1_000)]


def index_files(bench: StoreBench) -> list[Path]:
    return sorted((bench.root / "index").iterdir())


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("messages", [2, 3, 50, 1_000])
def test_slots_and_entries_are_those_that_the_file_was_made_with(
    sizes: tuple[int, int], messages: int, bench: StoreBench
) -> None:
    store = bench.open(max_hash_slot_num=sizes[0], max_index_num=sizes[1])
    fill(store, messages)
    store.close_now()
    assert {read_index_sizes(path) for path in index_files(bench)} == {sizes}


@pytest.mark.parametrize("wrong", SIZES[1:])
def test_an_index_of_apaches_is_kept_whatever_the_configuration_says(wrong: tuple[int, int], bench: StoreBench) -> None:
    """Apache would find no key of older messages in one that was made anew with other numbers."""
    store = bench.open()
    fill(store, 1_500)
    store.close_now()
    only_files_of_apache(bench.root)
    before = {path.name for path in index_files(bench)}
    again = bench.open(max_hash_slot_num=wrong[0], max_index_num=wrong[1])
    assert (again.config.max_hash_slot_num, again.config.max_index_num) == (100, 400)
    assert quarantine(bench.root) == []
    assert {path.name for path in index_files(bench)} == before
    assert keys_found(again, "TopicTest", range(1_500)) == list(range(1_500))


def test_a_damaged_file_tells_nothing(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 200)
    store.close_now()
    (path,) = index_files(bench)
    whole = path.read_bytes()
    for at in (40 + 4 * 100 + 20 + 4, 16 + 8, 36):
        path.write_bytes(whole[:at] + b"\x7f" * 8 + whole[at + 8 :])
        assert read_index_sizes(path) in (None, (100, 400))
    for length in (0, 39, 60, 3_000):
        path.write_bytes(whole)
        os.truncate(path, length)
        assert read_index_sizes(path) is None
    path.write_bytes(os.urandom(len(whole)))
    assert read_index_sizes(path) is None
