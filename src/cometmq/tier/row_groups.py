"""Row groups of an archive's Parquet files: read by ranges, rebuilt as records, and cached."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.archive import ArchiveError, DataFile
from cometmq.errors import CometMQError
from cometmq.storage import ObjectNotFoundError, Storage
from cometmq.tier.limits import CACHED_FOOTERS, CACHED_RECORDS_BYTES, FOOTER_BYTES, LOADING_BYTES
from cometmq.tier.rebuild import COLUMNS, RebuiltRecords

K = TypeVar("K")
V = TypeVar("V")

_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 8
"""At the end of a file: the length of the footer, and the magic."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: its number in the file, and the smallest and largest values in it."""

    number: int
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


class RowGroups:
    """Reads footers and row groups, and keeps those used last."""

    def __init__(self, storage: Storage, threads: ThreadPoolExecutor) -> None:
        self._storage = storage
        self._threads = threads
        self._room = _Room(LOADING_BYTES)
        self._footers: _Cache[str, Footer] = _Cache(CACHED_FOOTERS, lambda _: 1)
        self._records: _Cache[tuple[str, int], RebuiltRecords] = _Cache(CACHED_RECORDS_BYTES, lambda found: found.size)

    def footer(self, file: DataFile) -> Footer:
        """Return the footer of a file.

        :raises ArchiveError: the file is lost, or is not the file that was committed.
        :raises StorageError: the storage does not answer.
        """
        return self._footers.get(file.path, lambda: self._read_footer(file))

    def records(self, file: DataFile, group: int) -> RebuiltRecords:
        """Return the records of a row group.

        :raises ArchiveError: the file is lost or damaged.
        """
        return self._records.get((file.path, group), lambda: self._rebuild(file, group))

    def _rebuild(self, file: DataFile, group: int) -> RebuiltRecords:
        with self._room.taken(self.footer(file).metadata.row_group(group).total_byte_size):
            return RebuiltRecords(self.table(file, group, COLUMNS))

    def read_ahead(self, file: DataFile, group: int) -> None:
        """Begin to load a row group, or the first one of another file, unless it is loaded."""
        if (file.path, group) not in self._records:
            self._threads.submit(self._load_quietly, file, group)

    def _load_quietly(self, file: DataFile, group: int) -> None:
        with suppress(CometMQError):  # the reader that needs it gets the error
            if group < len(self.footer(file).groups):
                self.records(file, group)

    def table(self, file: DataFile, group: int, columns: Sequence[str]) -> Any:
        """Read some columns of a row group as an Arrow table.

        :raises ArchiveError: the file is lost or damaged.
        """
        metadata = self.footer(file).metadata
        row_group = metadata.row_group(group)
        chunks = [row_group.column(at) for at in range(row_group.num_columns)]
        ranges = [_range_of(chunk) for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns]
        try:
            source = _Ranges(file.bytes, ranges, self._storage.read_ranges(file.path, ranges))
            with pq.ParquetFile(pa.PythonFile(source, "r"), metadata=metadata, pre_buffer=False) as parquet:
                return parquet.read_row_group(group, columns=list(columns), use_threads=False)
        except ObjectNotFoundError as error:
            raise self._lost(file) from error
        except (pa.ArrowException, OSError, KeyError) as error:
            raise self._damaged(file, str(error)) from error

    def _read_footer(self, file: DataFile) -> Footer:
        try:
            tail = self._storage.read(file.path, max(file.bytes - FOOTER_BYTES, 0), file.bytes)
            if len(tail) < min(file.bytes, FOOTER_BYTES) or tail[-4:] != _MAGIC:
                raise self._damaged(
                    file, f"it is shorter than {file.bytes} bytes or does not end with a Parquet footer"
                )
            size = int.from_bytes(tail[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
            if size > len(tail):
                tail = self._storage.read(file.path, file.bytes - size, file.bytes)
            metadata = pq.read_metadata(pa.BufferReader(tail))
        except ObjectNotFoundError as error:
            raise self._lost(file) from error
        except pa.ArrowException as error:
            raise self._damaged(file, str(error)) from error
        names = [metadata.schema.column(at).path for at in range(len(metadata.schema))]
        absent = [name for name in COLUMNS if name not in names]
        if absent:
            raise self._damaged(file, f"it has no column {absent[0]}")
        return Footer(
            metadata, [_row_group(metadata.row_group(at), at, file, names) for at in range(metadata.num_row_groups)]
        )

    def _lost(self, file: DataFile) -> ArchiveError:
        return ArchiveError(
            f"the archive has lost {self._storage.describe(file.path)}", next_step="restore it from a backup"
        )

    def _damaged(self, file: DataFile, reason: str) -> ArchiveError:
        return ArchiveError(
            f"{self._storage.describe(file.path)} is damaged: {reason}", next_step="restore it from a backup"
        )


def _range_of(chunk: Any) -> tuple[int, int]:
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def _row_group(row_group: Any, number: int, file: DataFile, names: list[str]) -> RowGroup:
    def bounds(name: str) -> tuple[Any, Any] | None:
        """Return the smallest and the largest value: a number, or the bytes of a text."""
        found = row_group.column(names.index(name)).statistics
        return (found.min_raw, found.max_raw) if found is not None and found.has_min_max else None

    first, last = bounds("queueOffset") or (file.first, file.end - 1)
    times_us = bounds("storeTimestamp") or (file.min_store_ms * 1000, file.max_store_ms * 1000)
    min_ms, max_ms = (time // 1000 for time in times_us)
    return RowGroup(number, first, last, min_ms, max_ms, bounds("physicalOffset"), bounds("uniqKey"))


class _Ranges(io.RawIOBase):
    """A seekable file of which only some ranges are in memory."""

    def __init__(self, size: int, ranges: Sequence[tuple[int, int]], contents: Sequence[bytes]) -> None:
        super().__init__()
        self._size = size
        self._parts = list(zip(ranges, contents, strict=True))
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence] + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self._position
        end = self._size if size is None or size < 0 else begin + size
        for (first, last), content in self._parts:
            if first <= begin and end <= last:
                self._position = end
                return content[begin - first : end - first]
        raise OSError(f"bytes {begin} to {end} were not loaded")


class _Room:
    """Limits the total size of what is loaded at the same time. A single load may be larger."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._freed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait for room, and use it in the block."""
        with self._freed:
            self._freed.wait_for(lambda: not self._taken or self._taken + size <= self._most)
            self._taken += size
        try:
            yield
        finally:
            with self._freed:
                self._taken -= size
                self._freed.notify_all()


class _Cache(Generic[K, V]):
    """Keeps the values used last, up to a total size. A value that several threads want at once is loaded once."""

    def __init__(self, most: int, size_of: Callable[[V], int]) -> None:
        self._most = most
        self._size_of = size_of
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()
        self._loading: dict[K, Future[V]] = {}
        self._size = 0

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return key in self._values or key in self._loading

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return a value, after loading it if necessary. An error of the load reaches all that wait for it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            other = self._loading.get(key)
            if other is None:
                mine = self._loading[key] = Future()
        if other is not None:
            return other.result()
        try:
            value = load()
        except BaseException as error:
            with self._lock:
                del self._loading[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self._values[key] = value
            self._size += self._size_of(value)
            while self._size > self._most and len(self._values) > 1:
                _, dropped = self._values.popitem(last=False)
                self._size -= self._size_of(dropped)
        mine.set_result(value)
        return value
