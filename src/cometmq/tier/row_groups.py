"""Row groups of an archive's Parquet files: read by ranges, rebuilt as records, and cached."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.archive import ArchiveError, DataFile
from cometmq.errors import CometMQError
from cometmq.storage import ObjectNotFoundError, Storage
from cometmq.tier.footers import Footer, damaged, lost, range_of, read_footer
from cometmq.tier.limits import CACHED_FOOTERS, CACHED_RECORDS_BYTES, LOADING_BYTES, MEMORY_BYTES
from cometmq.tier.rebuild import COLUMNS, DamagedRecordsError, RebuiltRecords

K = TypeVar("K")
V = TypeVar("V")


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
        return self._footers.get(file.path, lambda: read_footer(self._storage, file))

    def records(self, file: DataFile, group: int) -> RebuiltRecords:
        """Return the records of a row group.

        :raises ArchiveError: the file is lost or damaged.
        """
        return self._records.get((file.path, group), lambda: self._rebuild(file, group))

    def _rebuild(self, file: DataFile, group: int) -> RebuiltRecords:
        with self._room.taken(self.footer(file).groups[group].size), self._failures(file):
            return RebuiltRecords(self._table(file, group, COLUMNS), file)

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
        with self._failures(file):
            return self._table(file, group, columns)

    def _table(self, file: DataFile, group: int, columns: Sequence[str]) -> Any:
        footer = self.footer(file)
        row_group = footer.metadata.row_group(group)
        chunks = [row_group.column(at) for at in range(row_group.num_columns)]
        ranges = [range_of(chunk) for chunk in chunks if chunk.path_in_schema in columns]
        source = _Ranges(file.bytes, ranges, self._storage.read_ranges(file.path, ranges))
        with pq.ParquetFile(pa.PythonFile(source, "r"), metadata=footer.metadata, pre_buffer=False) as parquet:
            table = parquet.read_row_group(group, columns=list(columns), use_threads=False)
        if table.num_rows != row_group.num_rows:
            raise DamagedRecordsError(f"row group {group} has {table.num_rows} messages")
        return table

    @contextmanager
    def _failures(self, file: DataFile) -> Iterator[None]:
        """Turn the errors of the libraries into one that names the file."""
        try:
            yield
        except CometMQError as error:
            if isinstance(error, ObjectNotFoundError):
                raise lost(self._storage, file) from error
            raise
        except MemoryError as error:
            raise ArchiveError(
                f"{self._storage.describe(file.path)} needs more memory than the {MEMORY_BYTES >> 20} MiB of the "
                "archive reader",
                next_step="if this does not pass, the file is damaged: restore it from a backup",
            ) from error
        except (pa.ArrowException, DamagedRecordsError, OSError, ValueError, LookupError, OverflowError) as error:
            raise damaged(self._storage, file, str(error)) from error


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
        self._entrance = threading.Lock()
        """Held by the load that waits: later ones wait behind it, since smaller ones would always find room first."""

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait for room, and use it in the block."""
        with self._entrance, self._freed:
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
