"""Errors raised by storage."""

from __future__ import annotations

from cometmq.errors import CometMQError


class StorageError(CometMQError):
    """A storage request failed; the next step says what to do."""


class StorageUnavailableError(StorageError):
    """The storage did not answer, or demanded fewer requests, until the retries ended. A later call may succeed."""


class ObjectNotFoundError(StorageError):
    """The storage has no object with this key."""


class ObjectExistsError(StorageError):
    """The object already exists, because another writer has created it.

    ``content`` is the content of the existing object.
    """

    def __init__(self, message: str, *, content: bytes) -> None:
        super().__init__(message)
        self.content = content


class UnsafeStorageError(StorageError):
    """The storage ignores conditions on writes, so that two writers could overwrite each other's objects."""
