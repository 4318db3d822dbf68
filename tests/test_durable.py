"""Files that are replaced: what a full disk leaves of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.durable import replace_file
from cometmq.store.disk import Disk, replace_whole
from cometmq.testing import VirtualClock

TOO_LARGE = b'{"a":1}' + b" " * (2 << 20)


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def replace_table(path: Path, content: bytes) -> None:
    table = JournaledFile(path, depth=1, clock=VirtualClock())
    table.write_text(content)
    if table.failure is not None:
        raise table.failure


def replace_table_in_background(path: Path, content: bytes) -> None:
    table = JournaledFile(path, depth=1, clock=VirtualClock())
    if not asyncio.run(table.write_in_background(iter([content]))):
        raise OSError("not written")


@pytest.mark.parametrize(
    "replace",
    [
        replace_file,
        lambda path, content: replace_whole(path, content, Disk()),
        replace_table,
        replace_table_in_background,
    ],
    ids=["a file", "a file of the store", "a table", "a table in the background"],
)
def test_a_file_that_does_not_fit_takes_no_space(small_disk: Path, replace: Callable[[Path, bytes], None]) -> None:
    """The last space of a full disk belongs to messages, queues and smaller tables."""
    path = small_disk / "config" / "table.json"
    replace(path, b'{"a":0}')
    free = free_bytes(small_disk)
    with pytest.raises(OSError, match=r"No space|not written"):
        replace(path, TOO_LARGE)
    assert path.read_bytes() == b'{"a":0}'
    assert free_bytes(small_disk) >= free - 8_192
