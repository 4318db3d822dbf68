"""Checks that a storage follows the rule on which exactly-once depends: only one of several writers creates an object.

Some servers silently ignore ``If-None-Match``. Two jobs that use such a storage could overwrite each other's commits.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cometmq.storage.errors import ObjectExistsError, UnsafeStorageError
from cometmq.storage.interface import Storage

_WRITERS: Final = 4
_NEXT_STEP: Final = (
    "use a storage that supports conditional writes, set the option forbidOverwriteHeader where the storage has such "
    "a header, or write a table with a catalog"
)


def check_conditional_writes(storage: Storage) -> None:
    """Check, with a few small objects below ``_probe/``, that a storage refuses to create an object twice.

    :raises UnsafeStorageError: the storage creates an object twice, or new objects are missing from its lists.
    :raises StorageError: a request failed.
    """
    key = f"_probe/{uuid.uuid4().hex}"
    race = f"_probe/{uuid.uuid4().hex}"
    try:
        storage.create(key, b"first")
        if _creates(storage, key, b"second") or storage.read(key) != b"first":
            raise UnsafeStorageError(f"{storage.url} replaces objects that may only be created", next_step=_NEXT_STEP)
        with ThreadPoolExecutor(_WRITERS) as threads:
            created = sum(threads.map(lambda n: _creates(storage, race, b"writer %d" % n), range(_WRITERS)))
        if created != 1:
            raise UnsafeStorageError(
                f"{storage.url} let {created} of {_WRITERS} writers create one object", next_step=_NEXT_STEP
            )
        if not {key, race} <= {found.key for found in storage.list_objects("_probe")}:
            raise UnsafeStorageError(f"{storage.url} does not list new objects", next_step=_NEXT_STEP)
    finally:
        storage.delete([key, race])


def _creates(storage: Storage, key: str, content: bytes) -> bool:
    try:
        storage.create(key, content)
    except ObjectExistsError:
        return False
    return True
