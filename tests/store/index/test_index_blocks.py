"""The compiled core makes the entries and slots of an index file as Python does, byte by byte."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cometmq.store.index.index_file
from cometmq.core import CORE
from cometmq.store.disk import Disk
from cometmq.store.index.index_file import Block, IndexFile, Keys, make_block_in_core, make_block_in_python

BEGIN_MS = 1_700_000_000_000
MOST_ENTRIES = 60
WAYS = (make_block_in_python, make_block_in_core)

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed")

Rows = list[tuple[int, int, int]]
Blocks = list[tuple[Rows, list[tuple[int, int]]]]
"""Keys, and what damage has put into slots before they are added."""
hashes = st.one_of(st.integers(0, 8), st.integers(0, 2**31 - 1))
timestamps = st.one_of(
    st.integers(BEGIN_MS - 2_000, BEGIN_MS + 5_000), st.just(0), st.integers(-(2**63), 2**63 - 1), st.just(2**62)
)
rows = st.lists(st.tuples(hashes, st.integers(0, 2**63 - 1), timestamps), min_size=1, max_size=40)
heads = st.lists(st.tuples(st.integers(0, 99), st.integers(-(2**31), 2**31 - 1)), max_size=4)


def keys_of(found: Rows) -> Keys:
    columns = zip(*found, strict=True)
    kinds = (np.int32, np.int64, np.int64)
    return Keys(*(np.array(column, kind).tobytes() for column, kind in zip(columns, kinds, strict=True)))


def written(make: Callable[[Keys, memoryview, int, int], Block], slots: int, blocks: Blocks) -> tuple[list[int], bytes]:
    """What each call of ``append`` returned, and the bytes of the file."""
    directory = Path(tempfile.mkdtemp(prefix="cometmq-index-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cometmq.store.index.index_file, "make_block", make)
        file = IndexFile(directory / "20261121100001912", slots, MOST_ENTRIES, Disk(), create=True)
        counts = []
        for found, damages in blocks:
            for slot, value in damages:
                at = slot % slots * 4
                file._table[at : at + 4] = value.to_bytes(4, "big", signed=True)
            keys = keys_of(found)
            begin = 0
            while begin < keys.size and not file.full:
                counts.append(file.append(keys, begin))
                begin += counts[-1]
        file.close()
        content = file.path.read_bytes()
    shutil.rmtree(directory)
    return counts, content


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 50), st.lists(st.tuples(rows, heads), min_size=1, max_size=5))
def test_blocks_of_any_keys_on_any_slots_are_equal(slots: int, blocks: Blocks) -> None:
    of_python, of_core = (written(way, slots, blocks) for way in WAYS)
    assert of_python == of_core


def test_where_blocks_begin_and_end_changes_nothing() -> None:
    dice = np.random.default_rng(1)
    found = [(int(dice.integers(0, 12)), at, BEGIN_MS + at * 400) for at in range(MOST_ENTRIES - 1)]
    whole = written(make_block_in_core, 7, [(found, [])])[1]
    for step in (1, 2, 7, 30):
        cuts = [*range(0, len(found), step), len(found)]
        parts: Blocks = [(found[begin:end], []) for begin, end in pairwise(cuts)]
        assert written(make_block_in_core, 7, parts)[1] == whole


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        (Keys(bytes(4), bytes(8), bytes(7)), 1),
        (Keys(bytes(3), bytes(8), bytes(8)), 1),
        (Keys(bytes(8), bytes(8), bytes(8)), 1),
        (Keys(bytes(4), bytes(8), bytes(8)), 0),
        (Keys(bytes(4), bytes(8), bytes(8)), 2**31 - 1),
    ],
)
def test_what_does_not_fit_together_is_refused(keys: Keys, count: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        CORE.index_block(keys, memoryview(bytearray(8)), count, 0)
    with pytest.raises(ValueError, match="written"):
        CORE.index_block(keys, memoryview(bytes(8)), count, 0)
