"""Commits and checkpoints with anything in them: copied half, damaged, or written by somebody else."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.archive.test_chain import append, batch

from cometmq.archive import ArchiveError, open_archive
from cometmq.archive import chain as chains
from cometmq.archive.chain import CHECKPOINT_EVERY, CHECKPOINTS, COMMITS, CommitChain
from cometmq.storage import open_storage

SECOND = f"{COMMITS}/{1:020d}.json"
CHECKPOINT = f"{CHECKPOINTS}/{1:020d}.json.gz"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive with an ``open``, a commit of one file, and a checkpoint of the two."""
    monkeypatch.setattr(chains, "CHECKPOINT_EVERY", 2)
    chain = CommitChain(open_storage(tmp_path))
    append(chain, chain.open_writer(1000), batch(0, 0, 10))
    monkeypatch.setattr(chains, "CHECKPOINT_EVERY", CHECKPOINT_EVERY)
    assert (tmp_path / CHECKPOINT).exists()
    return tmp_path


def without_checkpoint(lake: Path) -> Path:
    (lake / CHECKPOINT).unlink()
    return lake / SECOND


def changed(commit: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Change a field of a commit, or of its first file."""
    if name in commit:
        return commit | {name: value}
    return commit | {"files": [commit["files"][0] | {name: value}]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first", 2**63),
        ("first", -1),
        ("end", 10**30),
        ("end", 0),
        ("rows", 11),
        ("rows", 0),
        ("bytes", -5),
        ("bytes", 0),
        ("queue_id", 2**31),
        ("min_store_ms", 2**64),
        ("path", "../secret.parquet"),
        ("path", "/etc/passwd"),
        ("path", "topic=orders/hour=2024-01-01-00/.."),
        ("path", "topic=orders/../../x"),
        ("path", "a" * 1_000),
        ("path", ""),
        ("path", None),
        ("sequence", 7),
        ("sequence", -1),
        ("epoch", 2**64),
        ("queues", {}),
        ("removed", ["topic=orders/hour=1/never-added.parquet"]),
    ],
)
def test_a_commit_with_an_impossible_value_is_an_error(lake: Path, name: str, value: Any) -> None:
    path = without_checkpoint(lake)
    path.write_text(json.dumps(changed(json.loads(path.read_text()), name, value)))
    with pytest.raises(ArchiveError, match=r"damaged.*backup"):
        open_archive(lake)


@pytest.mark.parametrize("left", [0.1, 0.5, 0.99])
def test_a_commit_that_was_copied_half_is_named(lake: Path, left: float) -> None:
    path = without_checkpoint(lake)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * left)])
    with pytest.raises(ArchiveError, match=rf"{path.name} is damaged.*restore it from a backup"):
        open_archive(lake)


def test_a_commit_whose_values_are_nested_without_end_is_named(lake: Path) -> None:
    path = without_checkpoint(lake)
    path.write_text('{"x": ' + "[" * 200_000)
    with pytest.raises(ArchiveError, match=rf"{path.name} is damaged"):
        open_archive(lake)


def test_a_commit_that_is_larger_than_any_is_not_read(lake: Path) -> None:
    path = without_checkpoint(lake)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a file with a hole
    with pytest.raises(ArchiveError, match=rf"{path.name} is damaged: it has {1 << 40} bytes"):
        open_archive(lake)


def test_two_commits_that_open_the_archive_are_two_writers_one_after_the_other(lake: Path) -> None:
    chain = CommitChain(open_storage(lake))
    assert (chain.open_writer(0).epoch, chain.open_writer(0).epoch) == (2, 3)
    assert open_archive(lake).queues()


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_a_checkpoint_with_a_wrong_byte_is_named_or_harmless(lake: Path, at: int) -> None:
    path = lake / CHECKPOINT
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 0x55
    path.write_bytes(content)
    reason = ""
    try:
        assert [totals.next for totals in open_archive(lake).queues().values()] == [10]
    except ArchiveError as error:
        reason = str(error)
    assert not reason or (path.name in reason and "delete it: the commits have everything" in reason)


def test_a_checkpoint_that_grows_without_end_when_it_is_decompressed_is_named_in_bounded_memory(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "CHECKPOINT_BYTES_MAX", 1 << 20)
    path = lake / CHECKPOINT
    path.write_bytes(gzip.compress(b" " * (64 << 20)))
    tracemalloc.start()
    with pytest.raises(ArchiveError, match=rf"{path.name} is damaged: it has more than {1 << 20} bytes"):
        open_archive(lake)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_checkpoint_of_another_commit_is_named(lake: Path) -> None:
    chain = CommitChain(open_storage(lake))
    chain.open_writer(0)
    (lake / CHECKPOINT).rename(lake / CHECKPOINTS / f"{2:020d}.json.gz")
    with pytest.raises(ArchiveError, match=r"it is the checkpoint of commit 1 \(delete it"):
        open_archive(lake)


def test_a_checkpoint_may_be_deleted_as_the_error_says(lake: Path) -> None:
    path = lake / CHECKPOINT
    path.write_bytes(b"no checkpoint")
    with pytest.raises(ArchiveError, match="delete it"):
        open_archive(lake)
    path.unlink()
    assert [totals.next for totals in open_archive(lake).queues().values()] == [10]
