"""Files are on the disk when it is said that they are, also those that a thread flushes."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from cometmq.durable import flushing_beside

PATIENCE_S = 60.0


def test_the_block_goes_on_while_files_are_flushed_and_its_end_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_on = threading.Event()
    flushed: list[int] = []

    def fsync(fd: int) -> None:
        assert gone_on.wait(PATIENCE_S)
        flushed.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    files = [tmp_path / "a", tmp_path / "b"]
    with flushing_beside() as flush:
        for file in files:
            file.write_bytes(b"x")
            flush(file)
        assert not flushed
        gone_on.set()
    assert flushed == [file.stat().st_ino for file in files]


def test_a_file_that_cannot_be_flushed_is_told_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "a").write_bytes(b"x")
    beside = flushing_beside()
    beside.__enter__()(tmp_path / "a")
    with pytest.raises(OSError, match="Input/output"):
        beside.__exit__(None, None, None)
