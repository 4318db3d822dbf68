"""Files as mappings."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.log.mapped_file import find_bytes

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


PAGE_BEFORE_NOTHING = """
import mmap, sys
from cometmq.store.log.mapped_file import find_bytes
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
    content.resize(mmap.PAGESIZE)
    assert find_bytes(content, b"\\1\\0", 0, mmap.PAGESIZE) == -1
"""


def test_nothing_behind_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    subprocess.run([sys.executable, "-c", PAGE_BEFORE_NOTHING, path], check=True)
