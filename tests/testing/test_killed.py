"""A broker's directory is left as a kill leaves it, whatever its worker threads still do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cometmq.testing.killed import stop_as_killed


@pytest.mark.parametrize("removes_files", [True, False])
async def test_directories_that_go_while_they_are_copied_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removes_files: bool
) -> None:
    """The first file that is copied finds a worker thread at its work: it removes the other directories."""
    root, copy = tmp_path / "store", shutil.copy2
    for name in "abcd":
        (root / name / "queue").mkdir(parents=True)
        if removes_files or name == "a":
            (root / name / "file").write_text(name)

    def removing(source: str, target: str) -> None:
        kept = Path(source).parent
        for other in root.iterdir():
            if other != kept:
                shutil.rmtree(other)
        copy(source, target)

    async def stop() -> None:
        (root / "stopped").touch()

    monkeypatch.setattr("shutil.copy2", removing)
    await stop_as_killed(stop, root)
    (left,) = root.iterdir()
    assert {path.name for path in left.iterdir()} == {"file", "queue"}
    assert (left / "file").read_text() == left.name
    assert list(tmp_path.iterdir()) == [root]


async def test_a_copy_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is no change: the copy is not begun again and again."""
    root = tmp_path / "store"
    (root / "queue").mkdir(parents=True)
    (root / "queue" / "file").touch()

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device", target)

    async def stop() -> None:
        pass

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(OSError, match="No space left"):
        await stop_as_killed(stop, root)
