"""Finding the entries of a key, whatever stands in the chains."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import cometmq.store.index.index_file
from cometmq.store.disk import Disk
from cometmq.store.index.index_file import IndexFile, Keys

BEGIN_MS = 1_700_000_000_000
SLOTS = 3


def filled(directory: Path, hashes: list[int], offsets: list[int], seconds: list[int]) -> IndexFile:
    file = IndexFile(directory / "20261121100001912", SLOTS, 1000, Disk(), create=True)
    stamps = np.array([BEGIN_MS + second * 1000 for second in seconds], np.int64)
    keys = Keys(np.array(hashes, np.int32).tobytes(), np.array(offsets, np.int64).tobytes(), stamps.tobytes())
    assert file.append(keys) == len(hashes)
    return file


@pytest.mark.parametrize("steps", [0, 1, 5, 1000])
def test_long_chains_give_what_short_ones_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    monkeypatch.setattr(cometmq.store.index.index_file, "_CHAIN_STEPS", steps)
    monkeypatch.setattr(cometmq.store.index.index_file, "_BLOCK_ENTRIES", 7)
    dice = random.Random(steps)
    hashes = [dice.randrange(5) for _ in range(200)]
    offsets = sorted(dice.randrange(150) for _ in range(200))
    seconds = sorted(dice.randrange(50) for _ in range(200))
    seconds[0] = 0
    file = filled(tmp_path, hashes, offsets, seconds)
    for _ in range(200):
        key_hash, limit = dice.randrange(6), dice.choice([1, 3, 64])
        begin, end = sorted(BEGIN_MS + dice.randrange(-2, 52) * 1000 for _ in range(2))
        found = set(islice(dict.fromkeys(file.find(key_hash, begin, end)), limit))
        expected: dict[int, None] = {}
        for at in reversed(range(200)):
            if hashes[at] == key_hash and begin <= BEGIN_MS + seconds[at] * 1000 <= end and len(expected) < limit:
                expected[offsets[at]] = None
        assert found == set(expected)
    file.close()


def test_no_chain_is_followed_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.store.index.index_file, "_CHAIN_STEPS", 10)
    steps = 0

    class Counted:
        @staticmethod
        def unpack_from(buffer: bytes, at: int) -> tuple[int, ...]:
            nonlocal steps
            steps += 1
            return unpack(buffer, at)

    unpack = cometmq.store.index.index_file._ENTRY_STRUCT.unpack_from
    monkeypatch.setattr(cometmq.store.index.index_file, "_ENTRY_STRUCT", Counted)
    file = filled(tmp_path, [1] * 900, list(range(900)), list(range(900)))
    assert list(file.find(1, BEGIN_MS, BEGIN_MS + 3000)) == [3, 2, 1, 0]
    assert steps == 10
    file.close()
