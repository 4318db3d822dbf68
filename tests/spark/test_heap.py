"""What a batch frees stays with the worker."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_BATCHES = """
import resource, sys
from cometmq.spark.heap import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def batch():
    return [bytes([1]) * 3_000_000 for _ in range(8)]

batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES_OF_A_BATCH = 8 * 3_000_000 // 4096


def _faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _BATCHES, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="a C library without mallopt")
def test_a_batch_uses_the_memory_that_the_last_one_freed() -> None:
    assert _faults("kept") < _PAGES_OF_A_BATCH < _faults("left")
