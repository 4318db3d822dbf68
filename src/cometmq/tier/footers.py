"""The footers of an archive's Parquet files, checked before anything else of a file is read.

A file may be damaged, or may come from somebody else. All that a later read relies on is checked here: the columns and
their types, the number of records, the places of the columns in the file, and the sizes that must fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.archive import ArchiveError, DataFile
from cometmq.storage import ObjectNotFoundError, Storage
from cometmq.tier.limits import FOOTER_BYTES, FOOTER_BYTES_MAX, ROW_GROUP_BYTES_MAX

_INT, _LONG, _TEXT, _BYTES, _TIME = pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.timestamp("us", tz="UTC")
TYPES: Final = {
    "topic": _TEXT,
    "queueId": _INT,
    "queueOffset": _LONG,
    "body": _BYTES,
    "flag": _INT,
    "sysFlag": _INT,
    "bornTimestamp": _TIME,
    "bornHost": _TEXT,
    "storeTimestamp": _TIME,
    "storeHost": _TEXT,
    "reconsumeTimes": _INT,
    "preparedTransactionOffset": _LONG,
    "physicalOffset": _LONG,
    "bodyCrc": _INT,
    "storedBody": _BYTES,
    "propertiesText": _TEXT,
    "keys": _TEXT,
    "uniqKey": _TEXT,
}
"""The columns that are read, and their types."""
_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 8
"""At the end of a file: the length of the footer, and the magic."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: its number in the file, and the smallest and largest values in it."""

    number: int
    rows: int
    size: int
    """Size of the columns when they are decompressed, as far as the footer knows."""
    first: int
    last: int
    min_ms: int
    max_ms: int
    positions: tuple[int, int] | None
    """The offsets in the broker's log, if the file states them."""
    unique_keys: tuple[bytes, bytes] | None


@dataclass(frozen=True)
class Footer:
    """The footer of a file."""

    metadata: Any
    groups: list[RowGroup]


def read_footer(storage: Storage, file: DataFile) -> Footer:
    """Read and check the footer of a file.

    :raises ArchiveError: the file is lost, or is not the file that was committed.
    :raises StorageError: the storage does not answer.
    """
    try:
        tail = storage.read(file.path, max(file.bytes - FOOTER_BYTES, 0), file.bytes)
        if len(tail) < min(file.bytes, FOOTER_BYTES) or tail[-4:] != _MAGIC:
            raise damaged(storage, file, f"it is shorter than {file.bytes} bytes or does not end with a Parquet footer")
        size = int.from_bytes(tail[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
        if size > min(file.bytes, FOOTER_BYTES_MAX):
            raise damaged(storage, file, f"its footer has {size} bytes, at most {FOOTER_BYTES_MAX} are read")
        if size > len(tail):
            tail = storage.read(file.path, file.bytes - size, file.bytes)
        metadata = pq.read_metadata(pa.BufferReader(tail))
        schema = metadata.schema.to_arrow_schema()
    except ObjectNotFoundError as error:
        raise lost(storage, file) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(storage, file, str(error)) from error
    reason = _wrong_column(schema) or _wrong_size(metadata, file)
    if reason:
        raise damaged(storage, file, reason)
    names = [metadata.schema.column(at).path for at in range(len(metadata.schema))]
    groups = [_row_group(metadata.row_group(at), at, file, names) for at in range(metadata.num_row_groups)]
    reason = _wrong_order(groups, file)
    if reason:
        raise damaged(storage, file, reason)
    return Footer(metadata, groups)


def lost(storage: Storage, file: DataFile) -> ArchiveError:
    """Return the error for a file that no longer exists."""
    return ArchiveError(f"the archive has lost {storage.describe(file.path)}", next_step="restore it from a backup")


def damaged(storage: Storage, file: DataFile, reason: str) -> ArchiveError:
    """Return the error for a file that cannot be read."""
    return ArchiveError(f"{storage.describe(file.path)} is damaged: {reason}", next_step="restore it from a backup")


def range_of(chunk: Any) -> tuple[int, int]:
    """Return the place of a column of a row group in the file."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def _wrong_column(schema: Any) -> str:
    for name, kind in TYPES.items():
        found = schema.get_all_field_indices(name)
        if len(found) != 1:
            return f"it has no column {name}" if not found else f"it has {len(found)} columns {name}"
        if schema.field(found[0]).type != kind:
            return f"its column {name} has the type {schema.field(found[0]).type}, and not {kind}"
    return ""


def _wrong_size(metadata: Any, file: DataFile) -> str:
    rows = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows += group.num_rows
        if group.num_rows <= 0:
            return f"row group {number} has {group.num_rows} messages"
        chunks = [group.column(at) for at in range(group.num_columns)]
        read = [chunk for chunk in chunks if chunk.path_in_schema in TYPES]
        for chunk in read:
            start, end = range_of(chunk)
            if not 0 <= start <= end <= file.bytes:
                return f"column {chunk.path_in_schema} of row group {number} is at bytes {start} to {end}"
            if chunk.num_values != group.num_rows:
                return f"row group {number} has {chunk.num_values} values of {chunk.path_in_schema}"
        size = sum(max(chunk.total_uncompressed_size, chunk.total_compressed_size) for chunk in read)
        if size > ROW_GROUP_BYTES_MAX:
            return f"row group {number} has {size} bytes, at most {ROW_GROUP_BYTES_MAX} are read"
    return "" if rows == file.rows else f"it has {rows} messages, and not {file.rows}"


def _wrong_order(groups: list[RowGroup], file: DataFile) -> str:
    for group in groups:
        if not file.first <= group.first <= group.last < file.end:
            return f"row group {group.number} has the offsets {group.first} to {group.last}"
    for before, after in pairwise(groups):
        is_known = (before.first, before.last) != (file.first, file.end - 1)  # else the file states no offsets
        if is_known and after.first <= before.last:
            return f"row groups {before.number} and {after.number} overlap"
    return ""


def _row_group(row_group: Any, number: int, file: DataFile, names: list[str]) -> RowGroup:
    def bounds(name: str) -> tuple[Any, Any] | None:
        """Return the smallest and the largest value: a number, or the bytes of a text."""
        found = row_group.column(names.index(name)).statistics
        return (found.min_raw, found.max_raw) if found is not None and found.has_min_max else None

    first, last = bounds("queueOffset") or (file.first, file.end - 1)
    times_us = bounds("storeTimestamp") or (file.min_store_ms * 1000, file.max_store_ms * 1000)
    min_ms, max_ms = (time // 1000 for time in times_us)
    size = max(row_group.total_byte_size, 0)
    return RowGroup(
        number, row_group.num_rows, size, first, last, min_ms, max_ms, bounds("physicalOffset"), bounds("uniqKey")
    )
