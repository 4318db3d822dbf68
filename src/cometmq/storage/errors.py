"""Errors of storage."""

from __future__ import annotations

from cometmq.errors import CometMQError


class StorageError(CometMQError):
    """A storage request failed; the next step tells how to go on."""


class StorageUnavailableError(StorageError):
    """The storage did not answer or asked for fewer requests until the retries ended; a later call may succeed."""


class ObjectNotFoundError(StorageError):
    """The storage has no object under a key."""


class ObjectExistsError(StorageError):
    """Another writer has created the object.

    ``content`` is the content of that object.
    """

    def __init__(self, message: str, *, content: bytes) -> None:
        super().__init__(message)
        self.content = content


class UnsafeStorageError(StorageError):
    """The storage ignores conditions of writes, so that two writers could overwrite each other."""
