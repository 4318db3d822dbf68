"""A server keeps the memory that it takes again at once, and gives back that of large requests."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are settings of glibc")

BEGIN = """
import resource
import sys
from pathlib import Path
from cometmq.cli.servers.memory import tune_memory

tune_memory()
"""
TURNS = (
    BEGIN
    + """
count, size = map(int, sys.argv[1:])
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [bytearray(size) for _ in range(count)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
)
FRAMES = (
    BEGIN
    + """
def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

before = resident_pages()
for megabytes in (4, 16, 16, 12):
    pieces = [b"x" * 262_144 for _ in range(4 * megabytes)]
    frame = b"".join(pieces)
    del pieces, frame
print(resident_pages() - before)
"""
)
THREADS = """
import ctypes
import sys
import threading
from pathlib import Path
from cometmq.cli.servers.memory import tune_memory, use_one_heap

def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

def write():
    pieces = [b"x" * 100_000 for _ in range(50)]
    del pieces
    barrier.wait()

use_one_heap()
tune_memory()
barrier = threading.Barrier(8)
before = resident_pages()
threads = [threading.Thread(target=write) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident_pages() - before)
"""


def result(program: str, *arguments: str) -> int:
    command = [sys.executable, "-c", program, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(("count", "size"), [("5", "300000"), ("10", "1000000")], ids=["SQL filter", "batches of 1 MB"])
def test_a_turn_gets_memory_that_is_there(count: str, size: str) -> None:
    assert result(TURNS, count, size) < 50  # pages got from the system; the arrays have 370 and 2,450


def test_the_memory_of_large_frames_goes_back_to_the_system() -> None:
    assert result(FRAMES) * 4096 < 20 << 20


def test_threads_do_not_keep_memory_for_each_of_them() -> None:
    assert result(THREADS) * 4096 < 20 << 20
