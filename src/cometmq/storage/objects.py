"""Storage in an object store: S3 and compatible stores, Google Cloud Storage or Azure Blob Storage, through obstore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Final, cast

from cometmq.storage.errors import ObjectNotFoundError
from cometmq.storage.failures import storage_failure
from cometmq.storage.interface import CountingWriter, Storage, StoredObject, check_content, check_key
from cometmq.storage.location import Location
from cometmq.storage.options import StorageOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES: Final = 8 << 20
"""Size of each part of an upload."""
PARTS_AT_ONCE: Final = 2
UPLOAD_BYTES: Final = (PARTS_AT_ONCE + 1) * PART_BYTES
"""Maximum number of bytes of an upload that a writer holds in memory."""
_LIST_CHUNK: Final = 1000
_DELETE_CHUNK: Final = 1000
"""Maximum number of objects in one delete request, which is S3's limit."""


class ObjectStorage(Storage):
    """Stores objects below a prefix in a bucket or container.

    A pickled object contains the location and the options, and connects again where it is unpickled.
    """

    def __init__(self, location: Location, options: StorageOptions) -> None:
        self._location = location
        self._options = options

    @property
    def url(self) -> str:
        """The URL of the prefix that holds the objects."""
        return str(self._location)

    @property
    def options(self) -> StorageOptions:
        """The options of the store."""
        return self._options

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Read an object or a range of it; see :meth:`Storage.read`."""
        with self._failures(key):
            if start == 0 and end is None:
                return bytes(self._store.get(check_key(key)).bytes())
            if end is None:
                end = self._store.head(check_key(key))["size"]
            return bytes(self._store.get_range(check_key(key), start=start, end=end)) if end > start else b""

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several ranges; see :meth:`Storage.read_ranges`."""
        with self._failures(key):
            starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
            return [bytes(part) for part in self._store.get_ranges(check_key(key), starts=starts, ends=ends)]

    def stat(self, key: str) -> StoredObject | None:
        """Return size and time of an object; see :meth:`Storage.stat`."""
        try:
            with self._failures(key):
                return _stored_object(self._store.head(check_key(key)))
        except ObjectNotFoundError:
            return None

    def put(self, key: str, content: bytes) -> None:
        """Write an object with one request; see :meth:`Storage.put`."""
        with self._failures(key):
            self._store.put(check_key(key), check_content(content), use_multipart=False)

    def create_once(self, key: str, content: bytes) -> bool:
        """Write an object on the condition that it does not exist; see :meth:`Storage.create_once`."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._failures(key):
            try:
                if self._options.forbid_overwrite_header:
                    self._forbidding_store.put(check_key(key), check_content(content), use_multipart=False)
                else:
                    self._store.put(check_key(key), check_content(content), mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
            except Exception as error:
                if "FileAlreadyExists" in str(error) or "409 Conflict" in str(error):
                    return False
                raise
            return True

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        """Upload content in parts, which become the object at the end; see :meth:`Storage.open_writer`."""
        import obstore

        with self._failures(key):
            upload = obstore.open_writer(
                self._store, check_key(key), buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

        def write(content: Any) -> None:
            with self._failures(key):
                upload.write(content)

        try:
            yield cast(IO[bytes], CountingWriter(write))
        except BaseException as error:
            with suppress(Exception):  # its own failure would hide the error of the caller
                upload.__exit__(type(error), error, error.__traceback__)  # aborts the upload
            raise
        with self._failures(key):
            upload.close()

    def list_objects(self, directory: str = "", after: str = "") -> Iterator[StoredObject]:
        """List objects; see :meth:`Storage.list_objects`."""
        with self._failures(directory):
            for chunk in self._store.list(directory or None, offset=after or None, chunk_size=_LIST_CHUNK):
                for meta in chunk:
                    if meta["size"] and meta["path"] > after:
                        yield _stored_object(meta)

    def list_directories(self, directory: str = "") -> list[str]:
        """List common prefixes; see :meth:`Storage.list_directories`."""
        with self._failures(directory):
            found = self._store.list_with_delimiter(directory or None)
            return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"])

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, with many objects in each request; see :meth:`Storage.delete`."""
        left = [check_key(key) for key in keys]
        for first in range(0, len(left), _DELETE_CHUNK):
            chunk = left[first : first + _DELETE_CHUNK]
            try:
                with self._failures(chunk[0]):
                    self._store.delete(chunk)
            except ObjectNotFoundError:  # Azure and Google report missing objects, and stop there
                for key in chunk:
                    with suppress(ObjectNotFoundError), self._failures(key):
                        self._store.delete(key)

    def below(self, directory: str) -> ObjectStorage:
        """Return the storage for a longer prefix."""
        return ObjectStorage(self._location.below(check_key(directory)), self._options)

    @cached_property
    def _store(self) -> ObjectStore:
        from cometmq.storage.connection import connect

        return connect(self._location, self._options)

    @cached_property
    def _forbidding_store(self) -> ObjectStore:
        from cometmq.storage.connection import connect

        return connect(self._location, self._options, headers={self._options.forbid_overwrite_header: "true"})

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self._location, self._options)

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            raise storage_failure(self.describe(key), error, self._options.secrets) from None


def _stored_object(meta: Any) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
