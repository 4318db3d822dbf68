"""Memory of workers: what a batch frees stays for the next; what stays is not looked through for garbage."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cometmq.spark.records import worker_memory
from cometmq.spark.records.worker_memory import lasting_worker

_BATCHES = """
import resource, sys
from cometmq.spark.records.worker_memory import keep_freed_memory

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


_SEARCH = """
import gc, weakref
from cometmq.spark.records.worker_memory import freeze_modules

class Node:
    pass

def knot():
    a, b = Node(), Node()
    a.other, b.other = b, a
    return weakref.ref(a)

gc.disable()
before = knot()
freeze_modules()
print(before() is None, gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000)
later = knot()
freeze_modules()
print(later() is None)
gc.collect()
print(later() is None)
"""


def test_a_search_for_garbage_leaves_out_what_stays() -> None:
    done = subprocess.run([sys.executable, "-c", _SEARCH], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True", "False", "True"]


def test_a_task_keeps_memory_from_its_first_row_on_and_ends_with_a_last_search(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(worker_memory, "keep_freed_memory", lambda: done.append("kept"))
    monkeypatch.setattr(worker_memory, "freeze_modules", lambda: done.append("left out"))

    def read(count: int) -> Iterator[int]:
        with lasting_worker():
            yield from range(count)

    done.extend(read(2))
    assert done == ["kept", 0, 1, "left out"]
