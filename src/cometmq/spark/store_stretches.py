"""The log of a store cut into stretches, one for each task, and the sound records of a stretch.

What is damaged goes to a side output, ``badRecordsPath``: a line of JSON that says where, why and, of its first 64 KiB,
what.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from cometmq.durable import replace_file
from cometmq.spark.decode import Records
from cometmq.spark.errors import StoreReadError
from cometmq.spark.store_files import ConsumeQueues, LogFile, boundaries, log_files
from cometmq.spark.store_options import StoreOptions
from cometmq.spark.store_scan import CHUNK_BYTES, Damage, scan

STRETCH_BYTES: Final = 128 * 1024 * 1024
"""Bytes of the log in one partition where the consume queues allow to cut there."""
_QUEUES_ASKED: Final = 16
"""Queues that are asked where a record begins; one that holds messages of the place is enough."""


@dataclass
class Stretch(InputPartition):
    """Records that begin in a part of one log file."""

    file: LogFile
    begin: int
    end: int


class BadRecord(msgspec.Struct, frozen=True, rename="camel"):
    """One line of the side output: bytes of the log that are no sound record, and why."""

    file: str
    log_offset: int
    size: int
    reason: str
    data: str
    """The bytes in base64, at most the first 64 KiB."""


def stretches(options: StoreOptions) -> list[Stretch]:
    """Cut the log into what tasks read.

    :raises StoreReadError: there is no log.
    """
    files = log_files(options.path)
    queues = ConsumeQueues(options.path).largest(_QUEUES_ASKED) if options.use_consume_queue else []
    size = min(STRETCH_BYTES, sum(file.end - file.start for file in files) // options.min_partitions + 1)
    found: list[Stretch] = []
    for file in files:
        begin = file.start
        for end in boundaries(file, -(-(file.end - file.start) // size), queues):
            found.append(Stretch(file, begin, end))
            begin = end
    return found


def sound_records(stretch: Stretch, bad_records_path: str | None, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Records]:
    """Yield the sound records of a stretch in the order of the log; damage goes to ``bad_records_path``.

    :param chunk_bytes: how many of them together, in bytes of the log.
    :raises StoreReadError: a record is damaged and there is no such path.
    """
    lines: list[bytes] = []
    for found in scan(stretch.file, stretch.begin, stretch.end, chunk_bytes):
        if isinstance(found, Records):
            yield found
        elif bad_records_path is None:
            raise StoreReadError(
                f"{stretch.file.path}: the record at log offset {found.log_offset} is damaged: {found.reason}",
                next_step="option badRecordsPath names a directory for damaged records; all others are read then",
            )
        else:
            lines.append(_line(stretch.file, found))
    if lines and bad_records_path is not None:
        directory = Path(bad_records_path)
        directory.mkdir(parents=True, exist_ok=True)
        # A task that is repeated writes the same file again, also while another one does.
        fresh = directory / f"{uuid.uuid4().hex}.new"
        replace_file(fresh, b"".join(lines))
        fresh.replace(directory / f"bad-{stretch.begin:020d}-{stretch.end:020d}.json")


def _line(file: LogFile, damage: Damage) -> bytes:
    data = base64.b64encode(damage.data).decode("ascii")
    return msgspec.json.encode(BadRecord(file.path, damage.log_offset, damage.size, damage.reason, data)) + b"\n"
