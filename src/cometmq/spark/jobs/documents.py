"""JSON documents in a storage: single ones, and series with numbers as names. Each is created once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

import msgspec

from cometmq.spark.errors import ArchiveError
from cometmq.storage import ObjectExistsError, ObjectNotFoundError, Storage

T = TypeVar("T")
REQUESTS_AT_ONCE: Final = 16
_RESTORE: Final = "restore it from a backup"
_NUMBER: Final = re.compile(r"(?:.*/)?(\d{20})\.json")


def find_document(storage: Storage, key: str, kind: Any) -> Any:
    """Return the value of type ``kind`` in a document, or None if the document does not exist.

    :raises ArchiveError: the document is damaged.
    """
    try:
        return msgspec.json.decode(storage.read(key), type=kind)
    except ObjectNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ArchiveError(f"{storage.describe(key)} is damaged: {error}", next_step=_RESTORE) from error


def create_document(storage: Storage, key: str, value: Any) -> None:
    """Write a value as a document that does not exist yet.

    :raises ArchiveError: another job has written another value.
    """
    try:
        storage.create(key, msgspec.json.format(msgspec.json.encode(value), indent=1))
    except ObjectExistsError as error:
        raise ArchiveError(
            f"another job has written {storage.describe(key)} at the same time",
            next_step="let only one job use this place, and run this one again",
        ) from error


class Series(Generic[T]):
    """Documents such as ``commits/00000000000000000007.json``. Each contains a value of type ``kind``."""

    def __init__(self, storage: Storage, directory: str, kind: type[T]) -> None:
        self._storage = storage
        self._directory = directory
        self._kind = kind

    def numbers(self) -> list[int]:
        """Return the sorted numbers of all documents."""
        found = (_NUMBER.fullmatch(item.key) for item in self._storage.list_objects(self._directory))
        return sorted(int(match[1]) for match in found if match is not None)

    def find(self, number: int) -> T | None:
        """Return a value, or None if the document does not exist.

        :raises ArchiveError: the document is damaged.
        """
        found: T | None = find_document(self._storage, self.key(number), self._kind)
        return found

    def read(self, numbers: Iterable[int]) -> list[T]:
        """Return several values, in the order of the numbers.

        :raises ArchiveError: a document is missing or damaged.
        """
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            return list(threads.map(self._read, numbers))

    def _read(self, number: int) -> T:
        found = self.find(number)
        if found is None:
            raise ArchiveError(f"{self._storage.describe(self.key(number))} is missing", next_step=_RESTORE)
        return found

    def create(self, number: int, value: T) -> None:
        """Write a value.

        :raises ArchiveError: another job has written another value.
        """
        create_document(self._storage, self.key(number), value)

    def key(self, number: int) -> str:
        """Return the key of a document."""
        return f"{self._directory}/{number:020d}.json"
