"""The KV configuration cannot be made to grow without end."""

from __future__ import annotations

from pathlib import Path

import pytest

import cometmq.namesrv.kv
from cometmq.namesrv.kv import KvConfig, KvError


def test_all_texts_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.namesrv.kv, "MAX_KV_CHARS", 100)
    kv = KvConfig(tmp_path / "kv.json")
    kv.put("n", "a", "v" * 90)
    with pytest.raises(KvError, match="at most 100 characters"):
        kv.put("n", "b", "v" * 20)
    kv.put("n", "a", "v" * 10)
    kv.put("n", "b", "v" * 70)
    again = KvConfig(tmp_path / "kv.json")
    with pytest.raises(KvError, match="at most 100 characters"):
        again.put("m", "c", "v" * 20)
    again.delete("n", "b")
    again.put("m", "c", "v" * 20)
    assert again.get("m", "c") == "v" * 20


def test_namespaces_left_empty_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.namesrv.kv, "MAX_KV_ENTRIES", 3)
    kv = KvConfig(tmp_path / "kv.json")
    for number in range(3):
        kv.put(f"n{number}", "k", "v")
        kv.delete(f"n{number}", "k")
    with pytest.raises(KvError, match="at most 3 KV entries"):
        kv.put("n3", "k", "v")
