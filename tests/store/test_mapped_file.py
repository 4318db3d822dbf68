"""Files as mappings."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.conftest import StoreBench, fill, keys_found, served

from cometmq.backup.copies import content_end
from cometmq.message.record import MESSAGE_MAGIC
from cometmq.store.log.log_reader import MAGIC_AT, find_magics
from cometmq.store.log.mapped_file import data_end, find_bytes, first_data

ENDS = st.integers(0, mmap.PAGESIZE + 8)


@pytest.fixture
def content(tmp_path: Path) -> Iterator[mmap.mmap]:
    """A mapping of one page."""
    path = tmp_path / "file"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        yield mapped


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.binary(min_size=1, max_size=6), at=ENDS, length=st.integers(1, 4), start=ENDS, end=ENDS)
def test_bytes_are_found_up_to_the_last_one_of_a_file(
    content: mmap.mmap, written: bytes, at: int, length: int, start: int, end: int
) -> None:
    content[:] = (bytes(min(at, mmap.PAGESIZE - len(written))) + written).ljust(mmap.PAGESIZE, b"\0")
    wanted = written[-length:]
    found = bytes(content).find(wanted, start, end)
    assert find_bytes(content, wanted, start, end) == found
    assert find_bytes(content, wanted, start, mmap.PAGESIZE) == bytes(content).find(wanted, start)


KINDS = ["refuses", "hole at data", "data in holes"]


def answer_as(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let questions about holes be answered as by some file systems."""
    lseek, asked = os.lseek, 0

    def answer(fd: int, at: int, whence: int) -> int:
        nonlocal asked
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            return lseek(fd, at, whence)
        asked += 1
        assert asked < 10_000, "it asks for ever"
        if kind == "refuses":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        found = lseek(fd, at, os.SEEK_DATA)
        return at if kind == "data in holes" or whence == os.SEEK_HOLE else found

    monkeypatch.setattr(os, "lseek", answer)


PAGE_BEFORE_NOTHING = """
import mmap, sys
from cometmq.store.log.mapped_file import data_end, find_bytes, first_data
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
    content.resize(mmap.PAGESIZE)
    assert find_bytes(content, b"\\1\\0", 0, mmap.PAGESIZE) == -1
"""


def test_nothing_behind_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    subprocess.run([sys.executable, "-c", PAGE_BEFORE_NOTHING, path], check=True)


def test_reserved_space_is_not_read_although_some_of_it_is_in_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, written = 64 << 20, 1 << 20
    path = tmp_path / "file"
    read = 0
    pread = os.pread

    def counted(fd: int, length: int, at: int) -> bytes:
        nonlocal read
        read += length
        return pread(fd, length, at)

    with path.open("w+b", buffering=0) as file:
        file.write(b"x" * written)
        os.posix_fallocate(file.fileno(), 0, size)
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            assert mapped[written] == 0, "the system reads ahead, and marks where to read on"
        counts_as_data = at = written
        while at < size:
            try:
                begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            counts_as_data = at
        monkeypatch.setattr(os, "pread", counted)
        assert first_data(file.fileno(), written, size) == size
        assert read <= counts_as_data - written
        assert data_end(file.fileno(), size) == written


def test_the_first_byte_of_many_parts_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    step, parts = 1 << 16, 200
    with path.open("w+b", buffering=0) as file:
        for number in range(parts):
            os.pwrite(file.fileno(), b"\0", number * step)
        os.truncate(file.fileno(), parts * step)
        assert first_data(file.fileno(), 0, parts * step) == parts * step
        assert data_end(file.fileno(), parts * step) == 0
        for number in (parts - 1, 100, 3):
            os.pwrite(file.fileno(), b"x", number * step + 5)
            assert first_data(file.fileno(), 0, parts * step) == number * step + 5
            assert data_end(file.fileno(), parts * step) == (parts - 1) * step + 6


@pytest.mark.parametrize("kind", KINDS)
def test_file_systems_that_know_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """WSL 1 refuses the question; go-fuse and OpenZFS 2.1.0 have named a hole where data begins."""
    path = tmp_path / "file"
    size, first, last = 1 << 21, 700_000, 1_500_000
    with path.open("w+b", buffering=0) as file:
        os.truncate(file.fileno(), size)
        answer_as(kind, monkeypatch)
        assert first_data(file.fileno(), 0, size) == size
        assert data_end(file.fileno(), size) == content_end(file.fileno()) == 0
        os.pwrite(file.fileno(), b"x", first)
        os.pwrite(file.fileno(), b"x", last)
        assert first_data(file.fileno(), 5, size) == first
        assert first_data(file.fileno(), first + 1, size) == last
        assert first_data(file.fileno(), last + 1, size) == size
        assert data_end(file.fileno(), size) == content_end(file.fileno()) == last + 1
        with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            os.pwrite(file.fileno(), MESSAGE_MAGIC.to_bytes(4, "big", signed=True), last + 100)
            assert list(find_magics(file.fileno(), memoryview(mapped), 0, size)) == [last + 100 - MAGIC_AT]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_store_on_a_file_system_that_knows_no_holes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bench: StoreBench,
    bench_at: Callable[[Path], StoreBench],
    kind: str,
) -> None:
    answer_as(kind, monkeypatch)
    store = bench.open()
    fill(store, 500)
    expected = served(store)
    copy = bench_at(bench.crashed_copy(tmp_path / "killed").root)
    killed = copy.open()
    assert served(killed) == expected
    assert keys_found(killed, "TopicTest", range(500)) == [*range(500)]
    killed.close_now()
    again = copy.open()
    assert served(again) == expected
    assert again.findings == []
