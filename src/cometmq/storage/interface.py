"""The storage interface: objects with keys, and the rules that each implementation follows."""

from __future__ import annotations

import atexit
import io
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any, Final

from cometmq.storage.errors import ObjectExistsError, ObjectNotFoundError, StorageUnavailableError

_CREATE_ATTEMPTS: Final = 6
_CREATE_PAUSE_SECONDS: Final = 0.05
"""The pause before the second attempt; it doubles with each further attempt."""
KEY_BYTES_MAX: Final = 900
"""Maximum length of a key in UTF-8. Object stores accept 1,024 bytes, which include the prefix in the URL."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object in a list of objects."""

    key: str
    size: int
    """Size of the object in bytes."""
    modified_ms: int
    """The time of the last write on the storage's clock, in milliseconds since 1970; object stores round it to
    seconds."""


class Storage(ABC):
    """Objects in one local directory, one prefix of a bucket, or one directory on HDFS.

    A key is a path relative to that place, for example ``_commits/00000000000000000007.json``. Rules:

    * An object appears completely or not at all. A failed or killed writer leaves no object.
    * :meth:`create` is the only conditional write. If several writers create the same key, only one succeeds. No caller
      needs locks, renames, links, modification times or a second kind of condition.
    * Directories are part of keys. They need not be created, and an empty directory does not exist.
    * Objects are not empty. Lists leave out empty objects, which some consoles create to show a directory.
    * Once an object has been written, it appears in lists and can be read.

    A storage can be pickled, so that tasks on other machines can use it. Several threads may use it.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The path or URL in the form that users write, without credentials."""

    @abstractmethod
    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the content of an object, or its bytes from ``start`` up to but not including ``end``.

        :raises ObjectNotFoundError: no such object exists.
        :raises StorageError: the storage rejected the request.
        """

    @abstractmethod
    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several byte ranges, each from its start up to but not including its end.

        Neighbouring ranges are read with one request, and requests run at the same time.

        :raises ObjectNotFoundError: no such object exists.
        """

    @abstractmethod
    def stat(self, key: str) -> StoredObject | None:
        """Return the size and time of an object, or None if the object does not exist."""

    def put(self, key: str, content: bytes) -> None:
        """Write an object, replacing any existing one. When this returns, the content survives a power cut."""
        check_content(content)
        with self.open_writer(key) as file:
            file.write(content)

    @abstractmethod
    def create_once(self, key: str, content: bytes) -> bool:
        """Write an object unless it exists; return False if the storage reports that it exists.

        Callers use :meth:`create`, which also handles lost answers.
        """

    @abstractmethod
    def open_writer(self, key: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file whose content becomes the object at the end of the ``with`` block.

        An exception inside the block discards the content. The file supports only ``write`` and ``tell``, and keeps a
        bounded part of the content in memory.
        """

    @abstractmethod
    def list_objects(self, directory: str = "", after: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a directory, in any order.

        :param after: leave out this key and all keys that sort before it as text.
        """

    def list_unfinished(self) -> Iterator[StoredObject]:
        """Yield the temporary files of writers, which may still be at work or were killed; :meth:`delete` deletes them.

        Object stores have none: they keep the parts of an upload apart, and delete them by a lifecycle rule.
        """
        return iter(())

    @abstractmethod
    def list_directories(self, directory: str = "") -> list[str]:
        """Return the names of the directories directly below a directory, sorted."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. Keys for which there is no object are ignored."""

    @abstractmethod
    def below(self, directory: str) -> Storage:
        """Return the storage of a directory in this one."""

    def create(self, key: str, content: bytes) -> None:
        """Write an object that does not exist yet.

        If an answer is lost, the client sends the request again, and the storage reports that the object from the first
        attempt exists. So an existing object with the same content counts as created. If different writers must not
        share an object, put a random token into the content.

        :raises ObjectExistsError: an object with different content exists.
        """
        pause = _CREATE_PAUSE_SECONDS
        for _ in range(_CREATE_ATTEMPTS):
            if self.create_once(key, content):
                return
            try:
                existing = self.read(key)
            except ObjectNotFoundError:  # two requests collided, and the storage rejected both
                time.sleep(pause)
                pause *= 2
                continue
            if existing == content:
                return
            raise ObjectExistsError(f"{self.describe(key)} exists already", content=existing)
        raise StorageUnavailableError(
            f"{self.describe(key)} could not be created: the storage rejects it as existing, and has no such object",
            next_step="run the command again; if it fails again, check whether the storage supports If-None-Match",
        )

    def open_reader(self, key: str, size: int | None = None) -> io.RawIOBase:
        """Open an object as a seekable file, in which each read is one request.

        :param size: the object's size in bytes, if known; this saves a request.
        :raises ObjectNotFoundError: no such object exists.
        """
        if size is None:
            found = self.stat(key)
            if found is None:
                raise self.not_found(key)
            size = found.size
        return RangeReader(self, key, size)

    def describe(self, key: str) -> str:
        """Return the URL of an object for use in messages."""
        return f"{self.url.rstrip('/')}/{key}"

    def not_found(self, key: str) -> ObjectNotFoundError:
        """Return the error for an object that does not exist."""
        return ObjectNotFoundError(f"{self.describe(key)} does not exist")


class RangeReader(io.RawIOBase):
    """A seekable file that reads byte ranges of an object.

    A thread of pyarrow may free it a moment after pyarrow has returned the data. If the interpreter ended in this
    moment, the process would be aborted (apache/arrow#33975). So the end waits until no reader is left.
    """

    def __init__(self, storage: Storage, key: str, size: int) -> None:
        super().__init__()
        self._storage = storage
        self._key = key
        self._size = size
        self._position = 0
        _readers.add(self)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position, as :meth:`io.IOBase.seek` does."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"position {base + offset} is before the start of the object")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, or the rest of the object if ``size`` is negative."""
        end = self._size if size is None or size < 0 else min(self._position + size, self._size)
        if self._position >= end:
            return b""
        content = self._storage.read(self._key, self._position, end)
        self._position += len(content)
        return content

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # any writable buffer
        """Read into a buffer; return the number of bytes read."""
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)


_readers: Final[weakref.WeakSet[RangeReader]] = weakref.WeakSet()
_EXIT_SECONDS: Final = 1.0
_EXIT_PAUSE_SECONDS: Final = 0.001


def _await_readers() -> None:
    give_up_at = time.monotonic() + _EXIT_SECONDS
    while _readers and time.monotonic() < give_up_at:
        time.sleep(_EXIT_PAUSE_SECONDS)


atexit.register(_await_readers)


class CountingWriter:
    """A file that passes written bytes to a function, and can report its position.

    The object is completed at the end of the :meth:`Storage.open_writer` block, not by :meth:`close`. Otherwise
    pyarrow, which closes its file even after an error, would publish half an object.
    """

    def __init__(self, write: Callable[[Any], object]) -> None:
        self._write = write
        self._position = 0
        self.closed = False

    def write(self, content: Any) -> int:
        """Write bytes; return the number of bytes written."""
        size = memoryview(content).nbytes
        self._write(content)
        self._position += size
        return size

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._position

    def flush(self) -> None:
        """Do nothing, since the storage has all bytes only when the object is complete."""

    def close(self) -> None:
        """Mark the file as closed."""
        self.closed = True

    def readable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False


def check_key(key: str) -> str:
    """Return a key after checking that every implementation can store it.

    :raises ValueError: the key is empty, too long, absolute or not in its shortest form.
    """
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise ValueError(f"invalid key {key!r}: a key is a relative path with / between its parts")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"key of {len(key.encode())} bytes: at most {KEY_BYTES_MAX} are supported")
    return key


def check_content(content: bytes) -> bytes:
    """Return the content of an object.

    :raises ValueError: the content is empty.
    """
    if not content:
        raise ValueError("objects have at least one byte")
    return content
