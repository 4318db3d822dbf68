"""Generations: when a replica may have lost bytes, it is another member."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.failover.identity import (
    Identity,
    IdentityError,
    boot_id,
    next_identity,
    read_identity,
    write_identity,
)

BEFORE = Identity(7, "boot-1", set_id="5e7a1d5e")


@pytest.mark.parametrize(
    ("saved", "boot", "generation"),
    [
        (BEFORE, "boot-1", 7),
        (BEFORE, "boot-2", 8),
        (replace(BEFORE, is_clean=True), "boot-2", 7),
        (replace(BEFORE, is_solid=True), "boot-2", 7),
    ],
)
def test_a_generation_rises_only_if_bytes_may_be_lost(saved: Identity, boot: str, generation: int) -> None:
    after = next_identity(saved, boot)
    assert (after.generation, after.boot_id, after.is_clean) == (generation, boot, False)
    assert (after.set_id, after.is_solid) == (saved.set_id, saved.is_solid)


def test_a_crash_after_a_clean_stop_counts_from_the_next_start() -> None:
    running = next_identity(replace(BEFORE, is_clean=True), "boot-2")
    assert next_identity(running, "boot-3").generation == 8


def test_an_empty_store_begins_with_a_generation_that_no_other_had() -> None:
    assert len({next_identity(None, "boot-1").generation for _ in range(100)}) == 100


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "comet" / "failover.json"
    assert read_identity(path) is None
    for identity in (BEFORE, replace(BEFORE, is_solid=True), replace(BEFORE, is_clean=True, generation=2**61)):
        write_identity(path, identity)
        assert read_identity(path) == identity


@pytest.mark.parametrize("data", [b"", b"{}", b"\x00" * 100, b'{"format":1,"generation":"7"}', b"x" * 9_000])
def test_a_damaged_file_is_named_with_the_next_step(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "failover.json"
    path.write_bytes(data)
    with pytest.raises(IdentityError, match=r"failover\.json is damaged.*rename the file"):
        read_identity(path)


def test_the_boot_id_is_the_same_until_the_machine_starts_again() -> None:
    assert boot_id() == boot_id() != ""
