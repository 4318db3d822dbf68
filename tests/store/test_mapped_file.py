"""Files as mappings."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.log.mapped_file import find_bytes

ENDS = st.integers(0, mmap.PAGESIZE + 8)


@pytest.fixture
def content(tmp_path: Path) -> Iterator[mmap.mmap]:
    """A mapping of one page; the memory behind it is not mapped."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped.resize(mmap.PAGESIZE)
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
