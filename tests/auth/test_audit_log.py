"""The queue and the files of the audit log: full disks, rotation, crashes, a reader that follows."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.waiting import until

import cometmq.auth.audit.log as log_module
from cometmq.auth.audit.files import RotatedFile, numbered
from cometmq.auth.audit.log import AuditLog
from cometmq.auth.audit.reader import AuditReader, parse, read_entries
from cometmq.auth.limits import MAX_AUDIT_QUEUE_BYTES
from cometmq.clock import SYSTEM_CLOCK


def log_of(tmp_path: Path, size: int = 100_000, count: int = 3) -> AuditLog:
    return AuditLog(tmp_path / "audit.log", size=size, count=count, server="s", clock=SYSTEM_CLOCK)


async def test_on_a_full_disk_entries_wait_and_what_is_lost_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_module, "RETRY_SECONDS", 0.01)
    log = log_of(tmp_path, size=2**40)
    log.start()
    write, room = os.write, 0

    def full(fd: int, data: Any) -> int:
        nonlocal room
        if fd != log._file._fd:
            return write(fd, data)
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, bytes(data)[:room])  # a part of a line, then no more
        room -= done
        return done

    await until(lambda: not log._queue)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        for at in range(2 * MAX_AUDIT_QUEUE_BYTES // 500):
            log.put({"event": "denied", "n": at, "filler": "x" * 500})
        for at in range(100):
            log.put({"event": "request", "n": at}, must=True)
        room = 700
        await until(lambda: room <= 0)
    await log.stop()
    assert "no space left on device" in caplog.text
    found = list(read_entries(tmp_path / "audit.log", lambda *_: pytest.fail("half a line is in the file")))
    assert [one["n"] for one in found if one["event"] == "request"] == list(range(100)), "administration has its room"
    denied = [one["n"] for one in found if one["event"] == "denied"]
    (lost,) = (one for one in found if one["event"] == "lost")
    assert denied == list(range(len(denied)))
    assert len(denied) + lost["entries"] == 2 * MAX_AUDIT_QUEUE_BYTES // 500
    assert log._bytes == 0


async def test_files_rotate_by_size_and_count_and_no_line_is_cut(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "audit.log", 1_000, 3)
    file.open()
    lines = [b'{"time":"t","n":%d,"x":"%s"}\n' % (at, b"x" * (at % 90)) for at in range(200)]
    for at in range(0, 200, 7):
        assert file.write(lines[at : at + 7]) == len(lines[at : at + 7])
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    left = [one["n"] for one in read_entries(tmp_path / "audit.log", lambda *_: pytest.fail("damage"))]
    assert left == list(range(200 - len(left), 200))


async def test_a_line_that_a_crash_cut_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"time":"t","n":0}\n{"time":"t","n":1')
    file = RotatedFile(path, 1_000, 2)
    file.open()
    file.write([b'{"time":"t","n":2}\n'])
    os.rename(path, tmp_path / "moved-by-logrotate")
    file.write([b'{"time":"t","n":3}\n'])
    file.close()
    damaged: list[int] = []
    moved = tmp_path / "moved-by-logrotate"
    assert [one["n"] for one in read_entries(moved, lambda _, lines: damaged.append(lines))] == [0, 2]
    assert damaged == [1]
    assert [one["n"] for one in read_entries(path, lambda *_: pytest.fail("damage"))] == [3]


async def test_following_goes_on_in_the_next_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RotatedFile(tmp_path / "audit.log", 100, 50)
    file.open()
    file.write([b'{"time":"t","n":-1}\n'])
    lines = [b'{"time":"t","n":%d}\n' % at for at in range(3)]
    moments = iter((lines[:1], lines[1:], [b'{"time":"t","n":3,"x":"%s"}\n' % (b"x" * 90)], [], []))

    def is_over() -> bool:
        """Called when the reader has read everything: here more is written."""
        more = next(moments, None)
        if more:
            file.write(more)
        return more is None

    monkeypatch.setattr("cometmq.auth.audit.reader._LOOK_SECONDS", 0)
    reader = AuditReader(tmp_path / "audit.log", lambda *_: pytest.fail("damage"))
    assert [one["n"] for one in reader.read()] == [-1]
    assert [one["n"] for one in reader.follow(is_over=is_over)] == [0, 1, 2, 3]
    reader.close()
    file.close()
    assert numbered(tmp_path / "audit.log", 1).exists()


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{", b'{"time":1}', b"\xff", b'{"time":"' + b"x" * 100_000 + b'"}', b"[" * 9_000]
)
def test_what_is_no_entry_is_none(line: bytes) -> None:
    assert parse(line) is None
