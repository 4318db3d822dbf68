"""Storage for archives, ledgers, indexes and backups: one interface for local directories, object stores and HDFS.

:func:`open_storage` opens the storage that a path or URL names; :class:`Storage` is the interface.
"""

from cometmq.storage.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
    UnsafeStorageError,
)
from cometmq.storage.interface import Storage, StoredObject
from cometmq.storage.location import Location
from cometmq.storage.opening import open_storage
from cometmq.storage.options import StorageOptions
from cometmq.storage.probe import check_conditional_writes

__all__ = [
    "Location",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "Storage",
    "StorageError",
    "StorageOptions",
    "StorageUnavailableError",
    "StoredObject",
    "UnsafeStorageError",
    "check_conditional_writes",
    "open_storage",
]
