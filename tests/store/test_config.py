"""What the store makes of its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store.config import StoreConfig


def test_an_empty_path_of_the_log_is_below_the_store() -> None:
    assert StoreConfig(store_path_root_dir="/data", store_path_commit_log="").commit_log == Path("/data/commitlog")


@pytest.mark.parametrize(
    ("text", "hours"),
    [("04", {4}), ("04;16", {4, 16}), ("4;;", {4}), ("4;x;5", {4}), ("4; 5", {4}), ("", set()), ("04 ", set())],
)
def test_the_hours_are_those_of_apaches_broker(text: str, hours: set[int]) -> None:
    assert StoreConfig(delete_when=text).delete_hours == hours


def test_a_delay_below_zero_is_none() -> None:
    assert StoreConfig(message_delay_level="-1s 2s +3s ").delays_ms == (0, 2_000, 3_000)
