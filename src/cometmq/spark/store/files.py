"""The files of a store's log, which is read without a running broker, for example from a backup or from the disk of a
dead broker. No file is ever changed.

A log file is named after the log offset of its first byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cometmq.message.layout import RECORD
from cometmq.message.record import decode_record
from cometmq.spark.errors import NoStoreError
from cometmq.spark.store.place import StoredRange, StorePlace
from cometmq.spark.store.queues import ConsumeQueues, QueueUnits

_SIZE: Final = RECORD.struct("size")
_OWN_OFFSET: Final = RECORD.struct("physical_offset")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log file, which contains the bytes ``start <= log offset < end``."""

    path: str
    """The path or URL."""
    start: int
    end: int
    last: bool
    """True if the log may end within this file."""
    name: str = ""
    """The path in the store."""
    stored: StoredRange | None = None
    """The object with the file's content, if the file is not local."""


def log_files(place: StorePlace) -> list[LogFile]:
    """List the log's files.

    Empty files after the log's end, which a broker creates in advance, are left out.

    :raises NoStoreError: no log files exist.
    :raises StoreReadError: the directory cannot be read.
    """
    found = place.log_files()
    while len(found) > 1 and place.is_reserved(found[-1]):
        found.pop()
    if not found:
        raise NoStoreError(
            f"{place.name} has no log files",
            next_step="use the directory that contains commitlog/, whose files have names of 20 digits",
        )
    return [
        LogFile(
            path=f"{place.name}/{file.name.removeprefix('./')}",
            start=file.start,
            end=file.start + file.size,
            last=file == found[-1],
            name=file.name,
            stored=place.stored(file.name),
        )
        for file in found
        if file.size
    ]


def newest_store_time(place: StorePlace) -> int | None:
    """Return the store time in ms of the last message in any consume queue, or ``None`` if the store is empty."""
    queues = ConsumeQueues(place)
    known = (queues.units(topic, queue_id) for topic, queue_id in queues.named())
    newest = max((at for units in known if units is not None and (at := units.last_record()) is not None), default=None)
    for file in log_files(place):
        if newest is not None and file.start <= newest < file.end:
            at = newest - file.start
            (size,) = _SIZE.unpack(place.read(file.name, at, at + _SIZE.size))
            return decode_record(place.read(file.name, at, at + size), check_crc=False).store_timestamp
    return None


def boundaries(place: StorePlace, file: LogFile, parts: int, queues: list[QueueUnits]) -> list[int]:
    """Cut a log file into about ``parts`` parts that each begin with a record. Return the ends of the parts; the last
    end is the end of the file.

    Only consume queues show where records begin without scanning all earlier records. If there are no queues, or units
    are wrong, there are fewer parts.
    """
    cuts: list[int] = []
    size = (file.end - file.start) // parts
    for number in range(1, parts):
        wanted = file.start + (file.end - file.start) * number // parts
        cut = _record_near(place, file, wanted, size // 4, queues)
        if cut is not None and bisect_right(cuts, cut) == len(cuts) and cut not in cuts:
            cuts.append(cut)
    return [*cuts, file.end]


def _record_near(place: StorePlace, file: LogFile, wanted: int, near: int, queues: list[QueueUnits]) -> int | None:
    """Return the log offset of a record at or after ``wanted``: the first one found that is near, else the nearest."""
    confirmed = []
    for at in _candidates(file, wanted, queues):
        if _begins_record(place, file, at):
            confirmed.append(at)
            if at - wanted <= near:
                break
    return min(confirmed, default=None)


def _candidates(file: LogFile, wanted: int, queues: list[QueueUnits]) -> Iterator[int]:
    for units in queues:
        at = units.record_from(wanted)
        if at is not None and file.start < at < file.end:
            yield at


def _begins_record(place: StorePlace, file: LogFile, offset: int) -> bool:
    at = offset - file.start
    head = place.read(file.name, at, at + _OWN_OFFSET.size)
    return len(head) == _OWN_OFFSET.size and _OWN_OFFSET.unpack(head) == (offset,)
