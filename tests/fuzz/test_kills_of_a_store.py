"""Stores that are killed again and again while they work serve what they acknowledged; a few seeds of many."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.fuzz.kills_of_a_store import lower_limits, run

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_serves_what_it_acknowledged(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    lower_limits(monkeypatch)
    run(seed, tmp_path / "store")
