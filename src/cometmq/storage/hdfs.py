"""Storage on HDFS, with hdfs-native, which needs no Java. Name services and Kerberos are configured in
``HADOOP_CONF_DIR``."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, cast

from cometmq.errors import require
from cometmq.storage.errors import ObjectNotFoundError
from cometmq.storage.failures import storage_failure
from cometmq.storage.interface import CountingWriter, Storage, StoredObject, check_content, check_key
from cometmq.storage.location import Location

if TYPE_CHECKING:
    from hdfs_native import Client


class HdfsStorage(Storage):
    """Stores objects as files below a directory on HDFS.

    A file is written under a temporary name and then renamed. HDFS refuses to rename a file to a name that exists, so
    only one of several writers creates an object.
    """

    def __init__(self, location: Location) -> None:
        self._location = location

    @property
    def url(self) -> str:
        """The URL of the directory that holds the objects."""
        return str(self._location)

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a file or a range of it; see :meth:`Storage.read`."""
        return self.read_ranges(key, [(start, -1 if end is None else end)])[0]

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several ranges; see :meth:`Storage.read_ranges`."""
        with self._failures(key), self._client.read(self._path(key)) as file:
            size = len(file)
            parts = []
            for start, end in ranges:
                length = (size if end < 0 else min(end, size)) - start
                parts.append(bytes(file.read_range(start, length)) if length > 0 else b"")
            return parts

    def stat(self, key: str) -> StoredObject | None:
        """Return size and time of a file; see :meth:`Storage.stat`."""
        try:
            with self._failures(key):
                status = self._client.get_file_info(self._path(key))
        except ObjectNotFoundError:
            return None
        return None if status.isdir else StoredObject(key, status.length, status.modification_time)

    def create_once(self, key: str, content: bytes) -> bool:
        """Rename a temporary file to its final name, which HDFS refuses if the name exists."""
        check_content(content)
        with self._failures(key), self._unfinished(key) as unfinished:
            with self._client.create(unfinished) as file:
                file.write(content)
            try:
                self._client.rename(unfinished, self._path(key))
            except FileExistsError:
                return False
            return True

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        """Open a temporary file, which is renamed at the end; see :meth:`Storage.open_writer`."""
        with self._unfinished(key) as unfinished:
            with self._failures(key):
                file = self._client.create(unfinished)

            def write(content: Any) -> None:
                with self._failures(key):
                    file.write(content)

            try:
                yield cast(IO[bytes], CountingWriter(write))
            except BaseException:
                with suppress(Exception):  # its own failure would hide the error of the caller
                    file.close()
                raise
            with self._failures(key):
                file.close()
                self._client.rename(unfinished, self._path(key), overwrite=True)

    def list_objects(self, directory: str = "", after: str = "") -> Iterator[StoredObject]:
        """Yield the files below a directory; see :meth:`Storage.list_objects`."""
        for found in self._files(directory):
            if found.size and found.key > after and "/." not in f"/{found.key}":
                yield found

    def list_unfinished(self) -> Iterator[StoredObject]:
        """Yield temporary files; see :meth:`Storage.list_unfinished`."""
        for found in self._files(""):
            name = found.key.rpartition("/")[2]
            if name.startswith(".") and name.endswith(".tmp"):
                yield found

    def _files(self, directory: str) -> Iterator[StoredObject]:
        top = self._path(directory) if directory else self._root
        skip = len(self._root.rstrip("/")) + 1
        with self._failures(directory), suppress(FileNotFoundError):
            for status in self._client.list_status(top, recursive=True):
                if not status.isdir:
                    yield StoredObject(status.path[skip:], status.length, status.modification_time)

    def list_directories(self, directory: str = "") -> list[str]:
        """Return the names of directories; see :meth:`Storage.list_directories`."""
        top = self._path(directory) if directory else self._root
        names: list[str] = []
        with self._failures(directory), suppress(FileNotFoundError):
            names += [status.path.rpartition("/")[2] for status in self._client.list_status(top) if status.isdir]
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; see :meth:`Storage.delete`."""
        for key in keys:
            with self._failures(key), suppress(FileNotFoundError):
                self._client.delete(self._path(key))

    def below(self, directory: str) -> HdfsStorage:
        """Return the storage for a directory in this storage."""
        return HdfsStorage(self._location.below(check_key(directory)))

    @cached_property
    def _client(self) -> Client:
        require("hdfs://", "hdfs", "hdfs_native")
        from hdfs_native import Client

        with self._failures(""):
            return Client(f"hdfs://{self._location.container}")

    @property
    def _root(self) -> str:
        return f"/{self._location.path}"

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{check_key(key)}"

    @contextmanager
    def _unfinished(self, key: str) -> Iterator[str]:
        """Provide the path of a temporary file next to the object, and remove the file at the end."""
        folder, _, name = self._path(key).rpartition("/")
        path = f"{folder}/.{name[:100]}.{uuid.uuid4().hex}.tmp"
        try:
            yield path
        finally:
            with suppress(OSError, RuntimeError):
                self._client.delete(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return HdfsStorage, (self._location,)

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self.not_found(key) from None
        except (OSError, RuntimeError, ValueError) as error:
            raise storage_failure(self.describe(key), error, []) from None
