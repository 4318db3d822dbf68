"""The places where a store's files are: a local directory, or a copy or backup in an object store or on HDFS.

Local files are mapped. Of the other files, only the ranges that a task needs are read, and files of a backup are found
by its manifest.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final, NamedTuple

from cometmq.backup.manifest import MANIFEST
from cometmq.backup.opening import open_backup
from cometmq.backup.place import STORE
from cometmq.backup.stored import StoredBackup
from cometmq.paths import local_path
from cometmq.spark.errors import StoreReadError
from cometmq.storage import Location, ObjectNotFoundError, Storage, StorageOptions, open_storage
from cometmq.store.log.mapped_file import first_data
from cometmq.store.recovery.load import offset_of_name

LOG: Final = "commitlog"
QUEUES: Final = "consumequeue"
PIECE_BYTES: Final = 16 << 20
"""Size of each request for a range of a log file."""
_AT_ONCE: Final = 4
"""Number of such requests at the same time; a task keeps this many pieces in memory."""
_RESERVED_BYTES: Final = 8 << 20
"""Number of zeros at the beginning of the last log files that show that the broker only reserved the file."""
_FIRST_BYTES: Final = 4096
QueueKey = tuple[str, int]


class StoreFile(NamedTuple):
    """A file of the log or of a consume queue."""

    start: int
    """The offset of the file's first byte, which is also the number in the file's name."""
    name: str
    """The path in the store."""
    size: int


class StoredRange(NamedTuple):
    """The object with a file's content. If the object is smaller than the file, the rest of the file is zeros."""

    storage: Storage
    key: str
    size: int

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` up to but not including ``end``, without zeros that are not stored."""
        end = min(end, self.size)
        return self.storage.read(self.key, start, end) if start < end else b""


class StorePlace(ABC):
    """The files of a store. Names are paths relative to the store's directory."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Path or URL."""

    @abstractmethod
    def log_files(self) -> list[StoreFile]:
        """Return the log's files in order. The place may be the directory ``commitlog`` itself."""

    @abstractmethod
    def has_queues(self) -> bool:
        """Return True if consume queues exist."""

    @abstractmethod
    def queue_files(self, topic: str | None = None) -> dict[QueueKey, list[StoreFile]]:
        """Return the files of each consume queue, of one topic or of all topics, in order."""

    @abstractmethod
    def read(self, name: str, start: int, end: int) -> bytes:
        """Return a file's bytes from ``start`` up to but not including ``end``, or fewer at the end of the file."""

    @abstractmethod
    def is_reserved(self, file: StoreFile) -> bool:
        """Return True if a log file contains only zeros, since brokers create files before they need them."""

    @abstractmethod
    def stored(self, name: str) -> StoredRange | None:
        """Return the object with a file's content, or None if the file is local."""

    @abstractmethod
    def small_files(self, directory: str) -> list[str]:
        """Return the names of the files directly in a directory."""

    @abstractmethod
    def at_hand(self, *names: str) -> AbstractContextManager[Path]:
        """Provide a local directory with the given files, as far as they exist, during a ``with`` block."""


class LocalStore(StorePlace):
    """A store in a local directory, or in a file system that is mounted on all machines."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def name(self) -> str:
        """The directory."""
        return str(self.root)

    def log_files(self) -> list[StoreFile]:
        """Return the log's files; see :meth:`StorePlace.log_files`."""
        return self._numbered(LOG if (self.root / LOG).is_dir() else ".")

    def has_queues(self) -> bool:
        """Return True if the directory ``consumequeue`` exists."""
        return (self.root / QUEUES).is_dir()

    def queue_files(self, topic: str | None = None) -> dict[QueueKey, list[StoreFile]]:
        """Return the queues' files, including queues without files; see :meth:`StorePlace.queue_files`."""
        top = self.root / QUEUES
        topics = [top / topic] if topic is not None else top.iterdir() if top.is_dir() else ()
        return {
            (of.name, int(queue.name)): self._numbered(f"{QUEUES}/{of.name}/{queue.name}")
            for of in topics
            if of.is_dir()
            for queue in of.iterdir()
            if queue.is_dir() and queue.name.isdecimal()
        }

    def read(self, name: str, start: int, end: int) -> bytes:
        """Read a part of a file; see :meth:`StorePlace.read`."""
        with (self.root / name).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), end - start, start)

    def is_reserved(self, file: StoreFile) -> bool:
        """Search a file for its first byte that is not zero."""
        with (self.root / file.name).open("rb") as opened:
            return first_data(opened.fileno(), 0, file.size) >= file.size

    def stored(self, name: str) -> None:
        """Return None."""

    def small_files(self, directory: str) -> list[str]:
        """Return the names of files; see :meth:`StorePlace.small_files`."""
        found = self.root / directory
        return [f"{directory}/{path.name}" for path in found.iterdir()] if found.is_dir() else []

    @contextmanager
    def at_hand(self, *names: str) -> Iterator[Path]:  # noqa: ARG002  # all files are at hand
        """Provide the store's own directory."""
        yield self.root

    def _numbered(self, directory: str) -> list[StoreFile]:
        """Return the files in a directory whose names are offsets.

        :raises StoreReadError: the directory cannot be read.
        """
        try:
            with os.scandir(self.root / directory) as entries:
                return sorted(
                    StoreFile(start, f"{directory}/{entry.name}", entry.stat().st_size)
                    for entry in entries
                    if (start := offset_of_name(entry.name)) is not None
                )
        except OSError as error:
            raise StoreReadError(
                f"cannot read the store {self.root}: {error.strerror}",
                next_step="check that the directory is the same on all executors",
            ) from error


class StoredStore(StorePlace):
    """A store in an object store or on HDFS: a plain copy, or a backup."""

    def __init__(self, name: str, storage: Storage, backup: StoredBackup | None = None) -> None:
        """Store where the copy is, or the backup, whose manifest is read here."""
        self._name = name
        self._storage = storage
        files = {} if backup is None else backup.read_manifest().files
        self._sizes = {name: file.size for name, file in sorted(files.items())}
        self._stored = {
            name: StoredRange(backup.storage, backup.key_of(name, file), file.data)
            for name, file in files.items()
            if backup is not None
        }
        self._names = None if backup is None else list(self._sizes)
        """The sorted names of the files in a backup."""

    @property
    def name(self) -> str:
        """The URL."""
        return self._name

    def log_files(self) -> list[StoreFile]:
        """Return the log's files; see :meth:`StorePlace.log_files`."""
        return _numbered(self._sizes_in(LOG)) or _numbered(
            {name: size for name, size in self._sizes_in("").items() if "/" not in name}
        )

    def has_queues(self) -> bool:
        """Return True if any consume queue has a file."""
        if self._names is None:
            return next(self._storage.list_objects(QUEUES), None) is not None
        return bool(self._sizes_in(QUEUES))

    def queue_files(self, topic: str | None = None) -> dict[QueueKey, list[StoreFile]]:
        """Return the queues' files; see :meth:`StorePlace.queue_files`."""
        queues: dict[QueueKey, dict[str, int]] = {}
        for name, size in self._sizes_in(QUEUES if topic is None else f"{QUEUES}/{topic}").items():
            parts = name.split("/")
            if len(parts) == 4 and parts[2].isdecimal():
                queues.setdefault((parts[1], int(parts[2])), {})[name] = size
        return {key: _numbered(sizes) for key, sizes in queues.items()}

    def read(self, name: str, start: int, end: int) -> bytes:
        """Read a range; see :meth:`StorePlace.read`."""
        return self.stored(name).read(start, end)

    def is_reserved(self, file: StoreFile) -> bool:
        """Return True if the first 8 MiB of a file are zeros. The longest record is shorter."""
        stored = self.stored(file.name)
        return not any(stored.read(0, _FIRST_BYTES)) and not any(stored.read(_FIRST_BYTES, _RESERVED_BYTES))

    def stored(self, name: str) -> StoredRange:
        """Return the object of a file; see :meth:`StorePlace.stored`."""
        if name not in self._stored:
            self._stored[name] = StoredRange(self._storage, name, self._size_of(name))
        return self._stored[name]

    def small_files(self, directory: str) -> list[str]:
        """Return the names of files; see :meth:`StorePlace.small_files`."""
        return [name for name in self._sizes_in(directory) if name.rpartition("/")[0] == directory]

    @contextmanager
    def at_hand(self, *names: str) -> Iterator[Path]:
        """Download the files into a temporary directory, which is removed at the end of the block."""
        with TemporaryDirectory(dir=spool_directory()) as directory:
            for name in names:
                size = self._size_of(name)
                if size:
                    path = Path(directory, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("xb", buffering=0) as file:
                        _download(self.stored(name), file, 0, size)
                        file.truncate(size)
            yield Path(directory)

    def _sizes_in(self, directory: str) -> dict[str, int]:
        """Return the sizes of all files below a directory, by their names."""
        if self._names is None:
            found = {file.key: file.size for file in self._storage.list_objects(directory)}
            self._sizes |= found
            return found
        if not directory:
            return self._sizes
        first, end = (bisect_left(self._names, f"{directory}{after}") for after in ("/", "0"))  # 0 follows / in ASCII
        return {name: self._sizes[name] for name in self._names[first:end]}

    def _size_of(self, name: str) -> int:
        """Return the size of a file, or 0 if it does not exist."""
        if name not in self._sizes and self._names is None:
            found = self._storage.stat(name)
            self._sizes[name] = 0 if found is None else found.size
        return self._sizes.get(name, 0)


def _numbered(sizes: dict[str, int]) -> list[StoreFile]:
    return sorted(
        StoreFile(start, name, size)
        for name, size in sizes.items()
        if (start := offset_of_name(name.rpartition("/")[2])) is not None
    )


def open_store(url: str | os.PathLike[str], options: StorageOptions | None = None) -> StorePlace:
    """Return the place of a store: a directory with ``commitlog/``, the log's directory, or a backup.

    :raises PathError: the URL has an unknown scheme, or is incomplete.
    :raises BackupError: a backup's manifest is damaged, or has a version that cannot be read.
    :raises StorageError: a request was rejected.
    """
    location = Location.parse(url)
    if location.kind == "local":
        root = local_path(url)
        return LocalStore(root / STORE if (root / MANIFEST).is_file() and (root / STORE).is_dir() else root)
    if location.path and _has_manifest(location, options):
        backup = open_backup(str(location), options)
        assert isinstance(backup, StoredBackup)
        return StoredStore(str(location), backup.storage, backup)
    _demand_complete(location, options)
    return StoredStore(str(location), open_storage(location, options))


def _has_manifest(location: Location, options: StorageOptions | None) -> bool:
    try:
        return bool(open_storage(location, options).read(MANIFEST, 0, 1))  # errors of HEAD requests have no text
    except ObjectNotFoundError:
        return False


def _demand_complete(location: Location, options: StorageOptions | None) -> None:
    """Check that a URL is not inside a backup, whose sealed files are elsewhere.

    :raises StoreReadError: the URL is inside a backup.
    """
    for inside in (STORE, f"{STORE}/{LOG}"):
        above = location.at(location.path.removesuffix(inside).rstrip("/"))
        if above.path not in ("", location.path) and _has_manifest(above, options):
            raise StoreReadError(f"{location} has only some files of a backup", next_step=f"use {above}")


@contextmanager
def spooled(stored: StoredRange, size: int, start: int, end: int) -> Iterator[IO[bytes]]:
    """Provide a temporary file without a name that has the bytes ``start <= position < end`` of a stored file at the
    same positions, and zeros everywhere else.

    :param size: size of the whole file.
    """
    with TemporaryFile(dir=spool_directory(), buffering=0) as file:
        file.truncate(size)
        _download(stored, file, start, end)
        yield file


def _download(stored: StoredRange, file: IO[bytes], start: int, end: int) -> None:
    end = min(end, stored.size)

    def download(at: int) -> None:
        content = memoryview(stored.read(at, min(at + PIECE_BYTES, end)).rstrip(b"\0"))
        while content:
            written = os.pwrite(file.fileno(), content, at)
            content, at = content[written:], at + written

    with ThreadPoolExecutor(_AT_ONCE, "store") as threads:
        for _ in threads.map(download, range(start, end, PIECE_BYTES)):
            pass


def spool_directory() -> str | None:
    """Return a directory of Spark on the executor, or None for the system's directory of temporary files."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None
