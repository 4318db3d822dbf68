"""The end of a process in which a thread of Arrow still frees the file that it has read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

_PROGRAM: Final = """
import sys, threading
from pathlib import Path
import pyarrow.parquet as pq
from cometmq.storage.interface import RangeReader
from cometmq.storage.local import LocalStorage

begun = threading.Event()

class SlowlyFreed(RangeReader):
    def close(self):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            pauses = iter(range(200))
            while not sys.is_finalizing() and next(pauses, None) is not None:
                threading.Event().wait(0.001)
        super().close()

def is_being_freed_after_read():
    pq.read_table(SlowlyFreed(storage, "part.parquet", size), filters=[("number", "=", 7)], partitioning=None)
    return begun.wait(0.02)

storage = LocalStorage(Path(sys.argv[1]))
size = storage.stat("part.parquet").size
print(any(is_being_freed_after_read() for _ in range(1000)), flush=True)
"""


def test_a_process_ends_well_while_a_thread_of_arrow_still_frees_a_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"number": range(1000), "text": ["x"] * 1000}), tmp_path / "part.parquet")
    done = subprocess.run([sys.executable, "-c", _PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
