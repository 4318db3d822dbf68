"""Pages between blocks in use go back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCATTERED = """
from pathlib import Path
from cometmq.free_memory import KEPT_BYTES, give_back

def resident():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

blocks = [bytearray(8_192) for _ in range(8_000)]
kept = blocks[::16]
before = resident()
del blocks
give_back()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is a function of glibc")
def test_free_pages_between_blocks_in_use_go_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0.6 * 8_000 * 8_192 - 16 * 1024 * 1024
