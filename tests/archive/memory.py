"""A storage in memory whose requests can be delayed, lost and answered too late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import IO, cast
from zlib import crc32

from cometmq.storage.interface import CountingWriter, Storage, StoredObject


class MemoryStorage(Storage):
    """Objects in a dictionary, which several storages may share.

    ``before`` is called before each request with its name and key; it may wait, or raise an error.
    """

    def __init__(
        self,
        objects: dict[str, tuple[bytes, int]] | None = None,
        *,
        before: Callable[[str, str], None] = lambda *_: None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.objects = {} if objects is None else objects
        self._before = before
        self._now_ms = now_ms

    @property
    def url(self) -> str:
        return "memory"

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._before("read", key)
        if key not in self.objects:
            raise self.not_found(key)
        return self.objects[key][0][start:end]

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(key, *part) for part in ranges]

    def stat(self, key: str) -> StoredObject | None:
        self._before("stat", key)
        found = self.objects.get(key)
        return None if found is None else StoredObject(key, len(found[0]), found[1])

    def create_once(self, key: str, content: bytes) -> bool:
        self._before("create", key)
        return self.store(key, content)

    def store(self, key: str, content: bytes) -> bool:
        """Create an object at once; False if it exists."""
        if key in self.objects:
            return False
        self.objects[key] = (content, self._now_ms())
        return True

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        content = BytesIO()
        yield cast(IO[bytes], CountingWriter(content.write))
        self._before("put", key)
        self.objects[key] = (content.getvalue(), self._now_ms())

    def list_objects(self, directory: str = "", after: str = "") -> Iterator[StoredObject]:
        self._before("list", directory)
        found = [key for key in self.objects if key.startswith(directory and f"{directory}/") and key > after]
        for key in sorted(found, key=lambda key: crc32(key.encode())):  # in no useful order
            yield StoredObject(key, len(self.objects[key][0]), self.objects[key][1])

    def list_directories(self, directory: str = "") -> list[str]:
        prefix = directory and f"{directory}/"
        return sorted({key[len(prefix) :].partition("/")[0] for key in self.objects if key.startswith(prefix)})

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._before("delete", key)
            self.objects.pop(key, None)

    def below(self, directory: str) -> Storage:
        raise NotImplementedError
