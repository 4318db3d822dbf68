"""Storage in a local directory, or in a file system that is mounted on all machines."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, cast

from cometmq.durable import flush_directory
from cometmq.errors import reason_of
from cometmq.storage.errors import StorageError
from cometmq.storage.interface import CountingWriter, Storage, StoredObject, check_content, check_key

_UNFINISHED: Final = re.compile(r"\..*\.[0-9a-f]{32}\.tmp")
_ATTEMPTS: Final = 100
"""Maximum number of attempts to create a file, since a deletion may remove its directory while it is empty."""


class LocalStorage(Storage):
    """Stores objects as files below a directory, which is created with the first object.

    The names of unfinished files begin with a dot, so that lists and Spark leave them out.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        """The directory that holds the objects."""
        return str(self._root)

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a file's content or a part of it; see :meth:`Storage.read`."""
        with self._failures(key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several parts of a file; see :meth:`Storage.read_ranges`."""
        with self._failures(key), self._path(key).open("rb") as file:
            parts = []
            for start, end in ranges:
                file.seek(start)
                parts.append(file.read(end - start))
            return parts

    def stat(self, key: str) -> StoredObject | None:
        """Return size and time of a file; see :meth:`Storage.stat`."""
        try:
            status = self._path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._failure(key, error) from error
        return StoredObject(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def create_once(self, key: str, content: bytes) -> bool:
        """Link a flushed temporary file to its final name, which fails if the name exists."""
        check_content(content)
        with self._failures(key), self._unfinished(key) as (unfinished, path):
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(unfinished, path)
            except FileExistsError:
                return False
            flush_directory(path.parent)
            return True

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        """Open a temporary file, which is flushed and renamed at the end; see :meth:`Storage.open_writer`."""
        with self._unfinished(key) as (unfinished, path):
            with self._failures(key):
                file = unfinished.open("wb")

            def write(content: Any) -> None:
                with self._failures(key):
                    file.write(content)

            with file:
                yield cast(IO[bytes], CountingWriter(write))
                with self._failures(key):
                    file.flush()
                    os.fsync(file.fileno())
            with self._failures(key):
                unfinished.replace(path)
                flush_directory(path.parent)

    def list_objects(self, directory: str = "", after: str = "") -> Iterator[StoredObject]:
        """Yield the files below a directory; see :meth:`Storage.list_objects`."""
        for key in self._keys(directory):
            if key.rpartition("/")[2].startswith(".") or key <= after:
                continue
            found = self.stat(key)
            if found is not None and found.size:  # a writer may have removed it since
                yield found

    def list_unfinished(self) -> Iterator[StoredObject]:
        """Yield temporary files; see :meth:`Storage.list_unfinished`."""
        for key in self._keys(""):
            if _UNFINISHED.fullmatch(key.rpartition("/")[2]) and (found := self.stat(key)) is not None:
                yield found

    def list_directories(self, directory: str = "") -> list[str]:
        """Return the names of directories; see :meth:`Storage.list_directories`."""
        try:
            with os.scandir(self._root / directory) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._failure(directory, error) from error

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, and the directories that become empty; see :meth:`Storage.delete`."""
        for key in keys:
            path = self._path(key)
            with self._failures(key):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                for folder in path.parents:
                    if folder == self._root:
                        break
                    folder.rmdir()

    def below(self, directory: str) -> LocalStorage:
        """Return the storage for a directory in this storage."""
        return LocalStorage(self._path(directory))

    def _keys(self, directory: str) -> Iterator[str]:
        """Yield the keys of all files, also of temporary files."""
        for folder, folders, names in os.walk(self._root / directory):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                yield Path(folder, name).relative_to(self._root).as_posix()

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextmanager
    def _unfinished(self, key: str) -> Iterator[tuple[Path, Path]]:
        """Provide the paths of a temporary file and of the object, and remove the temporary file at the end."""
        path = self._path(key)
        unfinished = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.tmp")
        with self._failures(key):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    unfinished.touch(exist_ok=False)  # from now on the directory is not empty
                    break
                except (FileNotFoundError, FileExistsError):  # mkdir raises the latter if the directory is gone again
                    if attempt == _ATTEMPTS:
                        raise
        try:
            yield unfinished, path
        finally:
            unfinished.unlink(missing_ok=True)

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(key, error) from error

    def _failure(self, key: str, error: OSError) -> StorageError:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return self.not_found(key)
        return StorageError(f"{self.describe(key)}: {reason_of(error)}")
