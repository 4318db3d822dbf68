"""Process metrics: memory, processor time, file descriptors and connections."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import cometmq
from cometmq import descriptors
from cometmq.core import PATH
from cometmq.metrics.family import Family, Kind, Sample

MEMORY: Final = Family(
    "cometmq_resident_memory_bytes", Kind.GAUGE, "Resident memory of the process, including mapped files."
)
CPU: Final = Family("cometmq_cpu_seconds_total", Kind.COUNTER, "Processor time of the process.")
DESCRIPTORS: Final = Family("cometmq_open_descriptors", Kind.GAUGE, "Open files and sockets of the process.")
START_TIME: Final = Family(
    "cometmq_start_time_seconds",
    Kind.GAUGE,
    "Start time of the server, in seconds since 1970.",
    ("version", "path"),
)
CONNECTIONS: Final = Family("cometmq_connections", Kind.GAUGE, "Open connections of clients and tools.")
UNSENT_BYTES: Final = Family(
    "cometmq_unsent_bytes", Kind.GAUGE, "Size of responses that clients have not read yet, in bytes."
)

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


def of_process(boot_ms: int) -> Iterator[Sample]:
    """Return the process's memory (if the system reports it), processor time, descriptors and start time.

    :param boot_ms: start time of the server, in milliseconds since 1970.
    """
    if _STATM.exists():
        yield MEMORY, (), int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    yield CPU, (), time.process_time()
    yield DESCRIPTORS, (), descriptors.in_use()
    yield START_TIME, (cometmq.__version__, PATH), boot_ms / 1000
