"""What stands in the place of a small file and is none goes to the quarantine before anything reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store.recovery.load import Findings, set_unusable_aside


@pytest.mark.parametrize(
    "name", ["abort", "checkpoint.bak", "comet/timer/position.json", "config/topics.json.tmp", "config/topics.tmp"]
)
@pytest.mark.parametrize("kind", ["a directory", "a dangling link"])
def test_what_is_no_file_is_set_aside(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "comet" / "quarantine").mkdir(parents=True)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    beside = path.with_name("another")
    beside.mkdir()
    findings = Findings(tmp_path)
    set_unusable_aside(tmp_path, findings)
    assert not path.is_symlink()
    assert not path.exists()
    assert beside.exists()
    (line,) = findings.lines
    assert line.startswith(f"{name}: ")
    assert f"moved to comet/quarantine/{name.replace('/', '~')}.1" in line


def test_files_and_what_is_not_there_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"x")
    (tmp_path / "config").write_text("no directory")
    findings = Findings(tmp_path)
    set_unusable_aside(tmp_path, findings)
    assert findings.lines == []
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "config"}
